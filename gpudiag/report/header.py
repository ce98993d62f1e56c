"""The first lines of a report: what ran on what, how long a step takes, and what else was measured of it."""

from __future__ import annotations

import math
from collections import Counter

from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
_KINDS_OF_WORK = {"training": "training", "inference": "inference"}
_CPU_PROCESS = "CPU process"
_SEPARATOR = " · "
#: A profiler's overhead below this share of the step needs no figure of its own.
_SAME = 0.01
#: Recorded steps that differ from unprofiled ones by more than this share are said to.
_APART = 0.1
#: A launch queue that holds less than this share of the step runs empty at every pause of the host.
_SHORT_QUEUE = 0.05
_LONGEST_NAME = 60
_MOST_SOFTWARE = 6
#: From this share of the recorded work on, in percent, what lies outside of the steps goes without saying.
_MOSTLY_COVERED = 70.0
#: What the analysed windows are: (one, several).
_UNITS = {
    "step": ("step", "steps"),
    "repeated-unit": ("repeated unit", "repeated units"),
    "recording": ("recording", "recordings"),
}


def unit_of(analysis: Analysis) -> str:
    """Name what was analysed: `step`, `repeated unit` or `recording`."""
    return _UNITS.get(analysis.steps.unit, _UNITS["step"])[0]


def what_ran(analysis: Analysis) -> str:
    """Name workload, strategy, devices and batch in one line."""
    source = analysis.source
    parts = [_name(source.workload or source.title or _kind_of_work(analysis))]
    parts += [_name(source.strategy)] if source.strategy else []
    parts.append(_devices(analysis))
    parts += [f"batch {source.batch_size_per_device} per device"] if source.batch_size_per_device else []
    return _SEPARATOR.join(parts)


def _kind_of_work(analysis: Analysis) -> str:
    """Return `PyTorch training`, `JAX recording`; without a framework `Training` or `Recording`."""
    framework = _FRAMEWORKS.get(analysis.framework, "")
    words = f"{framework} {_KINDS_OF_WORK.get(analysis.workload, 'recording')}".strip()
    return words[:1].upper() + words[1:]


def _devices(analysis: Analysis) -> str:
    names = Counter(_device_name(device.name, device.device, analysis.device_kind) for device in analysis.devices)
    present = " + ".join(f"{count} {figures.TIMES} {name}" for name, count in names.most_common(3)) or "no device"
    if analysis.device_kind == "unread":
        present += " (not read)"
    missing = analysis.world_size - len(analysis.ranks_present)
    return f"{present} of {analysis.world_size} ranks" if missing > 0 else present


def _device_name(name: str, device: str, kind: str) -> str:
    """Return a device's own name, else what it is: `cuda:3` a GPU, `cpu` a training process."""
    if name:
        return _name(name)
    family = device.partition(":")[0]
    if kind == "unread":
        return _name(family) if family not in {"", "cpu", "cuda"} else "accelerator"
    return _CPU_PROCESS if kind == "cpu" else _name({"cuda": "GPU", "cpu": _CPU_PROCESS}.get(family, family))


def unread_device(analysis: Analysis) -> str:
    """Name the accelerator whose activity is not read; "" where there is none."""
    if analysis.device_kind != "unread":
        return ""
    names = [_device_name(device.name, device.device, "unread") for device in analysis.devices]
    return names[0] if names else "the accelerator"


def on_processors(analysis: Analysis) -> bool:
    """Return whether training threads took the devices' place, whose work is operators and not kernels."""
    if analysis.device_kind == "cpu":
        return True
    families = [device.device.partition(":")[0] for device in analysis.devices]
    return bool(families) and all(family == "cpu" for family in families)


def device_word(analysis: Analysis) -> str:
    """Return what to call a device in a sentence."""
    return "GPU" if analysis.device_kind == "gpu" else "CPU" if analysis.device_kind == "cpu" else "device"


def real_step_ms(analysis: Analysis) -> float:
    """Return the step as it is without the profiler: measured, else estimated, else as recorded."""
    steps = analysis.steps
    return steps.unprofiled_mean_ms or steps.corrected_mean_ms or steps.mean_ms


def estimate_matters(analysis: Analysis) -> bool:
    """Return whether the step estimated without the profiler is another than the recorded one."""
    steps = analysis.steps
    corrected = steps.corrected_mean_ms
    return corrected is not None and abs(corrected - steps.mean_ms) > _SAME * steps.mean_ms


def step_line(analysis: Analysis) -> Text:
    """Describe the step's time without the profiler, beside what it was with it; throughput; what it covers."""
    steps = analysis.steps
    mean = figures.milliseconds(steps.mean_ms)
    profiled = f"{mean} ms while profiling"
    if any(figures.milliseconds(device.step_ms) != mean for device in analysis.devices):
        profiled += ", mean over devices"  # whereas the step without the profiler is the slowest device's
    unit, units = _UNITS.get(steps.unit, _UNITS["step"])
    line = Text(f"{unit[:1].upper()}{unit[1:]} ")
    corrected = steps.corrected_mean_ms
    if steps.unprofiled_mean_ms is not None:
        line.append(f"{figures.milliseconds(steps.unprofiled_mean_ms)} ms", style="bold").append(f" ({profiled})")
    elif corrected is not None and estimate_matters(analysis):
        line.append(f"about {figures.milliseconds(corrected)} ms", style="bold").append(f" (estimated; {profiled})")
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
    """Describe compute rate, written volume, host and clocks, a line each where they are known."""
    return [*compute_lines(analysis), *volume_lines(analysis), *host_lines(analysis), *clock_lines(analysis)]


