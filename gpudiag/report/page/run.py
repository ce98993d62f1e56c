"""What a run's part of the page shows, from its analysis and one typical step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from gpudiag.model.analysis import BUCKETS, Analysis, CollectiveSummary, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import StepView
from gpudiag.report import figures
from gpudiag.report.evidence import evidence_items
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.page.charts import bars, stacked_bars
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import Row, cells, duration, headings, largest_collectives, largest_kernels, rows_of
from gpudiag.report.terminal.findings import MOST_REASONS, main_finding, title_of, trust_section, worth
from gpudiag.report.terminal.ranks import buckets_seen
from gpudiag.report.terminal.report import evidence_lines, on_processors, step_line, what_ran

_COLLECTIVE_HEADINGS = ("collective", "group", "size", "per step", "transfer µs", "wait µs", "busbw GB/s", "alone")
_MOST_KERNELS = 12
_MOST_LINES = 12
_LONGEST_NAME = 160


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
    return {
        "heading": heading,
        "title": what_ran(analysis),
        "subtitle": [step_line(analysis).plain, *evidence_lines(analysis), _software(analysis)],
        "verdict": _verdict(analysis),
        "cards": _cards(analysis),
        "bars": _bars(rows),
        "legend": [(LABELS[bucket], bucket) for bucket in buckets],
        "rank_headings": headings(buckets),
        "rank_rows": [cells(row, buckets) for row in rows],
        "rank_note": note,
        "step_json": None if step is None else _json(_printable(step)),
        "buckets_json": _json(BUCKETS),
        "step_words": "" if step is None else _step_words(step),
        "step_legend": _step_legend(step),
        "findings": [finding_part(finding, analysis.steps.mean_ms) for finding in analysis.findings],
        "waits": _waits(analysis),
        "kernels": _kernels(analysis),
        "kernels_heading": f"Top {unit}s",
        "collective_headings": _COLLECTIVE_HEADINGS,
        "collectives": [_collective(call) for call in largest_collectives(analysis.collectives, _MOST_LINES)],
        "validity": _validity(analysis),
    }


def finding_part(finding: Finding, step_ms: float | None) -> dict[str, Any]:
    """One finding for the template."""
    evidence = {key: value for key, value in finding.evidence.items() if key != "reason"}
    return {
        "severity": finding.severity,
        "title": title_of(finding),
        "code": finding.code,
        "confidence": finding.confidence,
        "who": figures.ranks(finding.ranks) if finding.ranks else "",
        "cause": finding.cause or "",
        "worth": "" if step_ms is None else worth(finding, step_ms),
        "evidence": evidence_items(evidence),
        "advice": finding.advice,
    }


def _verdict(analysis: Analysis) -> dict[str, str]:
    finding = main_finding(analysis.findings)
    if finding is None:
        return {"severity": "warning", "title": "No finding: these traces do not carry a verdict.", "worth": ""}
    gain = worth(finding, analysis.steps.mean_ms)
    return {"severity": finding.severity, "title": title_of(finding), "worth": gain}


def _cards(analysis: Analysis) -> list[tuple[str, str]]:
    steps = analysis.steps
    times = (
        ("per step, profiled", steps.mean_ms),
        ("per step, unprofiled", steps.unprofiled_mean_ms),
        ("per step, corrected", steps.corrected_mean_ms),
    )
    cards = [(name, f"{figures.milliseconds(ms)} ms") for name, ms in times if ms is not None]
    if analysis.source.samples_per_s is not None:
        cards.append(("samples/s", figures.thousands(analysis.source.samples_per_s)))
        if steps.unprofiled_mean_ms:
            cards.append(("iterations per minute", figures.thousands(60e3 / steps.unprofiled_mean_ms)))
    names = Counter(one_line(device.name or device.device)[:40] for device in analysis.devices)
    cards += [(f"{name}", f"{count} {figures.TIMES}") for name, count in names.most_common(2)]
    return cards


def _software(analysis: Analysis) -> str:
    return " · ".join(f"{name} {version}" for name, version in list(analysis.source.software.items())[:8])


def _bars(rows: list[Row]) -> str:
    if not rows:
        return ""

    def tip(row: Row, bucket: str) -> str:
        return f"{row.label}, {LABELS[bucket]}: {figures.milliseconds(row.buckets_ms[bucket])} ms"

    parts = [
        (row.label, [(bucket, value, tip(row, bucket)) for bucket, value in row.buckets_ms.items() if value > 0])
        for row in rows
    ]
    return stacked_bars("Milliseconds per step by rank and bucket", parts)


def _waits(analysis: Analysis) -> list[list[str]]:
    long = [wait for wait in analysis.waits if duration(wait.ms_per_step) >= 0.01 * duration(analysis.steps.mean_ms)]
    long.sort(key=lambda wait: -wait.ms_per_step)
    return [
        [str(wait.rank), f"rank {wait.on_rank}", figures.milliseconds(wait.ms_per_step), wait.cause or "—"]
        for wait in long[:_MOST_LINES]
        if wait.ms_per_step > 0
    ]


def _kernels(analysis: Analysis) -> str:
    kernels = largest_kernels(analysis.kernels, _MOST_KERNELS)
    if not kernels:
        return ""
    longest = duration(kernels[0].ms_per_step) or 1.0
    rows = [
        (
            kernel_label(kernel.name, 38),
            duration(kernel.ms_per_step) / longest,
            f"{figures.milliseconds(duration(kernel.ms_per_step))} ms, {duration(kernel.per_step):.4g} calls",
            "launch" if on_processors(analysis) else "compute",
        )
        for kernel in kernels
    ]
    return bars("What takes most device time per step", rows)


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


def _validity(analysis: Analysis) -> list[str]:
    known = [f"{warning.code}: {warning.message}" for warning in analysis.validity]
    if trust_section(analysis.validity, analysis.steps) is None:
        return known
    missing = list(analysis.steps.reasons.items())[:MOST_REASONS]
    return [*known, *(f"no {key.removesuffix('_ms').replace('_', ' ')}: {reason}" for key, reason in missing)]


def _step_words(step: StepView) -> str:
    left_out = sum(track.left_out for rank in step.ranks for track in rank.tracks)
    length = figures.milliseconds(step.length / 1e6)
    words = f"Step {step.step}, {length} ms from the first rank's begin to the last one's end."
    if step.ranks_left_out:
        words += f" {step.ranks_left_out} more ranks are not drawn."
    if left_out:
        words += f" {left_out} spans too short to see are left out."
    return words


def _step_legend(step: StepView | None) -> list[tuple[str, str]]:
    if step is None:
        return []
    seen = {
        colour for rank in step.ranks for track in rank.tracks if track.kind == "buckets" for colour in track.colour
    }
    buckets = [(LABELS[bucket], bucket) for index, bucket in enumerate(BUCKETS) if index in seen]
    kinds = {track.kind for rank in step.ranks for track in rank.tracks}
    device = [("communication kernel", "communication")] if "device" in kinds else []
    return [*buckets, *device, ("host operator", "operator"), ("range", "annotation"), ("CUDA call", "runtime")]


def _printable(step: StepView) -> StepView:
    return msgspec.structs.replace(step, names=tuple(one_line(name)[:_LONGEST_NAME] for name in step.names))


def _json(noun: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = msgspec.json.encode(noun).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
