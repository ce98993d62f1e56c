"""What a report says where no finding leads: what is known all the same, and which recording would tell more."""

from __future__ import annotations

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.header import device_word, on_processors, unit_of, unread_device
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import largest_collectives

#: Warnings that say what to record instead, the most decisive first.
_ASK_FOR_RECORDING = (
    "mixed-runs",
    "duplicate-ranks",
    "missing-device-activity",
    "lost-kernels",
    "thin-recording",
    "partial-coverage",
    "missing-ranks",
    "cannot-tell",
    "few-steps",
    "no-step-marks",
    "different-steps",
    "dropped-events",
    "clock-skew",
    "uneven-steps",
)
_LONGEST = 400


def nothing_found(analysis: Analysis) -> str:
    """Say what is known: what the input delivers, what takes the time, what nothing explains, or that data lacks."""
    if analysis.source.input_only:
        rate = f"{figures.throughput(analysis.source.samples_per_s)} samples/s"
        return (
            f"The input alone: it delivers {rate} to {analysis.world_size} process{'es' * (analysis.world_size > 1)}."
        )
    device = unread_device(analysis)
    if device:
        return f"No verdict: gpudiag cannot read what {device} does, so only its host's time is known."
    unit = unit_of(analysis)
    step_ms = analysis.steps.mean_ms
    most = max(analysis.explained, key=lambda bucket: bucket.unexplained_ms, default=None)
    if most is not None and most.unexplained_ms > 0:
        share = f"{figures.milliseconds(most.ms, beside=step_ms)} ms ({figures.percent(most.ms, step_ms)})"
        if most.bucket == "communication_transfer" and one_rank_of_several(analysis):
            return f"Communication, or waiting in it: {share} of a {unit}{_largest(analysis)}."
        return (
            f"No cause found: nothing explains {LABELS.get(most.bucket, one_line(most.bucket))}, {share} of a {unit}."
        )
    computing = [device.buckets_ms.get("compute", 0.0) for device in analysis.devices if device.step_ms > 0]
    if not computing or step_ms <= 0:
        return "Not enough data for a diagnosis."
    share = figures.percent(sum(computing) / len(computing), step_ms)
    device = "CPU" if on_processors(analysis) else device_word(analysis)
    return f"No finding: the {device} computes for {share} of the {unit}."


def one_rank_of_several(analysis: Analysis) -> bool:
    """Return whether other ranks of the job were not recorded, so that waiting cannot be seen."""
    return len(analysis.ranks_present) < analysis.world_size


def _largest(analysis: Analysis) -> str:
    """Return the collective that takes longest with its bandwidth, beside the probe's."""
    for call in largest_collectives(analysis.collectives, 1):
        if call.busbw_gb_per_s:
            beside = f" of {figures.rate(call.probe_busbw_gb_per_s)}" if call.probe_busbw_gb_per_s else ""
            operation = one_line(call.operation)[:40].replace("_", "-")
            return (
                f"; {operation} of {figures.size(call.size_bytes)} at {figures.rate(call.busbw_gb_per_s)}{beside} GB/s"
            )
    return ""


def what_to_do_without_finding(analysis: Analysis) -> str:
    """Say what to do next where no finding can be acted on."""
    if analysis.source.input_only:
        return (
            "Compare it with the same job's samples/s with its model: where they are hardly fewer, the input is the "
            "limit, and no faster device helps; where they are many fewer, it is not."
        )
    if unread_device(analysis):
        return "Use the profiler of the accelerator's vendor for its side of the step."
    codes = [warning.code.partition(":")[0] for warning in analysis.validity]
    untrusted = [code for code in _ASK_FOR_RECORDING if code in codes and code in UNTRUSTED_CODES]
    if not untrusted and one_rank_of_several(analysis) and "missing-ranks" in codes:
        return (
            "Give the traces of all ranks of the same steps: they show whether communication is slow or a rank is late."
        )
    asking = untrusted or [code for code in _ASK_FOR_RECORDING if code in codes]
    if asking:
        message = next(one.message for one in analysis.validity if one.code.partition(":")[0] == asking[0])
        return f"Record again ({asking[0]}): {one_line(message)[:_LONGEST]}"
    if any(bucket.unexplained_ms > 0 for bucket in analysis.explained):
        return "Look at the step in the timeline: `gpudiag report … --html report.html` draws it."
    return "Nothing: no warning doubts the recording, and no finding is worth 5 % of a step."
