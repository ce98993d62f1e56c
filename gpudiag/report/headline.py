"""Select the finding that leads a report. Without such a finding, describe what is known and what to record next.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.header import device_word, on_processors, real_step_ms, unit_of, unread_device
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import largest_collectives

#: Rate of the fastest PCIe slot, one way (PCIe 5, 16 lanes). A faster collective uses a direct link.
_FASTEST_SLOT_GB_PER_S = 63.0
#: A collective is slow if its rate is at most this share of the link's rate, or of the rate that `gpudiag bandwidth`
#: measured (`probe`).
_WELL_USED = 0.6
#: The title also states the best possible rate if the collective's rate is below this share of the best possible rate.
_FAR_BELOW = 0.8
_LONGEST = 400
#: Beginning of the title for each hardware finding that can slow communication.
_CAUSES = {
    "no-peer-access": "GPU peer access is off",
    "degraded-link": "The link of {gpus} is degraded",
    "shared-uplink": "{gpus} share one uplink",
    "peer-slower-than-host": "Direct copies between GPUs are slower than copies through host memory",
}
#: Warnings whose message states what to record instead, the most important first.
_ASK_FOR_RECORDING = (
    *("mixed-runs", "duplicate-ranks", "missing-device-activity", "lost-kernels", "thin-recording"),
    *("partial-coverage", "missing-ranks", "cannot-tell", "few-steps", "no-step-marks", "different-steps"),
    *("dropped-events", "clock-skew", "uneven-steps"),
)


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The finding that leads a report, its title, and the hardware finding that explains it, if any."""

    finding: Finding
    title: str
    cause: Finding | None = None

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice on the cause, then on the finding."""
        before = () if self.cause is None else self.cause.advice
        return tuple(dict.fromkeys((*before, *self.finding.advice)))


def main_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding of a severity above `info`, or else `compute-bound`, or else the first finding."""
    above_info = [finding for finding in findings if finding.severity != "info"]
    compute_bound = [finding for finding in findings if finding.code == "compute-bound"]
    return next(iter([*above_info, *compute_bound, *findings]), None)


def headline_of(analysis: Analysis) -> Headline | None:
    """Return the finding that leads the report, or None.

    The result is None if no finding is worth acting on and part of the step is unexplained. For example, a finding that
    saves one percent does not lead the report of a job if half of its step is unexplained. The result is also None if
    the device's activity cannot be read, or if the run only loaded data.
    """
    if analysis.source.input_only or analysis.device_kind == "unread":
        return None
    main = main_finding(analysis.findings)
    if main is None:
        return None
    unexplained = any(bucket.unexplained_ms > 0 for bucket in analysis.explained)
    if main.severity == "info" and main.code != "compute-bound" and unexplained:
        return None
    headline = Headline(finding=main, title=main.title or main.code)
    if main.code != "communication-bound" or main.severity == "info":
        return headline
    return _caused_by_hardware(main, analysis) or headline


def _caused_by_hardware(main: Finding, analysis: Analysis) -> Headline | None:
    """Return a headline about the links if their state explains slow collectives, or None.

    The evidence has the rate of NVLink only if the collective does not use NVLink. An unknown rate counts as slow.
    """
    reached, nvlink, probe = (
        _positive_number(main, key) for key in ("busbw_gb_per_s", "nvlink_gb_per_s", "probe_busbw_gb_per_s")
    )
    slow = reached is None or reached <= max(
        _FASTEST_SLOT_GB_PER_S, _WELL_USED * (nvlink or 0), _WELL_USED * (probe or 0)
    )
    causes = [finding for finding in analysis.findings if finding.code in _CAUSES and finding.severity != "info"]
    cause = causes[0] if causes and slow else None
    if cause is not None:
        words = _CAUSES[cause.code].format(gpus=_gpus(cause))
    elif nvlink is not None and reached is not None:  # NVLink is unused; only a manipulated file lacks one rate
        words = "GPU peer access over NVLink is off"
    else:
        return None
    return Headline(finding=main, title=words + _consequence(main, analysis, reached, nvlink or probe), cause=cause)


def _consequence(main: Finding, analysis: Analysis, reached: float | None, best: float | None) -> str:
    """Return `: all-reduce runs at 27 of 450 GB/s; communication costs up to 18.0 of 39.7 ms`, as far as known.

    `reached` and `best` are the present and the possible rate of the collective in GB/s. An implausible cost, of the
    whole step or more, is omitted.
    """
    parts = []
    if reached is not None:
        limit = f" of {_rate_words(best)}" if best is not None and reached < _FAR_BELOW * best else ""
        operation = str(main.evidence.get("largest_collective") or "communication").replace("_", "-")
        parts.append(f"{operation} runs at {_rate_words(reached)}{limit} GB/s")
    cost_ms = main.recoverable_ms_per_step
    step_ms = real_step_ms(analysis)
    if cost_ms is not None and 0 < cost_ms < step_ms:
        cost = figures.milliseconds(cost_ms, beside=step_ms)
        parts.append(f"communication costs up to {cost} of {figures.milliseconds(step_ms)} ms")
    return f": {'; '.join(parts)}" if parts else ""


