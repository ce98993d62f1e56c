"""Make findings without a simulation, from shares of the recorded step.

Each share is an upper bound of the savings. Savings themselves are unknown for one recorded step, for a job that cannot
be simulated, and for one rank of several.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, NOTABLE_MS, OF_NVLINK, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.conclusions.explained import pace_setter
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.rule import severity_of
from gpudiag.analysis.diagnosis.rules.unused_nvlink import nvlink_gb_per_s
from gpudiag.intervals import median
from gpudiag.model.analysis import Finding
from gpudiag.model.timeline import Timeline
from gpudiag.units import bus_factor, milliseconds

#: Bucket → (code, cause, description) of its most likely cause.
LIKELY = {
    "communication_transfer": ("communication-bound", "transfer", "communication not overlapped with compute"),
    "communication_wait": ("straggler", "unknown", "waiting for other ranks"),
    "copy": ("slow-copy", None, "copies between CPU and GPU"),
    "input": ("input-bound", "loader", "waiting for data"),
    "sync": ("host-sync", None, "the CPU waiting for the GPU"),
    "launch": ("launch-bound", None, "launching kernels from the CPU"),
    "idle": ("host-stall", None, "a GPU that idles while its CPU records nothing"),
}
#: Descriptions on CPU-only runs.
_ON_CPU = {
    "copy": "copies",
    "sync": "waiting in calls that block",
    "launch": "framework calls between operators",
    "idle": "time in which the training thread records nothing",
}
_UNSEEN = "communication, or waiting in it"
_ALL_RANKS = (
    "Record all ranks over the same steps and analyse their traces together, to distinguish waiting for a straggler "
    "from transferring."
)
_MARKED_STEPS = "Record five or more marked steps of all ranks, so that savings can be estimated."


def likely_causes(case: Case, reason: str, *, trusted: bool = True) -> tuple[Finding, ...]:
    """Return findings for the buckets with 5 % of the step or more, largest first, then compute.

    Args:
        case: the job.
        reason: why savings cannot be estimated.
        trusted: whether the recording is complete enough to conclude that compute sets the pace.
    """
    buckets, step_ms = pace_setter(case)
    if step_ms < NOTABLE_MS:
        return ()
    findings = [
        _likely(case, bucket, buckets[bucket], step_ms, reason)
        for bucket in sorted(LIKELY, key=lambda name: -buckets[name])
        if 100 * buckets[bucket] >= WARNING_PERCENT * step_ms
    ]
    percent = 100 * buckets["compute"] / step_ms
    if trusted and (not findings or percent > 100 * MOST):
        largest = max(buckets[bucket] for bucket in LIKELY)
        findings.append(ComputeBound.without_savings(case, buckets["compute"], percent, 100 * largest / step_ms))
    return tuple(findings)


def with_unseen_communication(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Add communication as a finding if traces of other ranks are missing and no finding covers it.

    A finding without savings is placed before the first finding that saves less than half of its share.
    """
    buckets, step_ms = pace_setter(case)
    ms = buckets["communication_transfer"]
    missing = len(case.timeline.ranks_present) < case.timeline.world_size
    reported = any(finding.code == "communication-bound" for finding in findings)
    if missing and not reported and step_ms > 0 and 100 * ms >= WARNING_PERCENT * step_ms:
        reason = "the traces of the other ranks are missing, so that waiting and transferring cannot be distinguished"
        findings = [*findings, _likely(case, "communication_transfer", ms, step_ms, reason)]
    return _by_amount(findings)


def _by_amount(findings: Sequence[Finding]) -> list[Finding]:
    ordered = [finding for finding in findings if finding.recoverable_ms_per_step is not None]
    for share in (finding for finding in findings if finding.recoverable_ms_per_step is None):
        half = float(share.evidence.get("exposed_ms", 0.0)) / 2
        smaller = (i for i, finding in enumerate(ordered) if (finding.recoverable_ms_per_step or 0.0) < half)
        ordered.insert(next(smaller, len(ordered)), share)
    return ordered


def _likely(case: Case, bucket: str, ms: float, step_ms: float, reason: str) -> Finding:
    code, cause, words = LIKELY[bucket]
    if case.tracks and case.tracks[0].is_cpu:
        words = _ON_CPU.get(bucket, words)
    percent = 100 * ms / step_ms
    evidence: dict[str, object] = {"reason": reason, "exposed_ms": ms, "bucket": bucket}
    advice = (_MARKED_STEPS,)
    if bucket == "communication_transfer" and len(case.timeline.ranks_present) < case.timeline.world_size:
        words, cause, advice = _UNSEEN, None, (_ALL_RANKS,)
        collective = _slowest_collective(case)
        if collective is not None:
            evidence |= collective.evidence()
            words += collective.words()
    return Finding(
        code=code,
        severity=severity_of(percent),
        ranks=case.timeline.ranks_present,
        cause=cause,
        confidence="low",
        title=f"{words}: up to {ms:.1f} ms ({percent:.0f} % of {_unit_words(case.timeline)})",
        evidence=evidence,
        advice=advice,
    )


def _unit_words(timeline: Timeline) -> str:
    return {"step": "a step", "repeated-unit": "a repeated unit", "recording": "the recording"}[timeline.unit]


class _SlowestCollective(msgspec.Struct, frozen=True):
    """The collective with the most time; waiting in it counts as transfer."""

    operation: str
    size_bytes: int
    busbw_gb_per_s: float
    link_gb_per_s: float | None

    def evidence(self) -> dict[str, object]:
        """Return the figures as evidence of a finding."""
        evidence: dict[str, object] = {
            "largest_collective": self.operation,
            "largest_collective_bytes": self.size_bytes,
            "busbw_gb_per_s": self.busbw_gb_per_s,
        }
        if self.link_gb_per_s is not None:
            evidence["nvlink_gb_per_s"] = self.link_gb_per_s
        return evidence

    def words(self) -> str:
        """Return the bandwidths, and whether they point to waiting, as a part of a title."""
        if self.link_gb_per_s is None:
            return f" ({self.operation} at {self.busbw_gb_per_s:.3g} GB/s)"
        waits = ", which points to waiting" * (self.busbw_gb_per_s < OF_NVLINK * self.link_gb_per_s)
        return f" ({self.operation} at {self.busbw_gb_per_s:.3g} of {self.link_gb_per_s:.0f} GB/s{waits})"


def _slowest_collective(case: Case) -> _SlowestCollective | None:
    best: tuple[float, _SlowestCollective] | None = None
    for track in case.tracks[:1]:
        table = track.collectives
        for index, (operation, _, ranks, size) in enumerate(table.kinds):
            times = (table.end - table.start)[table.kind == index]
            factor = bus_factor(operation, ranks or case.timeline.world_size)
            if size is None or factor is None or not len(times) or median(times) <= 0:
                continue
            total = milliseconds(float(np.sum(times)))
            if best is None or total > best[0]:
                busbw = size / median(times) * factor
                best = total, _SlowestCollective(operation, size, busbw, nvlink_gb_per_s(track.device_name))
    return None if best is None else best[1]
