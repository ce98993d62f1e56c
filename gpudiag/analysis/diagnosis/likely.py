"""What one recorded step, or a job that cannot be replayed, lets suppose: the largest exposed bucket, and no amount."""

from __future__ import annotations

from gpudiag.analysis.diagnosis.calibration import WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.explained import pace_setter
from gpudiag.analysis.diagnosis.rules.rule import severity_of
from gpudiag.model.analysis import Finding

#: What a bucket of the step most likely means.
LIKELY = {
    "communication_transfer": ("communication-bound", "transfer", "communication not overlapped with compute"),
    "communication_wait": ("straggler", "unknown", "waiting for other ranks"),
    "copy": ("slow-copy", None, "copies between CPU and GPU"),
    "input": ("input-bound", "loader", "waiting for data"),
    "sync": ("host-sync", None, "the CPU waiting for the GPU"),
    "launch": ("launch-bound", None, "launching kernels from the CPU"),
    "idle": ("host-stall", None, "a GPU that idles while its CPU records nothing"),
}


def likely_cause(case: Case, reason: str) -> tuple[Finding, ...]:
    """The bucket but compute that takes most of the step, as a likely cause at low confidence.

    Args:
        case: the job.
        reason: why nothing more can be told.
    """
    buckets, step_ms = pace_setter(case)
    bucket = max(LIKELY, key=lambda name: buckets[name])
    percent = 100 * buckets[bucket] / step_ms if step_ms > 0 else 0.0
    if percent < WARNING_PERCENT:
        return ()
    code, cause, words = LIKELY[bucket]
    unseen = bucket == "communication_transfer" and len(case.timeline.ranks_present) < case.timeline.world_size
    if unseen:
        words = "communication, or waiting for ranks whose traces are missing,"
    return (
        Finding(
            code=code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause=cause,
            confidence="low",
            title=f"likely cause: {words} ({buckets[bucket]:.1f} ms, {percent:.0f} % of the recorded step)",
            evidence={"reason": reason, "exposed_ms": buckets[bucket], "bucket": bucket},
            advice=("Record five or more marked steps of all ranks, so that savings can be estimated.",),
        ),
    )
