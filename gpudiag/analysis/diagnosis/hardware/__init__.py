"""Findings about the machine itself, from its facts: one rule per file, all pure."""

from __future__ import annotations

from gpudiag.analysis.diagnosis.hardware.clock_mismatch import ClockMismatch
from gpudiag.analysis.diagnosis.hardware.corrupt_transfer import CorruptTransfer
from gpudiag.analysis.diagnosis.hardware.degraded_link import DegradedLink
from gpudiag.analysis.diagnosis.hardware.foreign_process import ForeignProcess
from gpudiag.analysis.diagnosis.hardware.no_peer_access import NoPeerAccess
from gpudiag.analysis.diagnosis.hardware.peer_slower import PeerSlowerThanHost
from gpudiag.analysis.diagnosis.hardware.rule import FactsRule
from gpudiag.analysis.diagnosis.hardware.shared_uplink import SharedUplink
from gpudiag.analysis.diagnosis.hardware.throttled import Throttled
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

#: In the order in which findings of equal severity are listed: what makes figures worthless first.
HARDWARE_RULES: tuple[FactsRule, ...] = (
    CorruptTransfer(),
    ForeignProcess(),
    Throttled(),
    DegradedLink(),
    SharedUplink(),
    PeerSlowerThanHost(),
    NoPeerAccess(),
    ClockMismatch(),
)

_ORDER = {"critical": 0, "warning": 1, "info": 2}


def examine_facts(facts: Facts) -> tuple[Finding, ...]:
    """Every finding that the facts prove, the most severe first.

    No finding carries recoverable milliseconds (`recoverable_ms_per_step` is None and `evidence["reason"]` says why):
    that takes a trace of a job. `evidence["gpus"]` lists the GPUs concerned, by index.
    """
    findings = [finding for rule in HARDWARE_RULES for finding in rule.examine(facts)]
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))


__all__ = ["HARDWARE_RULES", "examine_facts"]
