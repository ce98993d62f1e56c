"""The report in a terminal: what ran, the verdict, where the time went, why, how far to trust it, and what to do."""

from __future__ import annotations

from collections import Counter

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.layout import print_trimmed, under_headings
from gpudiag.report.palette import fills
from gpudiag.report.rank_rows import rows_of
from gpudiag.report.terminal.bars import legend, stacked_bars
from gpudiag.report.terminal.findings import findings_section, next_section, trust_section, verdict
from gpudiag.report.terminal.ranks import HIDDEN, HIDDEN_WORDS, buckets_seen, hides, rank_table
from gpudiag.report.terminal.traffic import collectives_table, kernels_table, modules_section, wait_lines
from gpudiag.report.verdict import explained_lines

_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_CPU_PROCESS = "CPU process"
_SEPARATOR = " · "
_MOST_SOFTWARE = 6
#: A profiler's overhead below this share of the step needs no figure of its own.
_SAME = 0.01
_LONGEST_NAME = 60


def render_analysis(analysis: Analysis, console: Console, *, all_ranks: bool = False) -> None:
    """Print the whole report on `console`, without the spaces with which tables fill their lines."""
    report = analysis_report(analysis, console, all_ranks=all_ranks)
    print_trimmed(console, report)


def analysis_report(analysis: Analysis, console: Console, *, all_ranks: bool = False) -> Group:
    """The report as one renderable, laid out for this console's width, colours and encoding."""
    rows, note = rows_of(analysis.devices, all_ranks=all_ranks)
    fill = fills(console)
    sections: list[tuple[str, RenderableType]] = []
    if rows:
        buckets = buckets_seen(rows)
        bars = stacked_bars(rows, fill, console.width)
        parts: list[RenderableType] = [bars, legend(buckets, fill, console.width), Text(), rank_table(rows, console)]
        if hides(rows):
            parts.append(Text(f"{HIDDEN}: {HIDDEN_WORDS}", style="dim"))
        parts += [Text(note, style="dim")] if note else []
        explained = explained_lines(analysis)
        parts += [Text(), *(Text(line) for line in explained)] if explained else []
        sections.append(("Where a step's time goes", Group(*parts)))
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    if waits:
        sections.append(("Waits", Group(*waits)))
    if analysis.findings:
        sections.append(("Findings", findings_section(analysis)))
    if analysis.collectives:
        sections.append(("Collectives", collectives_table(analysis.collectives, console.width)))
    if analysis.kernels:
        heading = "Operators" if on_processors(analysis) else "Kernels"
        sections.append((heading, kernels_table(analysis.kernels, heading, console.width)))
    if analysis.modules is not None:
        sections.append(("Modules", modules_section(analysis.modules, console.width)))
    doubts = trust_section(analysis)
    if doubts is not None:
        sections.append(("How far to trust this", doubts))
    sections.append(("Next", next_section(analysis)))
    return Group(*_header(analysis), Text(), verdict(analysis), *under_headings(sections))


def _header(analysis: Analysis) -> list[Text]:
    lines = [Text(what_ran(analysis), style="bold")]
    software = [f"{_name(key)} {_name(value)}" for key, value in analysis.source.software.items()][:_MOST_SOFTWARE]
    if software:
        lines.append(Text(_SEPARATOR.join(software), style="dim"))
    return [*lines, step_line(analysis), *(Text(line, style="dim") for line in evidence_lines(analysis))]


def what_ran(analysis: Analysis) -> str:
    """Workload, strategy, devices and batch in one line."""
    source = analysis.source
    parts = [_name(source.workload or source.title or f"{_FRAMEWORKS.get(analysis.framework, 'Some')} training")]
    parts += [_name(source.strategy)] if source.strategy else []
    parts.append(_devices(analysis))
    parts += [f"batch {source.batch_size_per_device} per device"] if source.batch_size_per_device else []
    return _SEPARATOR.join(parts)


def _devices(analysis: Analysis) -> str:
    names = Counter(_name(device.name or _kind(device.device)) for device in analysis.devices)
    present = " + ".join(f"{count} {figures.TIMES} {name}" for name, count in names.most_common(3)) or "no device"
    missing = analysis.world_size - len(analysis.ranks_present)
    return f"{present} of {analysis.world_size} ranks" if missing > 0 else present


def _kind(device: str) -> str:
    """What a device without a name is: `cuda:3` a GPU, `cpu` a training process."""
    kind = device.partition(":")[0]
    return {"cuda": "GPU", "cpu": _CPU_PROCESS}.get(kind, kind)