def software_line(analysis: Analysis) -> str:
    """List the versions of the software that ran; "" where they are not known."""
    software = list(analysis.source.software.items())[:_MOST_SOFTWARE]
    return _SEPARATOR.join(f"{_name(key)} {_name(value)}" for key, value in software)


def host_lines(analysis: Analysis) -> list[str]:
    """Describe what the unprofiled steps show of the host, in one line."""
    timed = analysis.timed
    if not timed:
        return []
    work = "the rest" if on_processors(analysis) else "launching"
    spans = [(words, _span([getattr(rank, key) for rank in timed])) for words, key in _host_parts(work)]
    known = [f"{words} {span} ms" for words, span in spans if span]
    if len(known) <= on_processors(analysis):  # the rest of nothing is the step
        return []
    line = f"Without profiling: {', '.join(known)}"
    workers = _span([rank.loader_ms for rank in timed])
    if workers:
        line += f". DataLoader workers need {workers} ms for one step's batch"
    leads = [rank.lead_ms for rank in timed]
    queued = _span(leads)
    if queued and not on_processors(analysis):
        least = min(lead for lead in leads if lead is not None)
        only = "only " if least < _SHORT_QUEUE * timed[0].step_ms else ""
        line += f". The CPU keeps {only}{queued} ms of work queued for the {device_word(analysis)}"
    return [line]


def _host_parts(work: str) -> tuple[tuple[str, str], ...]:
    return (("data loading", "input_ms"), (work, "host_ms"))


def _span(values: list[float | None]) -> str:
    """Return the range of the values; "" unless all are known."""
    known = [value for value in values if value is not None]
    return figures.span(known) if known and len(known) == len(values) else ""


def overhead_lines(analysis: Analysis) -> list[str]:
    """Describe what each kind of recording did to the step's time."""
    cost = analysis.recording
    if cost is None or cost.unprofiled_ms is None:
        return []
    light = "recording ranges only" if on_processors(analysis) else f"recording {device_word(analysis)} activity"
    recorded = ((light, cost.light_ms), ("recording operators too", cost.full_ms))
    slowed = [f"{figures.milliseconds(ms)} ms {how}" for how, ms in recorded if ms is not None]
    return [f"Profiling overhead: {figures.milliseconds(cost.unprofiled_ms)} ms without, {', '.join(slowed)}"]


def recorded_steps_note(analysis: Analysis) -> str:
    """Say how long recorded steps, which bars and tables show, are beside unprofiled ones; "" if hardly different."""
    real, recorded = real_step_ms(analysis), analysis.steps.mean_ms
    if not real > 0 or not _APART * real < abs(recorded - real) < math.inf:
        return ""
    how = "" if analysis.steps.unprofiled_mean_ms is not None else "an estimated "
    return (
        f"Bars and table show recorded steps of {figures.milliseconds(recorded)} ms; "
        f"without the profiler a step takes {how}{figures.milliseconds(real)} ms."
    )


def compute_lines(analysis: Analysis) -> list[str]:
    """Describe what a device computes per second, and its share of the peak, of a run that counted it."""
    done = analysis.compute
    if done is None or not done.flops_per_step or done.tflops_per_s is None:
        return []
    least = "at least " * bool(done.unknown)
    again = f" (and {figures.flops(done.recomputed_flops_per_step)} again)" * bool(done.recomputed_flops_per_step)
    line = f"Compute: {least}{figures.flops(done.flops_per_step)} per step and device{again}, "
    line += f"{figures.flops(1e12 * done.tflops_per_s)}/s in {_name(done.precision or '')}"
    if done.mfu_percent is not None and done.peak_tflops is not None:
        line += f"{_SEPARATOR}MFU {least}{figures.rate(done.mfu_percent)} % of {figures.rate(done.peak_tflops)} TFLOP/s"
    return [line]


def volume_lines(analysis: Analysis) -> list[str]:
    """Describe how fast a volume was written, of a run that predicted one, and what a larger one takes at that pace."""
    done = analysis.inference
    if done is None or not done.mvox_per_s:
        return []
    written = f"{figures.thousands(done.voxels)} voxels written in {figures.throughput(done.seconds)} s"
    hours = figures.throughput(1e6 / done.mvox_per_s / 3600)
    return [f"Volume: {written}, {figures.throughput(done.mvox_per_s)} Mvox/s{_SEPARATOR}{hours} h per teravoxel"]


def clock_lines(analysis: Analysis) -> list[str]:
    """Say how well the clocks of several hosts were aligned; nothing of one host, whose ranks share a clock."""
    moved = [clock for clock in analysis.clocks if clock.offset_ms]
    if not analysis.clocks or not (moved or len(analysis.source.hosts) > 1):
        return []
    hosts = f"{len(analysis.source.hosts)} hosts, whose" if len(analysis.source.hosts) > 1 else "The ranks'"
    by = ", ".join(f"rank {clock.rank}'s moved by {clock.offset_ms:+.3f} ms" for clock in moved[:4])
    more = f" and {len(moved) - 4} more" * (len(moved) > 4)
    residual = max(clock.residual_ms for clock in analysis.clocks)
    return [f"{hosts} clocks agree to {figures.milliseconds(residual)} ms{'; ' * bool(moved)}{by}{more}"]


def _name(text: str) -> str:
    """Return someone else's name for something, short enough for a header."""
    name = one_line(text)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
