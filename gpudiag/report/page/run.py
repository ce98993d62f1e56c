"""What a run's part of the page shows, from its analysis and one typical step."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpudiag.model.analysis import Analysis, CollectiveSummary, Finding, Modules
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import UNMARKED_INPUT, StepView
from gpudiag.report import figures
from gpudiag.report import verdict as words
from gpudiag.report.header import (
    estimate_matters,
    header_lines,
    on_processors,
    real_step_ms,
    recorded_steps_note,
    software_line,
    step_line,
    unit_of,
    what_ran,
)
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.module_rows import MODULE_COLUMNS, module_cells, module_rows, rest_of_modules
from gpudiag.report.page.steps import ASSUMED_INPUT, steps_part
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import Row, cells, duration, headings, largest_collectives, largest_kernels, rows_of
from gpudiag.report.terminal.ranks import OVERLAPPED, OVERLAPPED_WORDS, buckets_seen, overlaps
from gpudiag.report.terminal.report import time_heading
from gpudiag.report.terminal.traffic import wait_lines

_COLLECTIVE_HEADINGS = ("collective", "group", "size", "per step", "transfer µs", "wait µs", "busbw GB/s", "peak")
_MOST_KERNELS = 12
_MOST_LINES = 12
_MOST_MODULES = 20
#: What is shorter than this share of a bar cannot be seen hatched.
_SEEN_SHARE = 0.01


def run_part(analysis: Analysis, step: StepView | None, heading: str = "") -> dict[str, Any]:
    """The template's variables. Texts are printable; the template escapes them.

    Args:
        analysis: what to show.
        step: one step to draw; None leaves the timeline out.
        heading: which of several runs this is.
    """
    rows, note = rows_of(analysis.devices)
    buckets = buckets_seen(rows) if rows else []
    unit = "operator" if on_processors(analysis) else "kernel"
    bars = _bars(analysis, rows)
    verdict = words.verdict_of(analysis)
    assumed = any(colour == "unmarked" for _, parts, _ in bars for colour, *_ in parts)
    return {
        "heading": heading,
        "title": what_ran(analysis),
        "subtitle": [step_line(analysis).plain, *header_lines(analysis), software_line(analysis)],
        "verdict": _verdict(analysis, verdict),
        "steps": verdict.steps,
        "path_heading": words.PATH_HEADING,
        "path": verdict.path,
        "time_heading": time_heading(analysis),
        "recorded_note": recorded_steps_note(analysis),
        "explained": words.explained_lines(analysis),
        "overlapped_words": f"{OVERLAPPED}: {OVERLAPPED_WORDS}" if overlaps(rows) else "",
        "cards": _cards(analysis),
        "bars": bars,
        "legend": [
            *((LABELS[bucket], bucket) for bucket in buckets),
            *([(ASSUMED_INPUT, "unmarked")] if assumed else []),
        ],
        "rank_headings": headings(buckets),
        "rank_rows": [cells(row, buckets) for row in rows],
        "rank_note": note,
        "timeline": None if step is None else steps_part(step),
        "findings": [finding_part(finding, analysis) for finding in analysis.findings],
        "waits": [line.plain for line in wait_lines(analysis.waits, analysis.steps.mean_ms)],
        "kernels": _kernels(analysis),
        "kernels_heading": f"Top {unit}s",
        **_modules(analysis.modules),
        "collective_headings": _COLLECTIVE_HEADINGS,
        "collectives": [_collective(call) for call in largest_collectives(analysis.collectives, _MOST_LINES)],
        "doubts": words.doubts(analysis),
    }


def finding_part(finding: Finding, analysis: Analysis | None) -> dict[str, Any]:
    """One finding for the template; without an analysis, of a machine."""
    place = words.where(finding)
    return {
        "severity": finding.severity,
        "title": words.title_of(finding),
        "code": finding.code,
        "ranks": finding.ranks,
        "about": words.about(finding) + ("" if analysis else f" · {finding.confidence} confidence"),
        "savings": "" if analysis is None else words.savings(finding, analysis),
        "where": f"Where: {place}" if place else "",
        "instead": "" if analysis is None else words.or_instead(finding, analysis),
        "evidence": words.evidence_of(finding),
        "advice": finding.advice,
    }


def _verdict(analysis: Analysis, verdict: words.Verdict) -> dict[str, Any]:
    """The verdict for the template: its finding's place, under the sentence that leads the report."""
    lines = {
        "title": verdict.title,
        "gain": f"Gain: {verdict.gain}" if verdict.gain else "",
        "parts": f"Of which {verdict.parts}." if verdict.parts else "",
        "confidence": f"Confidence: {verdict.confidence}." if verdict.confidence else "",
        "where": f"Where: {verdict.where}" if verdict.where else "",
        "instead": verdict.instead,
    }
    if verdict.headline is None:
        return {**lines, "severity": "info" if analysis.source.input_only else "warning", "code": "", "ranks": ()}
    finding = verdict.headline.finding
    return {**lines, "severity": finding.severity, "code": finding.code, "ranks": finding.ranks}


