"""Describe a run in the first lines of a report: workload, devices, step time, compute rate, host times, clocks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.model.run import ComputeRate, UnprofiledRank
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

#: Pattern of the names of unread accelerators in the message of the warning `missing-device-activity`.
_UNREAD = re.compile(r"does not read \(([A-Za-z0-9_, ]{1,60})\)")
_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
_CPU_PROCESS = "CPU process"
_SEPARATOR = " · "
#: The estimate of the step time without the profiler is shown if it differs from the recorded step time by more than
#: this share.
_NEGLIGIBLE_SHARE = 0.01
#: A report has a note about different step times if recorded and unprofiled steps differ by more than this share.
_NOTABLE_SHARE = 0.1
#: If the queued work takes less than this share of a step, the launch queue becomes empty at every pause of the host.
_SHORT_QUEUE_SHARE = 0.05
_LONGEST_NAME = 60
_MOST_SOFTWARE = 6
_MOST_CLOCKS = 4
#: The covered share of the recording is shown only if it is below this percentage.
_MOSTLY_COVERED = 70.0
#: Singular and plural of the analysed unit.
_UNITS = {
    "step": ("step", "steps"),
    "repeated-unit": ("repeated unit", "repeated units"),
    "recording": ("recording", "recordings"),
}


def unit_of(analysis: Analysis) -> str:
    """Return `step`, `repeated unit` or `recording`."""
    return _UNITS.get(analysis.steps.unit, _UNITS["step"])[0]


def time_heading(analysis: Analysis) -> str:
    """Return the heading above the bars and the table of step times."""
    unit = unit_of(analysis)
    return "Where the recording's time goes" if unit == "recording" else f"Where a {unit}'s time goes"


def what_ran(analysis: Analysis) -> str:
    """Return workload, strategy, devices and batch in one line."""
    source = analysis.source
    parts = [_name(source.workload or source.title or _kind_of_work(analysis))]
    parts += [_name(source.strategy)] if source.strategy else []
    parts.append(_devices_in_words(analysis))
    parts += [f"batch {source.batch_size_per_device} per device"] if source.batch_size_per_device else []
    return _SEPARATOR.join(parts)


def _kind_of_work(analysis: Analysis) -> str:
    """Return `PyTorch training`, `JAX recording`; without a framework `Training` or `Recording`."""
    kind = analysis.workload if analysis.workload in {"training", "inference"} else "recording"
    words = f"{_FRAMEWORKS.get(analysis.framework, '')} {kind}".strip()
    return words[:1].upper() + words[1:]


def _devices_in_words(analysis: Analysis) -> str:
    """Return number and model of the devices, such as `8 x NVIDIA H200`.

    A note follows if the devices are not read, if the traces are of several runs, or if ranks are missing.
    """
    names = Counter(_device_name(device.name, device.device, analysis.device_kind) for device in analysis.devices)
    words = " + ".join(f"{count} {figures.TIMES} {name}" for name, count in names.most_common(3)) or "no device"
    if analysis.framework == "jax":
        words = words.replace(_CPU_PROCESS, "CPU device")  # one process has several CPU devices
    if analysis.device_kind == "unread":
        words = f"{words if names else unread_device(analysis)} (not read)"
    if any(warning.code == "mixed-runs" for warning in analysis.validity):
        return f"{words} (several runs)"
    present = len(analysis.ranks_present)
    return f"{words} ({present} of {analysis.world_size} ranks)" if present < analysis.world_size else words


def _device_name(name: str, device: str, kind: str) -> str:
    """Return a device's model, or else its type: GPU for `cuda:3`; `kind` is the job's `device_kind`."""
    if name:
        return _name(name)
    family = device.partition(":")[0]
    if kind == "unread":
        return _name(family) if family not in {"", "cpu", "cuda"} else "accelerator"
    return _CPU_PROCESS if kind == "cpu" else _name({"cuda": "GPU", "cpu": _CPU_PROCESS}.get(family, family))


def unread_device(analysis: Analysis) -> str:
    """Return the name of the accelerator whose activity gpudiag cannot read, or ""."""
    if analysis.device_kind != "unread":
        return ""
    names = [_device_name(device.name, device.device, "unread") for device in analysis.devices]
    messages = [warning.message for warning in analysis.validity if warning.code == "missing-device-activity"]
    named = [match[1] for match in map(_UNREAD.search, messages) if match]
    return next(iter([*names, *named]), "the accelerator")


def on_processors(analysis: Analysis) -> bool:
    """Return whether the job ran on CPUs, where device work consists of operators instead of kernels."""
    families = {device.device.partition(":")[0] for device in analysis.devices}
    return analysis.device_kind == "cpu" or families == {"cpu"}


def device_word(analysis: Analysis) -> str:
    """Return `GPU`, `CPU` or `device`."""
    return {"gpu": "GPU", "cpu": "CPU"}.get(analysis.device_kind, "device")


def real_step_ms(analysis: Analysis) -> float:
    """Return the step time in ms that `step_line` shows: measured without the profiler, else estimated, else recorded.

    An estimate that differs from the recorded step time by at most 1 % is not used, because `step_line` omits it.
    """
    steps = analysis.steps
    estimate = steps.corrected_mean_ms if estimate_matters(analysis) else None
    return steps.unprofiled_mean_ms or estimate or steps.mean_ms


def estimate_matters(analysis: Analysis) -> bool:
    """Return whether the estimate of the step time without the profiler differs from the recorded step time."""
    steps = analysis.steps
    corrected = steps.corrected_mean_ms
    return corrected is not None and abs(corrected - steps.mean_ms) > _NEGLIGIBLE_SHARE * steps.mean_ms


def step_line(analysis: Analysis) -> Text:
    """Return the step time without and with the profiler, the throughput, and the covered share of the recording."""
    steps = analysis.steps
    mean = figures.milliseconds(steps.mean_ms)
    profiled = f"{mean} ms while profiling"
    if any(figures.milliseconds(device.step_ms) != mean for device in analysis.devices):
        profiled += ", mean over devices"  # unlike the step time without the profiler, which is the slowest device's
    unit, units = _UNITS.get(steps.unit, _UNITS["step"])
    line = Text(f"{unit[:1].upper()}{unit[1:]} ")
    if steps.unprofiled_mean_ms is not None:
        line.append(f"{figures.milliseconds(steps.unprofiled_mean_ms)} ms", style="bold").append(f" ({profiled})")
    elif estimate_matters(analysis):
        estimate = f"about {figures.milliseconds(steps.corrected_mean_ms)} ms"
        line.append(estimate, style="bold").append(f" (estimated; {profiled})")
    else:
        line.append(profiled, style="bold")
    if analysis.source.samples_per_s is not None:
        line.append(f"{_SEPARATOR}{figures.throughput(analysis.source.samples_per_s)} samples/s")
    if steps.analysed and steps.unit != "recording":
        line.append(f"{_SEPARATOR}mean of {steps.analysed} {units}" if steps.analysed > 1 else f"{_SEPARATOR}1 {unit}")
    covered = steps.covered_percent
    if covered is not None and covered < _MOSTLY_COVERED:
        what = "time" if on_processors(analysis) else "device time"
        line.append(f"{_SEPARATOR}covers {figures.percent(covered, 100)} of the recorded {what}")
    return line


def header_lines(analysis: Analysis) -> list[str]:
    """Return one line each for simulated ranks, grid, compute rate, written volume, host times and clocks, if known."""
    return [
        *sample_lines(analysis),
        *grid_lines(analysis),
        *compute_lines(analysis),
        *volume_lines(analysis),
        *host_lines(analysis),
        *clock_lines(analysis),
    ]


def sample_lines(analysis: Analysis) -> list[str]:
    """Return a line with the number of simulated ranks; none if all ranks were simulated."""
    simulated, ranks = len(analysis.simulated_ranks), figures.thousands(len(analysis.ranks_present))
    return [f"Simulated on {simulated} of {ranks} ranks: those that differ, and an even sample"] if simulated else []


def grid_lines(analysis: Analysis) -> list[str]:
    """Return a line with the sizes of the job's grid and their origin; none if the job divides only its batches."""
    grid = analysis.parallelism
    if grid is None or not grid.sizes:
        return []
    known = "stated by the process groups" if grid.stated else "inferred from the communication"
    return [f"Parallelism: {grid_sizes(analysis)} ({known})"]


