"""Make the page's section about parallelism: grid, communication by role, stages, passes of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudiag.model.analysis import Analysis
from gpudiag.model.parallelism import Parallelism, Pass, PassOfStage, PipelineShape
from gpudiag.report import figures, parallel_rows
from gpudiag.report.page.svg import Drawing, ticks
from gpudiag.report.parallel_rows import StageRow

#: CSS variable of the color of each direction.
_COLORS: dict[Pass, str] = {"forward": "launch", "backward": "compute", "both": "communication_transfer"}
_NAMES: dict[Pass, str] = {"forward": "forward", "backward": "backward", "both": "forward or backward"}
_PASS_COLUMNS = ("stage", "rank", "pass", "microbatch", "from ms", "to ms", "ms")
_MOST_RANKS = 256
#: Sizes of the drawing. A drawing with many passes is wider than usual, and scrolls sideways.
_WIDTH, _WIDEST, _ROOM_OF_PASS = 1100.0, 8000.0, 16.0
_LEFT, _RIGHT, _ROW, _BAR, _AXIS = 64.0, 14.0, 32.0, 24.0, 22.0
#: Width of a digit of a microbatch's number, and of the space around the number.
_DIGIT, _SPACE = 7.0, 5.0


def parallel_part(analysis: Analysis, parallelism: Parallelism) -> dict[str, Any]:
    """Return the template's variables about a job that divides more than its batches."""
    pipeline, traffic = parallelism.pipeline, parallel_rows.traffic_columns(parallelism)
    ranks = parallel_rows.rank_rows(parallelism, _MOST_RANKS)
    omitted = len(parallelism.ranks) - len(ranks)
    return {
        "traffic_heading": parallel_rows.TRAFFIC_HEADING,
        "traffic_columns": list(traffic),
        "traffic": list(zip(*traffic.values(), strict=True)),
        "traffic_note": parallel_rows.TRAFFIC_NOTE,
        "pipeline": None if pipeline is None else _pipeline(analysis, parallelism, pipeline),
        "summary": parallel_rows.summary_lines(parallelism),
        "ranks_heading": parallel_rows.RANKS_HEADING,
        "rank_columns": parallel_rows.rank_columns(parallelism),
        "ranks": ranks,
        "ranks_note": f"and {omitted} more ranks" if omitted > 0 else "",
    }


def _pipeline(analysis: Analysis, parallelism: Parallelism, pipeline: PipelineShape) -> dict[str, Any]:
    """Return the template's variables about stages and passes."""
    rows, length_ms = parallel_rows.passes_by_stage(pipeline)
    directions, several = {pass_.direction for row in rows for pass_ in row.passes}, _have_chunks(rows)
    return {
        "heading": parallel_rows.STAGES_HEADING,
        "columns": parallel_rows.STAGE_COLUMNS,
        "stages": parallel_rows.stage_rows(analysis, parallelism),
        "shown": parallel_rows.shown_step(rows, length_ms) if rows else "",
        "legend": [(_NAMES[direction], color) for direction, color in _COLORS.items() if direction in directions],
        "drawing": draw_passes(rows, length_ms) if rows else "",
        "pass_columns": _PASS_COLUMNS,
        "passes": [cells for row in rows for cells in _pass_rows(row, length_ms, several=several)],
    }


def draw_passes(rows: list[StageRow], length_ms: float) -> str:
    """Draw the passes of one step, which ends at `length_ms`: a row per stage, a box per pass with its microbatch."""
    most = max(len(row.passes) for row in rows)
    width = min(max(_WIDTH, _LEFT + _RIGHT + most * _ROOM_OF_PASS), _WIDEST)
    bottom = len(rows) * _ROW
    drawing = Drawing(width, bottom + _AXIS, f"Passes of {len(rows)} stages by microbatch; the table below has them")
    scale = (width - _LEFT - _RIGHT) / length_ms
    for mark in ticks(length_ms, 10):
        if mark <= length_ms:
            drawing.line((_LEFT + scale * mark, 0), (_LEFT + scale * mark, bottom), "grid")
            drawing.text((_LEFT + scale * mark, bottom + 15), f"{mark:g} ms", "tick", anchor="middle")
    several = _have_chunks(rows)
    for number, row in enumerate(rows):
        top = number * _ROW + (_ROW - _BAR) / 2
        drawing.text((_LEFT - 8, top + _BAR * 0.68), f"stage {row.stage}", "tick", anchor="end")
        for pass_ in row.passes:
            x, room = _LEFT + scale * pass_.start_ms, scale * (pass_.end_ms - pass_.start_ms)
            span = f"{_ms(pass_.start_ms, length_ms)} to {_ms(pass_.end_ms, length_ms)} ms"
            direction = f"{_NAMES[pass_.direction]} of microbatch {_microbatch(pass_, several=several)}"
            tip = f"stage {row.stage} (rank {row.rank}), {direction}: "
            tip += f"{_ms(pass_.end_ms - pass_.start_ms, length_ms)} ms, from {span}"
            # A gap of one unit separates adjacent passes of the same direction.
            drawing.box(x, top, max(room - 1.0, 0.8), _BAR, _COLORS[pass_.direction], tip)
            label = str(pass_.microbatch)
            if room >= len(label) * _DIGIT + _SPACE:
                drawing.text((x + room / 2, top + _BAR * 0.68), label, "pass", anchor="middle")
    return drawing.markup()


def _have_chunks(rows: Sequence[StageRow]) -> bool:
    """Return whether ranks compute several parts of the model."""
    return any(pass_.chunk for row in rows for pass_ in row.passes)


def _microbatch(pass_: PassOfStage, *, several: bool) -> str:
    return f"{pass_.microbatch}, chunk {pass_.chunk}" if several else str(pass_.microbatch)


def _pass_rows(row: StageRow, length_ms: float, *, several: bool) -> list[tuple[str, ...]]:
    """Return the cells of `_PASS_COLUMNS` for each pass. With `several` chunks per rank, cells name the chunk."""
    return [
        (
            str(row.stage),
            str(row.rank),
            _NAMES[pass_.direction],
            _microbatch(pass_, several=several),
            *(_ms(ms, length_ms) for ms in (pass_.start_ms, pass_.end_ms, pass_.end_ms - pass_.start_ms)),
        )
        for pass_ in row.passes
    ]


def _ms(value: float, length_ms: float) -> str:
    return figures.milliseconds(value, beside=length_ms)
