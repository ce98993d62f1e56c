"""Define the outcomes just below and just above each calibrated threshold."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ("Contract", "Physical", "Statistical", "Definition", "Measured", "Judgement")


class Cases:
    """Cases by the name of their threshold. Each case is a function of a value near the threshold."""

    def __init__(self, figures: Any) -> None:
        self._figures = figures
        self.known: dict[str, tuple[Callable[[Any], object], float, float]] = {}

    def of(self, name: str, below: float | None = None, above: float | None = None) -> Callable[..., Any]:
        """Register a function whose outcomes are compared below and above a threshold.

        By default the two values are 1 below and above the threshold if it is an integer below 100, else 1 % below and
        above.
        """
        value = getattr(self._figures, name)
        near = (value - 1, value + 1) if isinstance(value, int) and value < 100 else (0.99 * value, 1.01 * value)
        values = near if below is None or above is None else (below, above)

        def keep(function: Callable[[Any], object]) -> Callable[[Any], object]:
            assert name not in self.known
            self.known[name] = (function, *values)
            return function

        return keep

    def differ(self, name: str) -> bool:
        """Return True if the outcomes below and above the threshold differ."""
        function, below, above = self.known[name]
        return bool(function(below) != function(above))


def figures_in(path: Path) -> dict[str, str]:
    """Return name of a threshold → its documentation, the string literal after its definition ("" if missing)."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    entries = {}
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            entries[one.targets[0].id] = str(text)
    return entries


def numbers_in(path: Path) -> set[str]:
    """Return the names of the module's constants whose definitions contain numbers."""
    entries = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            values = [part.value for part in ast.walk(statement.value) if isinstance(part, ast.Constant)]
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                entries |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return entries