def grid_sizes(analysis: Analysis) -> str:
    """Return the roles with their sizes, joined by multiplication signs; "" if the job divides only its batches."""
    sizes = {} if analysis.parallelism is None else analysis.parallelism.sizes
    return f" {figures.TIMES} ".join(f"{role} {figures.thousands(size)}" for role, size in sizes.items())


def software_line(analysis: Analysis) -> str:
    """Return the software versions, or "" if unknown."""
    software = list(analysis.source.software.items())[:_MOST_SOFTWARE]
    return _SEPARATOR.join(f"{_name(key)} {_name(value)}" for key, value in software)


def host_lines(analysis: Analysis) -> list[str]:
    """Return data-loading time, launch time (on CPUs: other time) and queued work of unprofiled steps in one line."""
    ranks = analysis.timed
    if not ranks:
        return []
    on_cpu = on_processors(analysis)
    times = {
        "data loading": _range_ms([rank.input_ms for rank in ranks]),
        "everything else" if on_cpu else "launching": _range_ms([rank.host_ms for rank in ranks]),
    }
    known = [f"{words} {span} ms" for words, span in times.items() if span]
    if not known or (on_cpu and len(known) == 1):  # on CPUs "everything else" alone would repeat the step time
        return []
    workers = _range_ms([rank.loader_ms for rank in ranks])
    sentences = (
        f"Without profiling: {', '.join(known)}",
        f"DataLoader workers need {workers} ms for one step's batch" if workers else "",
        "" if on_cpu else _queued_work(ranks, device_word(analysis)),
    )
    return [". ".join(filter(None, sentences))]


