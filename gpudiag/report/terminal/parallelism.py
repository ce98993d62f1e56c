"""Show communication by role, pipeline stages and the passes of one step in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.model.parallelism import Parallelism, Pass, PassOfStage, PipelineShape
from gpudiag.report import parallel_rows
from gpudiag.report.console import and_more, drop_columns, plain_table
from gpudiag.report.palette import Fill, fills
from gpudiag.report.rank_rows import OVERLAPPED

#: Bucket whose color stands for each direction of a pass.
_COLORS: dict[Pass, str] = {"forward": "launch", "backward": "compute", "both": "communication_transfer"}
_GLYPHS: dict[Pass, str] = {"forward": "▒", "backward": "█", "both": "▓"}
_ASCII_GLYPHS: dict[Pass, str] = {"forward": "+", "backward": "#", "both": "%"}
_NAMES: dict[Pass, str] = {"forward": "forward", "backward": "backward", "both": "forward or backward"}
_IDLE, _ASCII_IDLE = "·", "."
#: Maximum number of characters in a row of the timeline. Longer rows would show no more detail.
_WIDEST = 180
#: Maximum number of ranks in the table, unless all ranks are requested.
_FEW_RANKS = 64
#: Smallest terminal width with a column of calls. In narrower terminals the calls are below the table.
_WIDE = 70


def parallel_sections(
    analysis: Analysis, parallelism: Parallelism, console: Console, *, all_ranks: bool
) -> list[tuple[str, RenderableType | None]]:
    """Return (heading, content) of each section: communication by role, stages, and positions of the ranks."""
    pipeline = parallelism.pipeline
    stages = None if pipeline is None else _stages(analysis, parallelism, pipeline, console)
    return [
        (parallel_rows.TRAFFIC_HEADING, _traffic(parallelism, console.width) if parallelism.traffic else None),
        (parallel_rows.STAGES_HEADING, stages),
        (parallel_rows.RANKS_HEADING, _ranks(parallelism, console.width, all_ranks=all_ranks)),
    ]


def _traffic(parallelism: Parallelism, width: int) -> RenderableType:
    """Return a table of the communication by role. In narrow terminals the calls are in lines below the table."""
    columns, below = parallel_rows.traffic_columns(parallelism), [Text(parallel_rows.TRAFFIC_NOTE, style="dim")]
    if parallelism.pipeline is None:  # otherwise the section about stages has these lines
        below += map(Text, parallel_rows.summary_lines(parallelism))
    if width >= _WIDE:
        return Group(_table(columns, left=("role", parallel_rows.CALLS), folded=parallel_rows.CALLS), *below)
    calls = columns.pop(parallel_rows.CALLS)
    lines = [Text(f"{role}: {words}") for role, words in zip(columns["role"], calls, strict=True)]
    drop_columns(columns, ("data", "size", f"{OVERLAPPED} ms"), width)
    return Group(_table(columns, left=("role",)), *lines, *below)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    return {heading: [row[index] for row in rows] for index, heading in enumerate(headings)}


def _table(columns: Mapping[str, Sequence[str]], *, left: Collection[str] = (), folded: str = "") -> Table:
    """Return a table of columns; only the cells of `folded` may have several lines."""
    table = plain_table()
    for heading in columns:
        justify: JustifyMethod = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=heading != folded, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _stages(analysis: Analysis, parallelism: Parallelism, pipeline: PipelineShape, console: Console) -> RenderableType:
    """Return a line per stage, the bubble, and the passes of one step."""
    columns = _columns(parallel_rows.STAGE_COLUMNS, parallel_rows.stage_rows(analysis, parallelism))
    drop_columns(columns, ("to its peers", "slowest rank", "ranks", "to mean"), console.width)
    timeline = _timeline(pipeline, console)
    below = [Text(), *timeline] if timeline else []
    return Group(_table(columns), *map(Text, parallel_rows.summary_lines(parallelism)), *below)


def _timeline(pipeline: PipelineShape, console: Console) -> list[Text]:
    """Return the passes of one step, a row per stage, with the number of each microbatch where it fits."""
    rows, length_ms = parallel_rows.passes_by_stage(pipeline)
    if not rows:
        return []
    labels = [f"stage {row.stage} " for row in rows]
    margin = max(map(len, labels))
    cells = max(min(console.width - margin, _WIDEST), 1)
    filled, idle = _fills(console)
    lines = [Text(parallel_rows.shown_step(rows, length_ms))]
    for label, row in zip(labels, rows, strict=True):
        line = Text(label.ljust(margin))
        lines.append(line.append_text(timeline_row(row.passes, length_ms, cells, filled, idle)))
    return [*lines, _legend({pass_.direction for row in rows for pass_ in row.passes}, filled, idle)]


def timeline_row(
    passes: Sequence[PassOfStage], length_ms: float, cells: int, filled: Mapping[Pass, Fill], idle: str
) -> Text:
    """Return a row of `cells` characters for `length_ms`. If two passes share a cell, the cell shows the later pass.

    `filled` has the fill of each direction, and `idle` is the character of the other cells.

    Worked example: in 10 cells of 10 ms each, a forward pass of microbatch 0 from 0 to 30 ms is `0▒▒`. A
    forward pass from 95 to 100 ms is `▒` without its number, because one cell has room for the direction only.
    """
    drawn = [(idle, "dim")] * cells
    for pass_ in passes:
        first = min(round(pass_.start_ms / length_ms * cells), cells - 1)
        last = max(round(pass_.end_ms / length_ms * cells), first + 1)
        fill, number = filled[pass_.direction], str(pass_.microbatch)
        drawn[first:last] = [(fill.glyph, fill.style)] * (last - first)
        if len(number) < last - first:
            style = f"black on {fill.style}" if fill.style else ""
            drawn[first : first + len(number)] = [(digit, style) for digit in number]
    row = Text()
    for style, run in groupby(drawn, key=lambda cell: cell[1]):
        row.append("".join(sign for sign, _ in run), style=style)
    return row


def _fills(console: Console) -> tuple[dict[Pass, Fill], str]:
    """Return the fill of each direction and the character of idle time."""
    unicode = console.encoding.lower().startswith("utf")
    glyphs = _GLYPHS if unicode else _ASCII_GLYPHS
    styles = {direction: fills(console)[bucket].style for direction, bucket in _COLORS.items()}
    colored = {direction: Fill(glyph=glyphs[direction], style=styles[direction]) for direction in glyphs}
    return colored, _IDLE if unicode else _ASCII_IDLE


def _legend(directions: Collection[Pass], filled: Mapping[Pass, Fill], idle: str) -> Text:
    """Return the meaning of the characters in the timeline."""
    line = Text()
    for direction, fill in filled.items():
        if direction in directions:
            line.append(fill.glyph, style=fill.style).append(f" {_NAMES[direction]}  ")
    return line.append(f"{idle} idle  0 1 2 microbatch", style="dim")


def _ranks(parallelism: Parallelism, width: int, *, all_ranks: bool) -> RenderableType:
    """Return a table with the position of each rank, and with its compute if the terminal is wide enough."""
    most = len(parallelism.ranks) if all_ranks else _FEW_RANKS
    columns = _columns(parallel_rows.rank_columns(parallelism), parallel_rows.rank_rows(parallelism, most))
    drop_columns(columns, ("to its peers", "compute ms"), width)
    return Group(_table(columns), *and_more([], len(parallelism.ranks) - most))