def on_processors(analysis: Analysis) -> bool:
    """Whether training threads took the devices' place, whose work is operators and not kernels."""
    return bool(analysis.devices) and all(_kind(device.device) == _CPU_PROCESS for device in analysis.devices)


def step_line(analysis: Analysis) -> Text:
    """The step's time, measured or else estimated without profiling, beside what it was while profiling; throughput."""
    steps = analysis.steps
    profiled = f"{figures.milliseconds(steps.mean_ms)} ms while profiling"
    if steps.unprofiled_mean_ms is not None:
        line = Text("Step ").append(f"{figures.milliseconds(steps.unprofiled_mean_ms)} ms", style="bold")
        line.append(f" ({profiled})")
    else:
        line = Text("Step ").append(profiled, style="bold")
        corrected = steps.corrected_mean_ms
        if corrected is not None and abs(corrected - steps.mean_ms) > _SAME * steps.mean_ms:
            between = ""
            if steps.corrected_interval_ms is not None:
                low, high = (figures.milliseconds(ms) for ms in steps.corrected_interval_ms)
                between = f" ({low}{figures.EN_DASH}{high})"
            line.append(f"{_SEPARATOR}about {figures.milliseconds(corrected)} ms{between} estimated without profiling")
    if analysis.source.samples_per_s is not None:
        line.append(f"{_SEPARATOR}{figures.throughput(analysis.source.samples_per_s)} samples/s")
    line.append(f"{_SEPARATOR}mean of {steps.analysed} step{'s' * (steps.analysed > 1)}" if steps.analysed else "")
    return line


def evidence_lines(analysis: Analysis) -> list[str]:
    """What the steps without profiler tell of the host, and what recording did to the step; a line each, if known."""
    lines = [*compute_lines(analysis), *volume_lines(analysis)]
    if analysis.timed:
        work = "the rest" if on_processors(analysis) else "launching"
        parts = (
            *(("data loading", "input_ms"), ("workers make a step's batches in", "loader_ms")),
            *((work, "host_ms"), ("CPU ahead of the GPU by", "lead_ms")),
        )
        shown = ((words, [getattr(rank, key) for rank in analysis.timed]) for words, key in parts)
        known = [f"{words} {figures.span(values)} ms" for words, values in shown if None not in values]
        if len(known) > on_processors(analysis):  # the rest of nothing is the step
            lines.append(f"Without profiling: {', '.join(known)}")
    cost = analysis.recording
    if cost is not None and cost.unprofiled_ms is not None:
        light = "recording ranges only" if on_processors(analysis) else "recording GPU activity"
        recorded = ((light, cost.light_ms), ("recording operators too", cost.full_ms))
        slowed = [f"{figures.milliseconds(ms)} ms {how}" for how, ms in recorded if ms is not None]
        lines.append(f"Profiling overhead: {figures.milliseconds(cost.unprofiled_ms)} ms without, {', '.join(slowed)}")
    return [*lines, *_clock_lines(analysis)]


def compute_lines(analysis: Analysis) -> list[str]:
    """What a device computes per second, and how much of its peak that is, of a run that counted it."""
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
    """How fast a volume was written, of a run that predicted one, and what a larger one takes at that pace."""
    done = analysis.inference
    if done is None or not done.mvox_per_s:
        return []
    written = f"{figures.thousands(done.voxels)} voxels written in {figures.throughput(done.seconds)} s"
    hours = figures.throughput(1e6 / done.mvox_per_s / 3600)
    return [f"Volume: {written}, {figures.throughput(done.mvox_per_s)} Mvox/s{_SEPARATOR}{hours} h per teravoxel"]


def _clock_lines(analysis: Analysis) -> list[str]:
    """How well the clocks of several hosts were brought together; nothing of one host, whose ranks share theirs."""
    moved = [clock for clock in analysis.clocks if clock.offset_ms]
    if not analysis.clocks or not (moved or len(analysis.source.hosts) > 1):
        return []
    hosts = f"{len(analysis.source.hosts)} hosts, whose" if len(analysis.source.hosts) > 1 else "The ranks'"
    by = ", ".join(f"rank {clock.rank}'s moved by {clock.offset_ms:+.3f} ms" for clock in moved[:4])
    more = f" and {len(moved) - 4} more" * (len(moved) > 4)
    residual = max(clock.residual_ms for clock in analysis.clocks)
    return [f"{hosts} clocks agree to {figures.milliseconds(residual)} ms{'; ' * bool(moved)}{by}{more}"]


def _name(text: str) -> str:
    """Someone else's name for something, short enough for a header."""
    name = one_line(text)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
