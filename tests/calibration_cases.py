"""Cases of figures that verdicts hang on: what comes out just below each figure and just above it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ("Contract", "Physical", "Statistical", "Definition", "Measured", "Judgement")


class Cases:
    """Cases by the figure's name, each a function of a value that lies near it."""

    def __init__(self, figures: Any) -> None:
        self._figures = figures
        self.known: dict[str, tuple[Callable[[Any], object], float, float]] = {}

    def of(self, name: str, below: float | None = None, above: float | None = None) -> Callable[..., Any]:
        """The case of a figure: at 1 % below and above it, at the whole numbers beside it, or at the values given."""
        value = getattr(self._figures, name)
        near = (value - 1, value + 1) if isinstance(value, int) and value < 100 else (0.99 * value, 1.01 * value)
        values = near if below is None or above is None else (below, above)

        def keep(function: Callable[[Any], object]) -> Callable[[Any], object]:
            assert name not in self.known
            self.known[name] = (function, *values)
            return function

        return keep

    def differ(self, name: str) -> bool:
        """Whether what comes out below the figure is something else than above it."""
        function, below, above = self.known[name]
        return bool(function(below) != function(above))


def figures_in(path: Path) -> dict[str, str]:
    """Name → the text below it, of each figure of a module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {}
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[one.targets[0].id] = str(text)
    return found


def numbers_in(path: Path) -> set[str]:
    """The module's constants in which a number stands."""
    found = set()
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            values = [part.value for part in ast.walk(one.value) if isinstance(part, ast.Constant)]
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found
