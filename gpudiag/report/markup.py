"""Format Markdown tables and CSV text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from gpudiag.model.sanitize import not_a_formula, one_line

if TYPE_CHECKING:
    from pandas import DataFrame


def escaped(text: str) -> str:
    """Return one line without Markdown syntax."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", one_line(text))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> list[str]:
    """Return the lines of a Markdown table; columns after the first `left` are right-aligned."""
    first, *others = (f"| {' | '.join(map(escaped, line))} |" for line in (headings, *rows))
    marks = ("---" if number < left else "---:" for number in range(len(headings)))
    return [first, f"| {' | '.join(marks)} |", *others]


def csv_text(frame: DataFrame) -> str:
    """Return a frame as CSV with full precision. Missing values are empty, and no cell is a spreadsheet formula."""
    words = {name: frame[name].map(_cell) for name in frame.columns if frame[name].dtype == object}
    return cast("str", frame.assign(**words).to_csv(index=False, lineterminator="\n"))


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return not_a_formula(one_line(value)) if isinstance(value, str) else value
