"""Scaling results as Markdown and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.frames import points_frame
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.csv_text import csv_text
from gpudiag.report.scaling import words


def to_csv(points: Iterable[PointRecord]) -> str:
    """One row per point; figures in full, missing ones empty."""
    return csv_text(points_frame(points))


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
            (
                str(gpu.index),
                figures.throughput(gpu.samples_per_s),
                f"{100 * gpu.relative:.1f} %",
                "odd" if gpu.odd else "",
            )
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