def _rate_words(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f}" if gb_per_s >= 9.5 else figures.rate(gb_per_s)


def _positive_number(finding: Finding, key: str) -> float | None:
    """Return a positive number of the evidence. Return None for any other value, which a hostile file may contain."""
    value = finding.evidence.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9 else None


def _gpus(finding: Finding) -> str:
    numbers = finding.evidence.get("gpus")
    known = [number for number in numbers if isinstance(number, int)] if isinstance(numbers, list | tuple) else []
    return figures.ranks(known, capital=True).replace("Rank", "GPU") if known else "GPUs"


def nothing_found(analysis: Analysis) -> str:
    """Return the title of a report without a headline.

    The title has the rate of a run that only loads data, the unreadable device, the largest unexplained bucket, or the
    share of compute, if known.
    """
    if analysis.source.input_only:
        rate = f"{figures.throughput(analysis.source.samples_per_s)} samples/s"
        processes = f"{analysis.world_size} process{'es' * (analysis.world_size > 1)}"
        return f"Data loading alone delivers {rate} to {processes}."
    device = unread_device(analysis)
    if device:
        return f"No verdict: gpudiag cannot read the activity of {device}, so only host time is known."
    unit = unit_of(analysis)
    step_ms = analysis.steps.mean_ms
    bucket = max(analysis.explained, key=lambda bucket: bucket.unexplained_ms, default=None)
    if bucket is not None and bucket.unexplained_ms > 0:
        share = f"{figures.milliseconds(bucket.ms, beside=step_ms)} ms ({figures.percent(bucket.ms, step_ms)})"
        if bucket.bucket == "communication_transfer" and one_rank_of_several(analysis):
            rate = _largest_collective(analysis)
            return f"Communication, including waits for other ranks, takes {share} of a {unit}{rate}."
        return f"No cause found for {LABELS.get(bucket.bucket, one_line(bucket.bucket))}: {share} of a {unit}."
    computing = [device.buckets_ms.get("compute", 0.0) for device in analysis.devices if device.step_ms > 0]
    if not computing or step_ms <= 0:
        return "Not enough data for a diagnosis."
    share = figures.percent(sum(computing) / len(computing), step_ms)
    word = "CPU" if on_processors(analysis) else device_word(analysis)
    return f"No finding: the {word} computes for {share} of the {unit}."


def one_rank_of_several(analysis: Analysis) -> bool:
    """Return whether some ranks of the job have no trace, so that waits cannot be determined."""
    return len(analysis.ranks_present) < analysis.world_size


def _largest_collective(analysis: Analysis) -> str:
    """Return `; all-reduce of 102 MB runs at 27 of 450 GB/s` for the longest collective; "" if its rate is unknown.

    `of 450` is the rate that `gpudiag bandwidth` measured, if any.
    """
    for call in largest_collectives(analysis.collectives, 1):
        if call.busbw_gb_per_s:
            probe = f" of {figures.rate(call.probe_busbw_gb_per_s)}" if call.probe_busbw_gb_per_s else ""
            operation = one_line(call.operation)[:40].replace("_", "-")
            rate = figures.rate(call.busbw_gb_per_s)
            return f"; {operation} of {figures.size(call.size_bytes)} runs at {rate}{probe} GB/s"
    return ""


def next_step(analysis: Analysis) -> str:
    """Return what to do next if no finding can be acted on."""
    if analysis.source.input_only:
        return (
            "Compare this rate with the samples/s of the full training: if they are about equal, data loading is the "
            "limit and a faster device does not help; if training is much slower, data loading is not the limit."
        )
    if unread_device(analysis):
        tool = "xprof" if unread_device(analysis) == "TPU" else "the profiler of the accelerator's vendor"
        return f"Use {tool} to see what the device does."
    # Reversed, so that the first of several warnings with the same code remains.
    messages = {warning.code.partition(":")[0]: warning.message for warning in reversed(analysis.validity)}
    asking = [code for code in _ASK_FOR_RECORDING if code in messages]
    untrusted = [code for code in asking if code in UNTRUSTED_CODES]
    # Other ranks do not help if the figures of this recording cannot be trusted.
    if not untrusted and one_rank_of_several(analysis) and "missing-ranks" in messages:
        return (
            "Analyze the traces of all ranks, recorded in the same steps: "
            "they show whether communication is slow or a rank is late."
        )
    if asking:
        code = (untrusted or asking)[0]
        return f"Record again ({code}): {one_line(messages[code])[:_LONGEST]}"
    if any(bucket.unexplained_ms > 0 for bucket in analysis.explained):
        return "Look at the timeline of a step: `gpudiag report … --html report.html` draws it."
    return "Nothing to do: the recording has no warning, and no finding saves 5 % of a step."
