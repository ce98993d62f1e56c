"""Frames as CSV: figures in full, missing ones empty, and no cell that a spreadsheet would run."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpudiag.model.sanitize import not_a_formula, one_line

if TYPE_CHECKING:
    from pandas import DataFrame


def csv_text(frame: DataFrame) -> str:
    """All rows under the names of the columns; of a tuple its items with spaces between."""
    words = {name: frame[name].map(_cell) for name in frame.columns if frame[name].dtype == object}
    return cast("str", frame.assign(**words).to_csv(index=False, lineterminator="\n"))


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return not_a_formula(one_line(value)) if isinstance(value, str) else value