def _queued_work(ranks: Sequence[UnprofiledRank], device: str) -> str:
    """Return a sentence about the work that the host keeps queued for the device; "" if it is unknown."""
    leads = [rank.lead_ms for rank in ranks]
    queued = _range_ms(leads)
    if not queued:
        return ""
    least = min(lead for lead in leads if lead is not None)
    # Ranks that train together have the same step time.
    only = "only " if least < _SHORT_QUEUE_SHARE * ranks[0].step_ms else ""
    return f"The CPU keeps {only}{queued} ms of work queued for the {device}"


def _range_ms(values: list[float | None]) -> str:
    """Return the range of times in ms as text; "" if any time is unknown."""
    known = [value for value in values if value is not None]
    return figures.span(known) if known and len(known) == len(values) else ""


def overhead_lines(analysis: Analysis) -> list[str]:
    """Return a line with the step time without profiling and during each kind of recording."""
    recording = analysis.recording
    if recording is None or recording.unprofiled_ms is None:
        return []
    activity = "ranges" if on_processors(analysis) else f"{device_word(analysis)} activity"
    times = (
        (recording.unprofiled_ms, "without profiling"),
        (recording.light_ms, f"while recording only {activity}"),
        (recording.full_ms, "while also recording operators"),
    )
    known = ", ".join(f"{figures.milliseconds(ms)} ms {when}" for ms, when in times if ms is not None)
    return [f"Profiling overhead: a step takes {known}"]


def recorded_steps_differ(analysis: Analysis) -> bool:
    """Return whether recorded steps are notably longer or shorter than steps without the profiler."""
    real, recorded = real_step_ms(analysis), analysis.steps.mean_ms
    return real > 0 and _NOTABLE_SHARE * real < abs(recorded - real) < math.inf


def recorded_steps_note(analysis: Analysis) -> str:
    """Return a note that the recorded steps in bars and tables differ from unprofiled steps; "" if they do not."""
    real, recorded = real_step_ms(analysis), analysis.steps.mean_ms
    if not recorded_steps_differ(analysis):
        return ""
    estimated = "" if analysis.steps.unprofiled_mean_ms is not None else "an estimated "
    return (
        f"Bars and table show recorded steps of {figures.milliseconds(recorded)} ms; "
        f"without the profiler a step takes {estimated}{figures.milliseconds(real)} ms."
    )


def compute_lines(analysis: Analysis) -> list[str]:
    """Return FLOP per step and second, and the share of the peak; lower limits if the FLOPs of some ops are unknown."""
    rate = compute_rate(analysis)
    if rate is None or rate.tflops_per_s is None:
        return []
    least = "at least " * bool(rate.unknown)
    recomputed = figures.flops(rate.recomputed_flops_per_step)
    again = f" (plus {recomputed} recomputed)" * bool(rate.recomputed_flops_per_step)
    line = f"Compute: {least}{figures.flops(rate.flops_per_step)} per step and device{again}, "
    line += f"{figures.flops(1e12 * rate.tflops_per_s)}/s in {_name(rate.precision or '')}"
    if rate.mfu_percent is not None and rate.peak_tflops is not None:
        mfu, peak = figures.rate(rate.mfu_percent), figures.rate(rate.peak_tflops)
        line += f"{_SEPARATOR}MFU {least}{mfu} % of the peak of {peak} TFLOP/s"
    return [line]


def compute_rate(analysis: Analysis) -> ComputeRate | None:
    """Return the FLOPs of the run; None if none were counted or their rate is unknown."""
    rate = analysis.compute
    return None if rate is None or not rate.flops_per_step or rate.tflops_per_s is None else rate


def volume_lines(analysis: Analysis) -> list[str]:
    """Return how fast a predicted volume was written, and the time per teravoxel at that rate."""
    volume = analysis.inference
    if volume is None or not volume.mvox_per_s:
        return []
    written = f"{figures.thousands(volume.voxels)} voxels written in {figures.throughput(volume.seconds)} s"
    hours = figures.throughput(1e6 / volume.mvox_per_s / 3600)  # 1 teravoxel = 1e6 Mvox
    return [f"Volume: {written}, {figures.throughput(volume.mvox_per_s)} Mvox/s{_SEPARATOR}{hours} h per teravoxel"]


def clock_lines(analysis: Analysis) -> list[str]:
    """Return a line about the alignment of clocks; none if all ranks share the clock of one host."""
    hosts = len(analysis.source.hosts)
    shifted = [clock for clock in analysis.clocks if clock.offset_ms]
    if not analysis.clocks or not (shifted or hosts > 1):
        return []
    residual = figures.milliseconds(max(clock.residual_ms for clock in analysis.clocks))
    clocks = f"The clocks of {hosts} hosts" if hosts > 1 else "The ranks' clocks"
    shifts = [f"rank {clock.rank} was shifted by {clock.offset_ms:+.3f} ms" for clock in shifted[:_MOST_CLOCKS]]
    more = f" and {len(shifted) - _MOST_CLOCKS} more" * (len(shifted) > _MOST_CLOCKS)
    return [f"{clocks} agree to {residual} ms{'; ' * bool(shifts)}{', '.join(shifts)}{more}"]


def _name(text: str) -> str:
    name = one_line(text)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
