"""Write scaling results as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.frames import points_frame
from gpudiag.report.markup import csv_text, escaped, markdown_table
from gpudiag.report.scaling import words


def to_csv(points: Iterable[PointRecord]) -> str:
    """Return one row per point, with full precision."""
    return csv_text(points_frame(points))


def to_markdown(result: Scaling) -> str:
    """Return the whole result."""
    by_id = {point.id: point for point in result.points}
    durations = [f"- {escaped(words.duration_words(time, by_id[time.point]))}" for time in result.durations]
    remarks = [f"- {escaped(remark.code)}: {escaped(remark.message)}" for remark in result.remarks]
    lines = [f"# {escaped(words.title(result))}", "", escaped(words.machine(result.machine)) + ".", ""]
    lines += [line for setting, points in words.groups(result.points) for line in _group(setting, points)]
    lines += _devices(result)
    lines += ["## Waterfall", "", *_waterfalls(result), ""] if result.waterfalls else []
    for prospect in result.prospects:
        forecasts = map(words.forecast_cells, prospect.forecasts)
        lines += [f"## More devices: {escaped(words.prospect_title(prospect))}", ""]
        lines += [*markdown_table(words.FORECAST_HEADINGS, forecasts, left=0), ""]
        lines += [f"Assumed: {escaped('; '.join(prospect.assumptions))}.", ""]
    lines += ["## How long it takes", "", *durations, ""] if durations else []
    lines += ["## How far to trust this", "", *remarks, ""] if remarks else []
    return "\n".join(lines)


def _group(setting: str, points: list[PointRecord]) -> list[str]:
    lines = [f"## {escaped(setting)}", "", *markdown_table(words.HEADINGS, map(words.cells, points), left=2), ""]
    ranked = words.relative_performance(points)
    if len(ranked) > 1:
        shares = ", ".join(f"{escaped(point.strategy)} {100 * share:.1f} %" for point, share in ranked)
        lines += [f"On {ranked[0][0].devices} devices, relative to the fastest: {shares}.", ""]
    return lines


def _devices(result: Scaling) -> list[str]:
    """Return the rows of single devices and of links."""
    lines = []
    if result.alone:
        headings = ("device", "samples/s", "of the median", "note")
        rows = [(str(gpu.index), *words.alone_cells(gpu)) for gpu in result.alone]
        lines += ["## Each device alone", "", *markdown_table(headings, rows, left=1), ""]
    if result.links:
        links = [
            (link.link, link.strategy, str(link.pairs), words.share(link.efficiency, (link.lowest, link.highest)))
            for link in result.links
        ]
        headings = ("link", "strategy", "pairs", "efficiency")
        lines += ["## Pairs by link", "", *markdown_table(headings, links, left=2), ""]
    return lines


def _waterfalls(result: Scaling) -> list[str]:
    """Return a row per waterfall in percent of the ideal. Waterfalls with the same set of losses share a table."""
    kinds: dict[tuple[str, ...], list[Waterfall]] = {}
    for fall in result.waterfalls:
        kinds.setdefault(tuple(name for name, *_ in words.waterfall_rows(fall)), []).append(fall)
    lines: list[str] = []
    for names, falls in kinds.items():
        rows = []
        for fall in falls:
            percents = (f"{percent:z.1f} %" for _, percent, *_ in words.waterfall_rows(fall))
            rows.append((fall.workload, fall.strategy, str(fall.devices), *percents))
        notes = dict.fromkeys(f"- {escaped(note)}" for fall in falls for note in fall.notes)
        headings = ("workload", "strategy", "devices", *names)
        lines += ["", *markdown_table(headings, rows, left=2), "", *notes]
    return lines[1:]  # without the empty line before the first table
