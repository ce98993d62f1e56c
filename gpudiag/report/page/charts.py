"""Charts: curves with intervals, stacked bars, the waterfall, bars of shares. Each returns a finished drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpudiag.report import figures
from gpudiag.report.page.svg import Drawing, ticks

_WIDTH = 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 30.0, 38.0
#: The page has this many colours for series.
SERIES = 8


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One curve: (x, y, low, high) by x, and which of the page's series colours it has."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    colour: int


def curves(
    title: str,
    series: Sequence[Series],
    *,
    ideal: Callable[[float], float] | None,
    y_label: str,
    percent: bool = False,
) -> str:
    """Curves over numbers of devices (logarithmic, base 2), with 95 % intervals and the ideal as a dashed line.

    Args:
        title: what is shown, for screen readers.
        series: at least one, with at least one point each.
        ideal: the ideal value for a number of devices.
        y_label: of the vertical axis.
        percent: y is a share, shown in percent.
    """
    xs = sorted({x for curve in series for x, *_ in curve.points})
    high = max(point[3] for curve in series for point in curve.points)
    if ideal is not None:
        high = max(high, *(ideal(x) for x in xs))
    marks = ticks(1.0 if percent and high <= 1.05 else high)
    height = 300.0
    drawing = Drawing(_WIDTH, height, title)
    room, rise = _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    places = {x: _LEFT + room * (0.5 + i) / len(xs) for i, x in enumerate(xs)}

    def y(value: float) -> float:
        return _TOP + rise * (1 - min(value, marks[-1] * 1.04) / marks[-1])

    for mark in marks:
        drawing.line((_LEFT, y(mark)), (_WIDTH - _RIGHT, y(mark)), "grid")
        words = f"{100 * mark:.0f} %" if percent else figures.thousands(mark) if marks[-1] >= 10 else f"{mark:g}"
        drawing.text((_LEFT - 6, y(mark) + 4), words, "tick", anchor="end")
    for x, place in places.items():
        drawing.text((place, height - _BOTTOM + 17), f"{x:g}", "tick", anchor="middle")
    drawing.text((_LEFT + room / 2, height - 4), "devices", "axis", anchor="middle")
    drawing.text((6, 12), y_label, "axis")
    if ideal is not None:
        drawing.path([(places[x], y(ideal(x))) for x in xs], "ideal")
    for curve in series:
        colour = f"s{curve.colour % SERIES}"
        line = [(places[x], y(value)) for x, value, _, _ in curve.points]
        drawing.path(line, "curve", colour=colour)
        for x, value, low, top in curve.points:
            drawing.line((places[x], y(low)), (places[x], y(top)), "whisker")
            words = f"{100 * value:.1f} %" if percent else figures.throughput(value)
            drawing.dot((places[x], y(value)), 4, colour, f"{curve.name}, {x:g} devices: {words}")
    return drawing.markup()


def waterfall(title: str, rows: Sequence[tuple[str, float, str]], colours: Sequence[str]) -> str:
    """From the ideal (first row) down to what was reached (last row), in percent; rows are (name, percent, tip)."""
    label, bar, gap = 112.0, 21.0, 7.0
    width = 460.0  # all of it fits on a phone: the losses are at its right end
    levels = [rows[0][1]]
    for _, percent, _ in rows[1:-1]:
        levels.append(levels[-1] + percent)
    most = max(100.0, *levels, rows[-1][1])
    scale = (width - label - 58) / most
    drawing = Drawing(width, len(rows) * (bar + gap), title)
    for number, ((name, percent, tip), colour) in enumerate(zip(rows, colours, strict=True)):
        top = number * (bar + gap)
        total = number in (0, len(rows) - 1)
        before = 0.0 if total else levels[number - 1]
        after = percent if total else levels[number]
        low, high = sorted((before, after))
        drawing.text((label - 8, top + bar * 0.7), name, "tick", anchor="end")
        drawing.box(label + scale * low, top, max(scale * (high - low), 1.0), bar, colour, tip)
        words = f"{percent:.1f} %" if total else f"{percent + 0.0:+.1f} %".replace("-", figures.MINUS)
        if not total and abs(percent) < 0.05:
            words = "0 %"
        drawing.text((label + scale * high + 6, top + bar * 0.7), words, "tick")
        if number < len(rows) - 1:
            edge = label + scale * (levels[number] if number < len(levels) else after)
            drawing.line((edge, top + bar), (edge, top + bar + gap), "grid")
    return drawing.markup()


#: Width of a letter of a label, in the font's size of the page; wide enough for most.
_LETTER = 6.9


def bars(title: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: (label, value from 0 to 1 of the longest, words at its end, colour)."""
    bar, gap = 20.0, 7.0
    width = 720.0
    label = min(300.0, 16 + _LETTER * max((len(name) for name, *_ in rows), default=0))
    drawing = Drawing(width, max(1, len(rows)) * (bar + gap), title)
    scale = width - label - 170
    for number, (name, value, words, colour) in enumerate(rows):
        top = number * (bar + gap)
        drawing.text((label - 8, top + bar * 0.7), name, "tick", anchor="end")
        drawing.box(label, top, max(1.0, scale * value), bar, colour, f"{name}: {words}")
        drawing.text((label + scale * value + 6, top + bar * 0.7), words, "tick")
    return drawing.markup()
