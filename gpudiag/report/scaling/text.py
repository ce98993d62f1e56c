"""Scaling results as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.sanitize import not_a_formula, one_line
from gpudiag.report import figures
from gpudiag.report.scaling import words

_COLUMNS = (
    *("workload", "framework", "strategy", "mode", "devices", "device_indices", "batch_per_device", "global_batch"),
    *("precision", "memory_format", "data", "status", "samples_per_s", "ci95_low", "ci95_high"),
    *("iterations_per_minute", "mean_ms", "standard_error_ms", "median_ms", "jitter_ms", "steps"),
    *("warmup_steps", "warmup_seconds", "speedup", "speedup_low", "speedup_high"),
    *("efficiency", "efficiency_low", "efficiency_high", "baseline", "parameters", "gradient_bytes", "error", "id"),
)


def to_csv(points: Iterable[PointRecord]) -> str:
    """One row per point; figures in full, missing ones empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for point in points:
        values = {
            **{name: getattr(point, name) for name in _COLUMNS if hasattr(point, name)},
            "device_indices": " ".join(map(str, point.device_indices)),
            "iterations_per_minute": 60e3 / point.step_ms if point.step_ms else None,
        }
        for name in ("speedup", "efficiency"):
            low, high = getattr(point, f"{name}_ci95") or (None, None)
            values |= {f"{name}_low": low, f"{name}_high": high}
        values["ci95_low"], values["ci95_high"] = point.ci95 or (None, None)
        writer.writerow([_cell(values.get(name)) for name in _COLUMNS])
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    return not_a_formula(one_line(value))


def to_markdown(result: Scaling) -> str:
    """The whole result, for documentation and tickets."""
    lines = [f"# {escaped(words.title(result))}", "", escaped(words.machine(result.machine)) + ".", ""]
    for setting, points in words.groups(result.points):
        lines += [f"## {escaped(setting)}", "", *table(words.HEADINGS, map(words.cells, points), left=2), ""]
        ranked = words.relative_performance(points)
        if len(ranked) > 1:
            shares = ", ".join(f"{escaped(point.strategy)} {100 * share:.1f} %" for point, share in ranked)
            lines += [f"On {ranked[0][0].devices} devices, beside the fastest: {shares}.", ""]
    if result.alone:
        rows = [
            (str(gpu.index), figures.rate(gpu.samples_per_s), f"{100 * gpu.relative:.1f} %", "odd" if gpu.odd else "")
            for gpu in result.alone
        ]
        lines += ["## Each device alone", "", *table(("device", "samples/s", "of the median", ""), rows, left=1), ""]
    if result.links:
        links = [
            (link.link, link.strategy, str(link.pairs), words.share(link.efficiency, (link.lowest, link.highest)))
            for link in result.links
        ]
        lines += ["## Pairs by link", "", *table(("link", "strategy", "pairs", "efficiency"), links, left=2), ""]
    if result.waterfalls:
        lines += ["## Waterfall", "", *_waterfalls(result), ""]
    for prospect in result.prospects:
        forecasts = map(words.forecast_cells, prospect.forecasts)
        lines += [f"## More devices: {escaped(words.prospect_title(prospect))}", ""]
        lines += [*table(words.FORECAST_HEADINGS, forecasts, left=0), ""]
        lines += [f"Assumed: {escaped('; '.join(prospect.assumptions))}.", ""]
    by_id = {point.id: point for point in result.points}
    if result.durations:
        lines += ["## How long it takes", ""]
        lines += [f"- {escaped(words.duration_words(time, by_id[time.point]))}" for time in result.durations]
        lines.append("")
    if result.remarks:
        lines += ["## How far to trust this", ""]
        lines += [f"- {escaped(remark.code)}: {escaped(remark.message)}" for remark in result.remarks]
        lines.append("")
    return "\n".join(lines)


def _waterfalls(result: Scaling) -> list[str]:
    """A row per waterfall, all in percent of the ideal; a table for each kind of losses."""
    kinds: dict[tuple[str, ...], list[Waterfall]] = {}
    for fall in result.waterfalls:
        kinds.setdefault(tuple(name for name, *_ in words.waterfall_rows(fall)), []).append(fall)
    lines: list[str] = []
    for names, falls in kinds.items():
        rows = [
            (
                fall.workload,
                fall.strategy,
                str(fall.devices),
                *(f"{percent:z.1f} %" for _, percent, *_ in words.waterfall_rows(fall)),
            )
            for fall in falls
        ]
        notes = dict.fromkeys(f"- {escaped(note)}" for fall in falls for note in fall.notes)
        lines += ["", *table(("workload", "strategy", "devices", *names), rows, left=2), "", *notes]
    return lines[1:]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> list[str]:
    """The lines of a Markdown table; the first `left` columns are words, the others figures."""
    marks = ["---" if number < left else "---:" for number in range(len(headings))]
    lines = [headings, *rows]
    text = [f"| {' | '.join(escaped(cell) for cell in line)} |" for line in lines]
    return [text[0], f"| {' | '.join(marks)} |", *text[1:]]


def escaped(text: str) -> str:
    """One line that is nothing but text in Markdown."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", one_line(text))