def _cards(analysis: Analysis) -> list[tuple[str, str]]:
    steps = analysis.steps
    unit = unit_of(analysis)
    per = f"per {unit}" if unit != "recording" else "recorded"
    estimated = "" if steps.unprofiled_mean_ms is not None else ", estimated"
    times = [(f"{per}{estimated}", real_step_ms(analysis)), (f"{per}, while profiling", steps.mean_ms)]
    if steps.unprofiled_mean_ms is None and not estimate_matters(analysis):
        times = times[1:]
    cards = [(name, f"{figures.milliseconds(ms)} ms") for name, ms in times]
    if analysis.source.samples_per_s is not None:
        cards.append(("samples/s", figures.throughput(analysis.source.samples_per_s)))
        if steps.unprofiled_mean_ms:
            cards.append(("iterations per minute", figures.thousands(60e3 / steps.unprofiled_mean_ms)))
    if analysis.compute is not None and analysis.compute.mfu_percent is not None:
        cards.append(("model FLOPs utilization (MFU)", f"{figures.rate(analysis.compute.mfu_percent)} %"))
    if analysis.inference is not None:
        cards.append(("Mvox/s written", figures.throughput(analysis.inference.mvox_per_s)))
    names = Counter(one_line(device.name or device.device)[:40] for device in analysis.devices)
    cards += [(f"{name}", f"{count} {figures.TIMES}") for name, count in names.most_common(2)]
    return cards


def _bars(analysis: Analysis, rows: list[Row]) -> list[tuple[str, list[tuple[str, float, str]], str]]:
    """Of each row its label, its parts (colour, percent of the longest step, tip), and its step."""
    longest = max((sum(row.buckets_ms.values()) for row in rows), default=0.0) or 1.0
    assumed = [one.device_ms for one in analysis.portions if (one.bucket, one.name) == ("idle", UNMARKED_INPUT)]
    bars = []
    for place, row in enumerate(rows):
        parts = [(LABELS[bucket], bucket, ms) for bucket, ms in row.buckets_ms.items()]
        if assumed and len(rows) == len(analysis.devices) == len(assumed[0]):
            label, bucket, idle = parts.pop()
            loading = min(duration(assumed[0][place]), idle)
            seen = loading if loading >= _SEEN_SHARE * longest else 0.0
            parts += [(ASSUMED_INPUT, "unmarked", seen), (label, bucket, idle - seen)]
        drawn = [
            (colour, 100 * ms / longest, f"{row.label}, {label}: {figures.milliseconds(ms)} ms")
            for label, colour, ms in parts
            if ms > 0
        ]
        bars.append((row.label, drawn, f"{figures.milliseconds(row.step_ms)} ms"))
    return bars


def _kernels(analysis: Analysis) -> list[tuple[str, list[tuple[str, float, str]], str]]:
    """The same of each kernel: its label, its one part, its figures."""
    kernels = largest_kernels(analysis.kernels, _MOST_KERNELS)
    longest = max((duration(kernel.ms_per_step) for kernel in kernels), default=0.0) or 1.0
    colour = "launch" if on_processors(analysis) else "compute"
    rows = []
    for kernel in kernels:
        ms, name = duration(kernel.ms_per_step), kernel_label(kernel.name, 60)
        calls = duration(kernel.per_step)
        words = f"{figures.milliseconds(ms)} ms, {calls:.4g} call{'s' if calls != 1 else ''}"
        rows.append((name, [(colour, 100 * ms / longest, f"{name}: {words}")], words))
    return rows


def _modules(modules: Modules | None) -> dict[str, Any]:
    """The variables of the part on modules: headings, rows, and a line below them; no rows where nothing is known."""
    if modules is None:
        return {"module_rows": [], "modules_note": ""}
    if modules.reason:
        return {"module_rows": [], "modules_note": f"not known: {modules.reason}"}
    rows, rest = module_rows(modules, _MOST_MODULES)
    note = " ".join(rest_of_modules(modules, rest))
    return {"module_headings": MODULE_COLUMNS, "module_rows": [module_cells(row) for row in rows], "modules_note": note}


def _collective(call: CollectiveSummary) -> list[str]:
    return [
        call.operation,
        f"{call.group or 'default'} ({call.ranks} ranks)",
        figures.size(call.size_bytes),
        f"{duration(call.per_step):.3g}",
        figures.thousands(duration(call.transfer_us)),
        figures.thousands(duration(call.wait_us)),
        figures.rate(call.busbw_gb_per_s),
        figures.rate(call.probe_busbw_gb_per_s),
    ]
