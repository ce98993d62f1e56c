"""Describe scaling results in words and cells, for the terminal, Markdown, CSV and the HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpudiag.model.benchmarks.scaling import (
    NOT_RECORDED,
    AloneGpu,
    Duration,
    Forecast,
    Machine,
    PointRecord,
    Prospect,
    Scaling,
    Waterfall,
)
from gpudiag.model.job import DEFAULT_FRAMEWORK, INDEPENDENT
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

#: Labels of a waterfall's losses.
LOSSES = {
    "input": "input",
    "slower_compute": "slower compute",
    "launch": "launch and host",
    "exposed_transfer": "exposed transfer",
    "waiting": "waiting for ranks",
    "together": "running together",
    "exchange": "communication",
    "rest": "unexplained",
}
#: Headings of `cells`.
HEADINGS = (
    *("devices", "strategy", "samples/s", "±", "step ms", "median", "jitter", "steps"),
    *("warm-up", "speedup", "efficiency", "it/min"),
)
FORECAST_HEADINGS = ("devices", "efficiency", "samples/s", "network")


def machine(known: Machine) -> str:
    """Return GPUs or CPUs and the software versions in one line."""
    if known.gpus:
        names = ", ".join(
            f"{known.gpus.count(name)} {figures.TIMES} {one_line(name)}" for name in dict.fromkeys(known.gpus)
        )
    else:
        names = f"CPU processes on {one_line(known.cpu) or 'an unknown CPU'}"
        names += f", {known.usable_cpus} CPUs" if known.usable_cpus else ""
    software = [f"{one_line(name)} {one_line(version)}" for name, version in sorted(known.software.items())]
    return ", ".join([names, *software])


def setting(point: PointRecord) -> str:
    """Return the settings that a table's rows share: `resnet50 · weak scaling, 64 samples per device · bf16`."""
    batch = (
        f"weak scaling, {_samples(point.batch_per_device)} per device"
        if point.mode == "weak"
        else f"strong scaling, {point.global_batch} samples per step"
    )
    if not point.batch_per_device:  # a user-defined loop that did not report its batch size
        batch = "samples per step not recorded"
    known = [word for word in (point.precision, point.memory_format) if word != NOT_RECORDED]
    known += [f"data: {point.data}"] if point.data != NOT_RECORDED else []
    words = [point.workload, batch, *known]
    words += [f"{name} {value}" for name, value in sorted(point.options.items())]
    if point.framework != DEFAULT_FRAMEWORK:
        words.insert(1, point.framework)
    if point.threads is not None:
        words.append(f"{point.threads} CPU thread{'s' * (point.threads != 1)} each")
    return " · ".join(one_line(word) for word in words)


def groups(points: Iterable[PointRecord]) -> list[tuple[str, list[PointRecord]]]:
    """Return (setting, its points). Points that do not use the first devices of the machine are omitted."""
    by_setting: dict[str, list[PointRecord]] = {}
    for point in points:
        if point.device_indices == tuple(range(point.devices)):
            by_setting.setdefault(setting(point), []).append(point)
    return list(by_setting.items())


def failure(point: PointRecord) -> str:
    """Return a line about a point that was not measured, with the reason."""
    return f"{point.devices} {figures.TIMES} {point.batch_per_device}, {point.strategy}: {point.error or point.status}"


def cells(point: PointRecord) -> tuple[str, ...]:
    """Return the cells of a point, for the columns `HEADINGS`. Without a result, the last cell is the reason."""
    if point.status != "measured" or point.samples_per_s is None or point.ci95 is None or point.step_ms is None:
        reason = one_line(point.error or point.status)
        return (str(point.devices), one_line(point.strategy), *["" for _ in HEADINGS[2:-1]], reason)
    step = point.step_ms
    half = (point.ci95[1] - point.ci95[0]) / 2  # samples/s
    return (
        str(point.devices),
        one_line(point.strategy),
        throughput(point.samples_per_s, point.mvox_per_s),
        f"{100 * half / point.samples_per_s:.1f} %",
        f"{figures.milliseconds(step)} ± {figures.milliseconds(point.standard_error_ms, beside=step)}",
        figures.milliseconds(point.median_ms, beside=step),
        figures.milliseconds(point.jitter_ms, beside=step),
        str(point.steps),
        warmup(point),
        figures.UNKNOWN if point.speedup is None else f"{point.speedup:.2f}",
        share(point.efficiency, point.efficiency_ci95 if point.devices > 1 else None),
        figures.thousands(60e3 / step, 0 if step < 6e3 else 1),  # per minute; a decimal below 10
    )


def throughput(samples_per_s: float, mvox_per_s: float | None) -> str:
    """Return samples per second, and also voxels per second if a sample is a block of a volume: `3.40, 62.1 Mvox/s`."""
    if mvox_per_s is None or math.isnan(mvox_per_s):
        return figures.throughput(samples_per_s)
    return f"{figures.throughput(samples_per_s)}, {figures.throughput(mvox_per_s)} Mvox/s"


def warmup(point: PointRecord) -> str:
    """Return `40, 2.1 s`, with a question mark if step times had not reached a steady state."""
    if point.warmup_steps is None or point.warmup_seconds is None:
        return figures.UNKNOWN
    return f"{point.warmup_steps}, {point.warmup_seconds:.1f} s{'' if point.settled else ' ?'}"


