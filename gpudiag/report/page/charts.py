"""Draw charts: curves with intervals, waterfalls, horizontal bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from gpudiag.report import figures
from gpudiag.report.page.svg import Drawing, ticks

_WIDTH, _HEIGHT = 430.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 30.0, 38.0
#: Number of colors for series on the page.
SERIES_COLORS = 8
#: Width of a wide letter in the page's font, in units of the drawing.
_LETTER = 6.9


class PlottedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Points (x, y, low and high end of the 95 % interval) sorted by x, and the index of the page's series color."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    color: int


def curves(
    title: str,
    series: Sequence[PlottedCurve],
    *,
    ideal: Callable[[float], float] | None,
    y_label: str,
    percent: bool = False,
) -> str:
    """Draw curves over the number of devices, with 95 % intervals, and the ideal as a dashed line.

    If `percent`, values are shares (1 = 100 %). `ideal` maps a number of devices to the best value; None: no ideal.
    Values above 1.04 * (the highest mark) are drawn at this height, so that they stay inside the drawing.
    """
    xs = sorted({x for curve in series for x, *_ in curve.points})
    ideals = [] if ideal is None else [ideal(x) for x in xs]
    highest = _highest(series, ideals)
    # An efficiency of up to 105 % needs no mark above 100 %.
    marks = ticks(1.0 if percent and highest <= 1.05 else highest)
    drawing = Drawing(_WIDTH, _HEIGHT, title)
    room, rise = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    columns = {x: _LEFT + room * (0.5 + i) / len(xs) for i, x in enumerate(xs)}

    def y(value: float) -> float:
        return _TOP + rise * (1 - min(value, marks[-1] * 1.04) / marks[-1])

    for mark in marks:
        drawing.line((_LEFT, y(mark)), (_WIDTH - _RIGHT, y(mark)), "grid")
        drawing.text((_LEFT - 6, y(mark) + 4), _tick(mark, marks[-1], percent=percent), "tick", anchor="end")
    for x, column in columns.items():
        drawing.text((column, _HEIGHT - _BOTTOM + 17), f"{x:g}", "tick", anchor="middle")
    drawing.text((_LEFT + room / 2, _HEIGHT - 4), "devices", "axis", anchor="middle")
    drawing.text((6, 12), y_label, "axis")
    if ideals:
        drawing.path([(columns[x], y(value)) for x, value in zip(xs, ideals, strict=True)], "ideal")
    for curve in series:
        color = f"s{curve.color % SERIES_COLORS}"
        drawing.path([(columns[x], y(value)) for x, value, _, _ in curve.points], "curve", color=color)
        for x, value, low, top in curve.points:
            drawing.line((columns[x], y(low)), (columns[x], y(top)), "whisker")
            tip = f"{curve.name}, {x:g} devices: {_figure(value, percent=percent)}"
            drawing.dot((columns[x], y(value)), 4, color, tip)
    return drawing.markup()


def _highest(series: Sequence[PlottedCurve], ideals: Sequence[float]) -> float:
    return max([*(top for curve in series for *_, top in curve.points), *ideals])


def _figure(value: float, *, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else figures.throughput(value)


def _tick(mark: float, highest: float, *, percent: bool) -> str:
    if percent:
        return f"{100 * mark:.0f} %"
    return figures.thousands(mark) if highest >= 10 else f"{mark:g}"


def waterfall(title: str, rows: Sequence[tuple[str, float, str]], colors: Sequence[str]) -> str:
    """Draw losses from the ideal (first row) to the measured result (last row).

    Rows are (name, percent, tooltip), each with a color of `colors`.
    """
    label, bar, gap = 112.0, 21.0, 7.0
    width = 460.0  # fits on a phone without scrolling to the losses, which are at the right end
    # The percents of losses are negative, so that the bar of a loss ends at the sum of all rows up to this loss.
    levels = [*accumulate(percent for _, percent, _ in rows[:-1]), rows[-1][1]]
    scale = (width - label - 58) / max(100.0, *levels)  # 58: room for the figure at the end of a bar
    drawing = Drawing(width, len(rows) * (bar + gap), title)
    last = len(rows) - 1
    for number, ((name, percent, tip), color) in enumerate(zip(rows, colors, strict=True)):
        top = number * (bar + gap)
        total = number in (0, last)
        low, high = sorted((0.0 if total else levels[number - 1], levels[number]))
        drawing.text((label - 8, top + bar * 0.7), name, "tick", anchor="end")
        drawing.box(label + scale * low, top, max(scale * (high - low), 1.0), bar, color, tip)
        words = f"{percent:.1f} %" if total else _loss(percent)
        drawing.text((label + scale * high + 6, top + bar * 0.7), words, "tick")
        if number < last:
            edge = label + scale * levels[number]
            drawing.line((edge, top + bar), (edge, top + bar + gap), "grid")
    return drawing.markup()


def _loss(percent: float) -> str:
    return "0 %" if abs(percent) < 0.05 else f"{percent:+.1f} %".replace("-", figures.MINUS)


def bars(title: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Draw horizontal bars. Rows are (label, length relative to the longest, text at its end, color)."""
    bar, gap = 20.0, 7.0
    width = 720.0
    label = min(300.0, 16 + _LETTER * max((len(name) for name, *_ in rows), default=0))
    drawing = Drawing(width, max(1, len(rows)) * (bar + gap), title)
    scale = width - label - 170  # room for the text at the end of a bar
    for number, (name, value, words, color) in enumerate(rows):
        top = number * (bar + gap)
        drawing.text((label - 8, top + bar * 0.7), name, "tick", anchor="end")
        drawing.box(label, top, max(1.0, scale * value), bar, color, f"{name}: {words}")
        drawing.text((label + scale * value + 6, top + bar * 0.7), words, "tick")
    return drawing.markup()
