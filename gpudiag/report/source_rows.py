"""Select the source lines to show: lines that findings name, and lines that take the most time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import Analysis
from gpudiag.model.sanitize import one_line
from gpudiag.model.source_lines import SourceLine, SourceLocation
from gpudiag.report import figures

#: A short table omits lines whose time is below this share of the longest line's time.
_SEEN_SHARE = 0.02
#: Maximum number of characters of a line.
_LONGEST = 100
#: Maximum number of lines.
_MOST_LINES = 200
#: Headings of `source_cells`.
SOURCE_COLUMNS = ("line", "ms", "device idle", "source")


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line to show.

    Attributes:
        place: `train.py:12`.
        rank: rank of the line's process.
        ms: time per step (in a worker: per batch) in the line and in the functions that it calls.
        idle_ms: part of `ms` in which the device was idle; None if unknown.
        text: the source, indented by call depth.
        marked: True if a finding names the line.
        span: name of the line's spans in the timeline; "" for a line of a worker.
    """

    place: str
    rank: int
    ms: float
    idle_ms: float | None
    text: str
    marked: bool = False
    span: str = ""


def source_heading(lines: Sequence[SourceLine]) -> str:
    """Return the heading above a table of lines."""
    worker = bool(lines) and lines[0].process == "worker"
    return "Source lines of a DataLoader worker (ms per batch)" if worker else "Source lines (ms per step)"


def source_tables(analysis: Analysis, *, most: int | None = None) -> list[tuple[str, list[SourceRow]]]:
    """Return (heading, rows) of the tables for the training thread and for a DataLoader worker, if they have lines.

    Both tables show the first rank that a finding with a source line names, or else the lowest rank.

    Args:
        analysis: the analysis.
        most: maximum number of rows per table; None for all.
    """
    named = [finding for finding in analysis.findings if finding.source is not None]
    ranks = {line.rank for line in analysis.lines}
    rank = next((rank for finding in named for rank in finding.ranks if rank in ranks), min(ranks, default=0))
    sources = [finding.source for finding in named if finding.source is not None]
    tables = []
    for process in ("training", "worker"):
        lines = [line for line in analysis.lines if line.rank == rank and line.process == process][:_MOST_LINES]
        if lines:
            tables.append((source_heading(lines), _rows(lines, sources, most)))
    return tables


def source_cells(row: SourceRow) -> tuple[str, str, str, str]:
    """Return the cells of a row."""
    idle = "" if row.idle_ms is None else figures.milliseconds(row.idle_ms)
    return (f"{'> ' * row.marked}{row.place}", figures.milliseconds(row.ms), idle, row.text)


def _rows(lines: list[SourceLine], sources: Sequence[SourceLocation], most: int | None) -> list[SourceRow]:
    """Return at most `most` rows (None: all) in the order of `lines`: those of findings, then those with most time."""
    marked = [any((line.file, line.line) == (source.file, source.line) for source in sources) for line in lines]
    longest_ms = max(line.ms_per_step for line in lines)
    shown = [
        index
        for index, line in enumerate(lines)
        if marked[index] or most is None or line.ms_per_step >= _SEEN_SHARE * longest_ms
    ]
    if most is not None:
        shown = sorted(sorted(shown, key=lambda index: (not marked[index], -lines[index].ms_per_step))[:most])
    return [_row(lines[index], marked=marked[index]) for index in shown]


def _row(line: SourceLine, *, marked: bool) -> SourceRow:
    """Return the row of a line; a line without known text has the name of its function."""
    text = one_line(line.source.strip() or line.function)
    return SourceRow(
        place=f"{one_line(line.file).rpartition('/')[2]}:{line.line}",
        rank=line.rank,
        ms=line.ms_per_step,
        idle_ms=line.device_idle_ms,
        text="  " * min(line.depth, 8) + (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"),
        marked=marked,
        span=line.location.words if line.process == "training" else "",
    )
