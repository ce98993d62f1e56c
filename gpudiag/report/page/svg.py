"""Make SVG drawings with ElementTree, so that no string of an input can become markup. Colors are CSS variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from gpudiag.model.sanitize import one_line

#: Maximum width of a drawing that fits on a phone.
_NARROW = 520.0
#: Maximum length of a label.
_LONGEST = 60


class Drawing:
    """An SVG image that shrinks with the page. Lengths are in units of about a pixel. Screen readers read `title`."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        box, label = f"0 0 {width:g} {height:g}", one_line(title)[:400]
        self.root = Element("svg", {"viewBox": box, "role": "img", "aria-label": label, "class": "drawing"})
        # On a phone a wide drawing keeps a minimum width and scrolls, so that its text is large enough to read.
        least = f";min-width:{0.8 * width:g}px" if width > _NARROW else ""
        self.root.set("style", f"max-width:{width:g}px{least}")

    def line(self, begin: tuple[float, float], end: tuple[float, float], style: str, tip: str = "") -> None:
        """Add a straight line; `style` is its CSS class, and `tip` its tooltip."""
        (x1, y1), (x2, y2) = begin, end
        self._add("line", style, tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, points: Sequence[tuple[float, float]], style: str, *, color: str = "") -> None:
        """Add a line through several points."""
        element = self._add("polyline", style)
        element.set("points", " ".join(f"{_number(x)},{_number(y)}" for x, y in points))
        if color:
            element.set("style", f"stroke:var(--{color})")

    def box(  # noqa: PLR0917  # x, y, width and height are read in this order everywhere
        self, x: float, y: float, width: float, height: float, color: str, tip: str = ""
    ) -> None:
        """Add a filled rectangle."""
        element = self._add("rect", "", tip, x=x, y=y, width=max(0.0, width), height=max(0.0, height))
        element.set("style", f"fill:var(--{color})")

    def dot(self, center: tuple[float, float], radius: float, color: str, tip: str = "") -> None:
        """Add a filled circle."""
        element = self._add("circle", "", tip, cx=center[0], cy=center[1], r=radius)
        element.set("style", f"fill:var(--{color})")

    def text(self, at: tuple[float, float], words: str, style: str = "", *, anchor: str = "start") -> None:
        """Add text; `anchor` is start, middle or end."""
        element = self._add("text", style, x=at[0], y=at[1])
        element.set("text-anchor", anchor)
        line = one_line(words)
        element.text = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"

    def markup(self) -> str:
        """Return the image as text for a page."""
        return tostring(self.root, encoding="unicode")

    def _add(self, name: str, style: str, tip: str = "", **numbers: float) -> Element:
        element = SubElement(self.root, name, {"class": style} if style else {})
        for key, value in numbers.items():
            element.set(key, _number(value))
        if tip:
            SubElement(element, "title").text = one_line(tip)[:400]
        return element


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def ticks(high: float, count: int = 5) -> list[float]:
    """Return about `count` round values from 0 to at least `high`.

    >>> ticks(93)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not math.isfinite(high) or high <= 0:
        return [0.0, 1.0]
    rough = high / count
    unit = 10.0 ** math.floor(math.log10(rough))
    # The tolerances keep rounding errors from adding a mark.
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]
