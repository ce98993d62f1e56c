"""Find problems of a machine from its facts; each file has one rule."""

from __future__ import annotations

import msgspec

from gpudiag.analysis.diagnosis.hardware.clock_mismatch import ClockMismatch
from gpudiag.analysis.diagnosis.hardware.corrupt_transfer import CorruptTransfer
from gpudiag.analysis.diagnosis.hardware.degraded_link import DegradedLink
from gpudiag.analysis.diagnosis.hardware.foreign_process import ForeignProcess
from gpudiag.analysis.diagnosis.hardware.no_peer_access import NoPeerAccess
from gpudiag.analysis.diagnosis.hardware.peer_slower import PeerSlowerThanHost
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE, FactsRule
from gpudiag.analysis.diagnosis.hardware.shared_uplink import SharedUplink
from gpudiag.analysis.diagnosis.hardware.throttled import Throttled
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

#: Findings of equal severity are listed in this order: findings that make measurements worthless come first.
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
    """Return every finding that the facts prove, the most severe first.

    `evidence["gpus"]` lists the indices of the GPUs concerned. `recoverable_ms_per_step` is None, because savings need
    a trace of a job; `evidence["reason"]` says so.
    """
    findings = [finding for rule in HARDWARE_RULES for finding in rule.examine(facts)]
    return tuple(
        msgspec.structs.replace(finding, evidence=finding.evidence | {"reason": NO_TRACE})
        for finding in sorted(findings, key=lambda finding: _ORDER[finding.severity])
    )


__all__ = ["HARDWARE_RULES", "examine_facts"]
