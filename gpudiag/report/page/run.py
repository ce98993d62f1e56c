"""Make the run's section of the page from its analysis and one typical step.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpudiag.model.analysis import Analysis, CollectiveSummary, Finding, Modules
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import UNMARKED_INPUT, StepView
from gpudiag.report import figures, header, rank_rows
from gpudiag.report import verdict as words
from gpudiag.report.compute_rows import compute_columns, compute_rows
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.module_rows import MODULE_COLUMNS, module_cells, module_rows, rest_of_modules
from gpudiag.report.page.steps import ASSUMED_INPUT, LONGEST_NAME, steps_part
from gpudiag.report.palette import LABELS
from gpudiag.report.source_rows import SOURCE_COLUMNS, source_cells, source_tables
from gpudiag.report.terminal.traffic import wait_lines
from gpudiag.report.try_rows import TRIES_HEADING, TRY_COLUMNS, try_rows

_COLLECTIVE_HEADINGS = ("collective", "group", "size", "per step", "transfer µs", "wait µs", "busbw GB/s", "peak")
_MOST_KERNELS = 12
_MOST_LINES = 12
_MOST_MODULES = 20
#: Smallest hatched segment, as a share of the longest bar. Hatching of smaller segments is invisible.
_SEEN_SHARE = 0.01

#: Label, segments (color, percent of the longest bar, tooltip), and text at the end.
Bar = tuple[str, list[tuple[str, float, str]], str]


def run_part(analysis: Analysis, step: StepView | None, heading: str = "") -> dict[str, Any]:
    """Return the template's variables, whose texts the template escapes. Without `step` there is no timeline."""
    rows, note = rank_rows.rows_of(analysis.devices)
    buckets = rank_rows.buckets_seen(rows) if rows else []
    bars = _bars(analysis, rows)
    verdict = words.verdict_of(analysis)
    assumed = any(color == "unmarked" for _, segments, _ in bars for color, *_ in segments)
    return {
        "heading": heading,
        "title": header.what_ran(analysis),
        "subtitle": [header.step_line(analysis).plain, *header.header_lines(analysis), header.software_line(analysis)],
        "verdict": _verdict(analysis, verdict),
        "steps": verdict.steps,
        "path_heading": words.PATH_HEADING,
        "path": verdict.path,
        "time_heading": header.time_heading(analysis),
        "explained": words.explained_lines(analysis),
        "cards": _cards(analysis),
        "bars": bars,
        "legend": [
            *((LABELS[bucket], bucket) for bucket in buckets),
            *([(ASSUMED_INPUT, "unmarked")] if assumed else []),
        ],
        "rank_headings": rank_rows.headings(buckets),
        "rank_rows": [rank_rows.cells(row, buckets) for row in rows],
        "rank_notes": list(filter(None, (header.recorded_steps_note(analysis), rank_rows.overlapped_note(rows), note))),
        "source_headings": SOURCE_COLUMNS,
        "source_tables": [
            (heading, [(*source_cells(row), one_line(row.span)[:LONGEST_NAME], row.rank) for row in rows])
            for heading, rows in source_tables(analysis)
        ],
        "timeline": None if step is None else steps_part(step),
        "parallel": _parallel(analysis),
        "findings": [finding_part(finding, analysis) for finding in analysis.findings],
        "waits": [line.plain for line in wait_lines(analysis.waits, analysis.steps.mean_ms)],
        "compute_headings": compute_columns(analysis),
        "compute_rows": compute_rows(analysis),
        "tries": (TRIES_HEADING, TRY_COLUMNS, try_rows(analysis)),
        "kernels": _kernels(analysis),
        "kernels_heading": "Top operators" if header.on_processors(analysis) else "Top kernels",
        **_modules(analysis.modules),
        "collective_headings": _COLLECTIVE_HEADINGS,
        "collectives": [_collective(call) for call in rank_rows.largest_collectives(analysis.collectives, _MOST_LINES)],
        "doubts": words.doubts(analysis),
    }


def finding_part(finding: Finding, analysis: Analysis | None) -> dict[str, Any]:
    """Return a finding for the template. `analysis` is None for a finding about a machine."""
    location = words.where(finding)
    lines = () if analysis is None else (words.savings(finding, analysis), words.or_instead(finding, analysis))
    return {
        "severity": finding.severity,
        "title": words.title_of(finding),
        "code": finding.code,
        "ranks": finding.ranks,
        "about": words.about(finding) + ("" if analysis else f" · {finding.confidence} confidence"),
        "lines": [line for line in (*lines[:1], location and f"Where: {location}", *lines[1:]) if line],
        "evidence": words.evidence_of(finding),
        "advice": finding.advice,
    }


def _parallel(analysis: Analysis) -> dict[str, Any] | None:
    """Return the section about the job's grid; None if the job divides only its batches."""
    if analysis.parallelism is None:
        return None
    from gpudiag.report.page.parallelism import parallel_part  # noqa: PLC0415  # most jobs divide batches

    return parallel_part(analysis, analysis.parallelism)


def _verdict(analysis: Analysis, verdict: words.ReportVerdict) -> dict[str, Any]:
    """Return the verdict for the template, with the code and ranks of its finding."""
    lines = {"title": verdict.title, "lines": words.verdict_lines(verdict)}
    if verdict.headline is None:
        return {**lines, "severity": "info" if analysis.source.input_only else "warning", "code": "", "ranks": ()}
    finding = verdict.headline.finding
    return {**lines, "severity": finding.severity, "code": finding.code, "ranks": finding.ranks}


