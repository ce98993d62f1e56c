"""Print scaling results: tables, waterfalls as bars, forecasts, remarks."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import drop_columns, heading, print_trimmed
from gpudiag.report.scaling import words

#: Columns that narrow consoles omit, in this order.
_DISPENSABLE = ("median", "warm-up", "steps", "it/min", "jitter", "±", "step ms", "speedup")
_BAR = 30  # characters of a bar of 100 %


def render_scaling(result: Scaling, console: Console) -> None:
    """Print the whole result."""
    console.print(Text(words.title(result), style="bold"))
    console.print(Text(words.machine(result.machine), style="dim"))
    for setting, points in words.groups(result.points):
        _print_heading(setting, console)
        print_trimmed(console, _table(points, console.width))
        for point in points:
            if point.status != "measured":
                console.print(Text(one_line(words.failure(point)), style="yellow"))
        _print_relative(points, console)
    _print_devices(result, console)
    for fall in result.waterfalls:
        _print_waterfall(fall, console)
    _print_forecasts(result, console)
    by_id = {point.id: point for point in result.points}
    if result.durations:
        _print_heading("How long it takes", console)
        for duration in result.durations:
            console.print(Text(words.duration_words(duration, by_id[duration.point])))
    remarks = [remark for remark in result.remarks if remark.code != "failed-point"]  # shown below the tables
    if remarks:
        _print_heading("How far to trust this", console)
        for remark in remarks:
            console.print(Text(f"{one_line(remark.code)}: {one_line(remark.message)}"))


def _print_heading(title: str, console: Console) -> None:
    console.print()
    console.print(heading(title))


def _table(points: list[PointRecord], width: int) -> Table:
    """Return a row per measured point, without the columns that do not fit into `width` characters."""
    rows = [words.cells(point) for point in points if point.status == "measured"]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(words.HEADINGS)}
    drop_columns(columns, _DISPENSABLE, width)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True)
    for name, cells in columns.items():
        widest_cell = max(map(len, cells), default=0)  # a heading may be cut, a figure must not
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True, min_width=widest_cell)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _print_relative(points: list[PointRecord], console: Console) -> None:
    """Print bars of the strategies relative to the fastest strategy, if there are several."""
    ranked = words.relative_performance(points)
    if len(ranked) < 2:
        return
    console.print()
    for point, relative in ranked:
        bar = "█" * max(1, round(_BAR * relative))
        console.print(Text(f"{point.strategy:<16} {100 * relative:5.1f} %  {bar}"))


def _print_devices(result: Scaling, console: Console) -> None:
    """Print the rate of each device alone, and the efficiency of pairs by kind of link."""
    if result.alone:
        _print_heading("Each device alone", console)
        for gpu in result.alone:
            rate, share, mark = words.alone_cells(gpu)
            console.print(Text(f"{gpu.index}  {rate} samples/s, {share} of the median  {mark}".rstrip()))
    if result.links:
        _print_heading("Pairs by link, relative to the sum of both devices alone", console)
        for link in result.links:
            pairs = f"{one_line(link.link)}  {one_line(link.strategy)}  {link.pairs} pair{'s' * (link.pairs != 1)}"
            console.print(Text(f"{pairs}: {words.share(link.efficiency, (link.lowest, link.highest))}"))


def _print_waterfall(fall: Waterfall, console: Console) -> None:
    """Print a waterfall: a bar for the ideal, each loss and the measured result, in percent of the ideal."""
    _print_heading(words.waterfall_title(fall), console)
    level = 0.0
    # The bars exceed 100 % if a loss is negative, or if the result exceeds the ideal.
    scale = _BAR / max(100.0, fall.reached_percent, 100.0 - sum(min(0.0, loss.percent) for loss in fall.losses))
    for name, percent, rate, ms in words.waterfall_rows(fall):
        total = name in {"ideal", "reached"}
        before = 0.0 if total else level
        level = before + percent
        begin, end = sorted((round(scale * before), round(scale * level)))
        # A loss that is printed as 0.0 % has no bar. Every other bar has a character, even beyond the last of `_BAR`.
        bar = " " * begin + ("█" if total else "▒") * max(end - begin, 1 if abs(percent) >= 0.05 else 0)
        lost = "" if total else f"{figures.milliseconds(ms, beside=10)} ms"
        line = f"{name:<18}{percent:z7.1f} %  {bar:<{_BAR + 1}} {figures.throughput(rate):>9}  {lost}"
        console.print(Text(line.rstrip()))
    for note in words.waterfall_notes(fall):
        console.print(Text(note, style="dim"))


def _print_forecasts(result: Scaling, console: Console) -> None:
    """Print a table per forecast strategy, a row per number of devices, and what the forecast assumes."""
    for prospect in result.prospects:
        _print_heading("Forecast for more devices", console)
        console.print(Text(words.prospect_title(prospect)))
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in words.FORECAST_HEADINGS:
            table.add_column(name, justify="left" if name == "network" else "right")
        for forecast in prospect.forecasts:
            table.add_row(*map(Text, words.forecast_cells(forecast)))
        print_trimmed(console, table)
        console.print(Text("Assumed: " + "; ".join(map(one_line, prospect.assumptions)) + ".", style="dim"))
