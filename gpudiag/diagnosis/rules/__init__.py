"""The rules, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.diagnosis.rules.communication_bound import CommunicationBound
from gpudiag.diagnosis.rules.host_sync import HostSync
from gpudiag.diagnosis.rules.input_bound import InputBound
from gpudiag.diagnosis.rules.launch_bound import LaunchBound
from gpudiag.diagnosis.rules.slow_copy import SlowCopy
from gpudiag.diagnosis.rules.straggler import Straggler

if TYPE_CHECKING:
    from gpudiag.diagnosis.rules.rule import Rule

RULES: tuple[type[Rule], ...] = (Straggler, InputBound, CommunicationBound, LaunchBound, HostSync, SlowCopy)
