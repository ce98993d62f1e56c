"""Drawings as SVG elements. Text goes in as text and is escaped on the way out; colours are the page's own variables.

Built with the standard library's ElementTree, so that no string of a trace or a facts file is ever markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from gpudiag.model.sanitize import one_line

#: Fits a phone as it is.
_NARROW = 520.0
#: No label that a drawing has room for is longer.
_LONGEST = 60


class Drawing:
    """One SVG image in user units of about a pixel; it shrinks with the page and grows no wider than it is.

    Args:
        width, height: of the drawing.
        title: what it shows, for those who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self.root = Element(
            "svg",
            {
                "viewBox": f"0 0 {width:g} {height:g}",
                "role": "img",
                "aria-label": one_line(title)[:400],
                "class": "drawing",
            },
        )
        # A wide drawing scrolls sideways on a phone sooner than its words become too small to read.
        least = f";min-width:{0.8 * width:g}px" if width > _NARROW else ""
        self.root.set("style", f"max-width:{width:g}px{least}")

    def line(self, begin: tuple[float, float], end: tuple[float, float], style: str, tip: str = "") -> None:
        """A straight line of a CSS class."""
        (x1, y1), (x2, y2) = begin, end
        made = self._add("line", style, tip)
        for name, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)):
            made.set(name, _number(value))

    def path(self, points: Sequence[tuple[float, float]], style: str, *, colour: str = "") -> None:
        """A line through several points."""
        made = self._add("polyline", style, "")
        made.set("points", " ".join(f"{_number(x)},{_number(y)}" for x, y in points))
        if colour:
            made.set("style", f"stroke:var(--{colour})")

    def box(  # noqa: PLR0917  # x, y, width and height are read in this order everywhere
        self, x: float, y: float, width: float, height: float, colour: str, tip: str = ""
    ) -> None:
        """A filled rectangle, in one of the page's colours."""
        made = self._add("rect", "", tip)
        for name, value in (("x", x), ("y", y), ("width", max(0.0, width)), ("height", max(0.0, height))):
            made.set(name, _number(value))
        made.set("style", f"fill:var(--{colour})")

    def dot(self, centre: tuple[float, float], radius: float, colour: str, tip: str = "") -> None:
        """A filled circle."""
        made = self._add("circle", "", tip)
        for name, value in (("cx", centre[0]), ("cy", centre[1]), ("r", radius)):
            made.set(name, _number(value))
        made.set("style", f"fill:var(--{colour})")

    def text(self, at: tuple[float, float], words: str, style: str = "", *, anchor: str = "start") -> None:
        """Words; `anchor` is start, middle or end."""
        made = self._add("text", style, "")
        made.set("x", _number(at[0]))
        made.set("y", _number(at[1]))
        made.set("text-anchor", anchor)
        line = one_line(words)
        made.text = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"

    def markup(self) -> str:
        """The whole image as text for a page."""
        return tostring(self.root, encoding="unicode")

    def _add(self, name: str, style: str, tip: str) -> Element:
        made = SubElement(self.root, name, {"class": style} if style else {})
        if tip:
            SubElement(made, "title").text = one_line(tip)[:400]
        return made


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def ticks(high: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `high`, about `count` of them.

    >>> ticks(93)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not math.isfinite(high) or high <= 0:
        return [0.0, 1.0]
    rough = high / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]