def share(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Return a share in percent with its interval: `94.2 % (93.9 to 94.5)`; `—` if missing."""
    if value is None:
        return figures.UNKNOWN
    text = f"{100 * value:.1f} %"
    return text if interval is None else f"{text} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def alone_cells(gpu: AloneGpu) -> tuple[str, str, str]:
    """Return the cells of a device that was measured alone: rate, share of the median, mark if it is an outlier."""
    mark = "differs from the others" if gpu.odd else ""
    return figures.throughput(gpu.samples_per_s), f"{100 * gpu.relative:.1f} %", mark


def waterfall_title(fall: Waterfall) -> str:
    """Return workload, strategy, number of devices and efficiency in one line."""
    return (
        f"{one_line(fall.workload)}, {one_line(fall.strategy)}, {fall.devices} devices: "
        f"{fall.reached_percent:.1f} % of {fall.devices} {figures.TIMES} one device"
    )


def waterfall_rows(fall: Waterfall) -> list[tuple[str, float, float, float]]:
    """Return (name, percent, samples/s, ms per step) from the ideal to the measured result.

    Percent and samples/s of a loss are negative, because they are added to the ideal.
    """
    rows = [("ideal", 100.0, fall.ideal_samples_per_s, 0.0)]
    rows += [(LOSSES[loss.name], -loss.percent, -loss.samples_per_s, loss.ms_per_step) for loss in fall.losses]
    return [*rows, ("reached", fall.reached_percent, fall.reached_samples_per_s, 0.0)]


def waterfall_notes(fall: Waterfall) -> list[str]:
    """Return a sentence about overlapped communication, if any, and the notes of a waterfall."""
    hidden = fall.hidden_communication_ms
    overlapped = [f"Overlapped communication, which adds no time: {hidden:.2f} ms per step."] if hidden > 0.005 else []
    return [*overlapped, *map(one_line, fall.notes)]


def prospect_title(prospect: Prospect) -> str:
    """Return workload and strategy of a forecast, and the formula of the fitted step time."""
    return (
        f"{one_line(prospect.workload)}, {one_line(prospect.strategy)}, {prospect.batch_per_device} samples per "
        "device: "
        f"step = {prospect.compute_ms:.2f} + {prospect.transfer_ms:.2f} · 2(n {figures.MINUS} 1)/n + "
        f"{prospect.latency_ms:.3f} · ({prospect.growth}) ms"
    )


def forecast_cells(forecast: Forecast) -> tuple[str, str, str, str]:
    """Return the cells of a forecast, for the columns `FORECAST_HEADINGS`, each figure with its range."""
    rates, efficiency = forecast.samples_per_s, forecast.efficiency
    return (
        figures.thousands(forecast.devices),
        share(efficiency.value, (efficiency.low, efficiency.high)),
        f"{figures.throughput(rates.value)} ({figures.throughput(rates.low)} to {figures.throughput(rates.high)})",
        forecast.network or "as measured",
    )


def duration_words(duration: Duration, point: PointRecord) -> str:
    """Return the time for a number of iterations, samples or voxels (`duration.of`) in one line.

    For iterations, the line also has the time for the samples that one device processes in these iterations, if known.
    """
    where = (
        f"at {one_line(point.workload)}, {one_line(point.strategy)}, {point.devices} device{'s' * (point.devices > 1)}"
    )
    batches = f"{_count(duration.iterations)} iterations of {_samples(point.global_batch)}"
    pace = "" if duration.per_minute is None else f", {figures.throughput(duration.per_minute)} a minute"
    if duration.of == "voxels" or duration.voxels is not None:
        rate = "" if duration.mvox_per_s is None else f" at {figures.throughput(duration.mvox_per_s)} Mvox/s"
        hours = f"{_count(duration.hours)} h" if duration.hours >= 72 else _hours(duration.hours)
        return f"{figures.thousands(duration.voxels or 0)} voxels {where}: {hours}{rate} ({batches})"
    if duration.of == "samples":
        return f"{_count(duration.samples)} samples {where}: {_hours(duration.hours)} ({batches}{pace})"
    line = f"{batches} {where}: {_hours(duration.hours)}{pace}"
    if duration.like_one_device_hours is None:
        return line
    return (
        f"{line}; these have {point.devices} times the samples of as many iterations on one device, "
        f"whose samples take {_hours(duration.like_one_device_hours)} here"
    )


def _samples(count: int) -> str:
    return f"{count} sample{'s' * (count != 1)}"


def _count(value: float) -> str:
    return figures.thousands(round(value)) if value >= 1 else f"{value:.2f}"


def _hours(hours: float) -> str:
    if hours >= 72:
        return f"{hours / 24:.1f} days"
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.1f} s"


def relative_performance(points: Sequence[PointRecord]) -> list[tuple[PointRecord, float]]:
    """Return the points with the most devices, fastest first, with their rates relative to the fastest.

    `independent` is omitted, because it trains a separate model on each device. The result is empty if a point has a
    baseline but no speedup, because then that baseline is not valid.
    """
    if any(point.baseline is not None and point.speedup is None for point in points):
        return []
    measured = [point for point in points if point.samples_per_s is not None and point.strategy != INDEPENDENT]
    most = max((point.devices for point in measured), default=0)
    last = [point for point in measured if point.devices == most]
    last.sort(key=lambda point: point.samples_per_s or 0.0, reverse=True)
    best = last[0].samples_per_s if last else None
    return [(point, (point.samples_per_s or 0.0) / best) for point in last] if best else []


def title(result: Scaling) -> str:
    """Return the heading of the result."""
    workloads = one_line(", ".join(result.workload.split(",")))
    return f"{'Strong' if result.mode == 'strong' else 'Weak'} scaling of {workloads or 'nothing'}"