def _cards(analysis: Analysis) -> list[tuple[str, str]]:
    """Return (label, figure) of step times, throughput, utilization and devices (up to two models)."""
    steps = analysis.steps
    unit = header.unit_of(analysis)
    per = f"per {unit}" if unit != "recording" else "recorded"
    estimated = "" if steps.unprofiled_mean_ms is not None else ", estimated"
    cards = [(f"{per}, while profiling", f"{figures.milliseconds(steps.mean_ms)} ms")]
    if steps.unprofiled_mean_ms is not None or header.estimate_matters(analysis):
        cards.insert(0, (f"{per}{estimated}", f"{figures.milliseconds(header.real_step_ms(analysis))} ms"))
    if analysis.source.samples_per_s is not None:
        cards.append(("samples/s", figures.throughput(analysis.source.samples_per_s)))
        if steps.unprofiled_mean_ms:
            cards.append(("iterations per minute", figures.thousands(60e3 / steps.unprofiled_mean_ms)))
    if analysis.compute is not None and analysis.compute.mfu_percent is not None:
        cards.append(("model FLOPs utilization (MFU)", f"{figures.rate(analysis.compute.mfu_percent)} %"))
    if analysis.inference is not None:
        cards.append(("Mvox/s written", figures.throughput(analysis.inference.mvox_per_s)))
    names = Counter(one_line(device.name or device.device)[:40] for device in analysis.devices)
    return [*cards, *((name, f"{count} {figures.TIMES}") for name, count in names.most_common(2))]


def _bars(analysis: Analysis, rows: list[rank_rows.RankRow]) -> list[Bar]:
    """Return a bar per row. Assumed data loading is a separate segment beside the idle time."""
    longest = max((sum(row.buckets_ms.values()) for row in rows), default=0.0) or 1.0
    assumed = _assumed_input_ms(analysis)
    if len(assumed) != len(rows):  # unknown, or the rows are a selection of the devices
        assumed = [0.0] * len(rows)
    bars = []
    for row, loading_ms in zip(rows, assumed, strict=True):
        loading = min(loading_ms, row.buckets_ms["idle"])
        unmarked = loading if loading >= _SEEN_SHARE * longest else 0.0
        segments = [(LABELS[bucket], bucket, ms) for bucket, ms in row.buckets_ms.items() if bucket != "idle"]
        segments += [(ASSUMED_INPUT, "unmarked", unmarked), ("idle", "idle", row.buckets_ms["idle"] - unmarked)]
        drawn = [
            (color, 100 * ms / longest, f"{row.label}, {label}: {figures.milliseconds(ms)} ms")
            for label, color, ms in segments
            if ms > 0
        ]
        bars.append((row.label, drawn, f"{figures.milliseconds(row.step_ms)} ms"))
    return bars


def _assumed_input_ms(analysis: Analysis) -> list[float]:
    """Return for each device the idle time in ms that is probably data loading without marks; [] if unknown."""
    for portion in analysis.portions:
        if (portion.bucket, portion.name) == ("idle", UNMARKED_INPUT) and len(portion.device_ms) == len(
            analysis.devices
        ):
            return [rank_rows.duration(ms) for ms in portion.device_ms]
    return []


def _kernels(analysis: Analysis) -> list[Bar]:
    """Return a bar for each of the longest kernels, or operators on CPUs."""
    kernels = rank_rows.largest_kernels(analysis.kernels, _MOST_KERNELS)
    longest = max((rank_rows.duration(kernel.ms_per_step) for kernel in kernels), default=0.0) or 1.0
    color = "launch" if header.on_processors(analysis) else "compute"
    bars = []
    for kernel in kernels:
        ms, name = rank_rows.duration(kernel.ms_per_step), kernel_label(kernel.name, 60)
        calls = rank_rows.duration(kernel.per_step)
        text = f"{figures.milliseconds(ms)} ms, {calls:.4g} call{'s' if calls != 1 else ''}"
        bars.append((name, [(color, 100 * ms / longest, f"{name}: {text}")], text))
    return bars


def _modules(modules: Modules | None) -> dict[str, Any]:
    """Return the template's variables about modules."""
    if modules is None:
        return {"module_rows": [], "modules_note": ""}
    if modules.reason:
        return {"module_rows": [], "modules_note": f"not known: {modules.reason}"}
    rows, rest = module_rows(modules, _MOST_MODULES)
    note = " ".join(rest_of_modules(modules, rest))
    return {"module_headings": MODULE_COLUMNS, "module_rows": [module_cells(row) for row in rows], "modules_note": note}


def _collective(call: CollectiveSummary) -> list[str]:
    """Return the cells of `_COLLECTIVE_HEADINGS`."""
    return [
        call.operation,
        f"{call.group or 'default'} ({call.ranks} ranks)",
        figures.size(call.size_bytes),
        f"{rank_rows.duration(call.per_step):.3g}",
        figures.thousands(rank_rows.duration(call.transfer_us)),
        figures.thousands(rank_rows.duration(call.wait_us)),
        figures.rate(call.busbw_gb_per_s),
        figures.rate(call.probe_busbw_gb_per_s),
    ]
