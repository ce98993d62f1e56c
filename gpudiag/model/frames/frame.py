"""A pandas frame of structs or rows; the one place that imports pandas, when a frame is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import inspect

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(columns: dict[str, str], rows: Iterable[dict[str, Any]]) -> DataFrame:
    """A frame with these columns (name → dtype); what a row lacks is missing. Imports pandas."""
    import pandas as pd  # noqa: PLC0415  # half a second, for those only who want tables

    kept = list(rows)
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in kept], dtype=dtype) for name, dtype in columns.items()}
    )


def fields_of(kind: type) -> tuple[inspect.Field, ...]:
    """The fields of a struct, with their types."""
    return inspect.type_info(kind).fields  # type: ignore[attr-defined,no-any-return]  # of structs, which these are


def dtype_of(kind: inspect.Type) -> str:
    """`Int64` has room for what is missing, `int64` and `float64` are what everybody expects."""
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if any(isinstance(one, inspect.IntType) for one in types):
        return "int64" if len(types) == 1 else "Int64"
    return "float64" if any(isinstance(one, inspect.FloatType) for one in types) else "object"
