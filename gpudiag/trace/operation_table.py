"""Read tables of operations (Parquet) in the format of ByteDance-Seed/StragglerAnalysis: one row per operation.

The columns are dp_rank, stage, rank, step, optype, start_ts and duration (seconds), seq_id, mc, mb_id (microbatch), and
gmc (part of the model). Reading Parquet requires pyarrow, an optional dependency: `pip install 'gpudiag[tables]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import GpudiagError, NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.parallelism.operations import KIND_CODES, Integers, OperationTable
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.model.sanitize import sanitize_text, with_escapes
from gpudiag.trace.unpack import ReadLimits

_MAGIC = b"PAR1"
#: Columns that are read. The other columns (`seq_id`, `mc`) follow from them.
_INTEGERS = ("dp_rank", "stage", "rank", "step", "mb_id", "gmc")
_SECONDS = ("start_ts", "duration")
_COLUMNS = (*_INTEGERS, *_SECONDS, "optype")
#: Columns that may be missing, or may be null in rows of communication.
_OPTIONAL = frozenset({"mb_id", "gmc"})
#: Estimated bytes of memory per row, for all columns and for the arrays of the analysis.
_BYTES_PER_ROW = 400
#: Maximum start (Unix time in the year 2096), and maximum duration (11 days), in seconds.
_MOST_SECONDS = {"start_ts": 4e9, "duration": 1e6}
_INSTALL = "Install it: pip install 'gpudiag[tables]' (in a clone: pip install '.[tables]')."
_COLUMNS_HINT = f"A table of operations has the columns {', '.join((*_COLUMNS, 'seq_id', 'mc'))}."


class ExtraMissingError(GpudiagError):
    """An optional dependency that this input requires is not installed."""

    exit_code = 5
    hint = _INSTALL


def read_operation_table(path: Path, limits: ReadLimits | None = None) -> OperationTable:
    """Read a table of operations; without `limits`, the defaults of `ReadLimits` apply.

    Raises:
        ExtraMissingError: pyarrow is not installed.
        UnreadableInputError: the file is missing or damaged, or values are out of range.
        NotATraceError: the file is not Parquet, or has other columns.
        TooLargeError: the file has more rows or bytes than the limits allow.
    """
    shown = with_escapes(str(path))
    try:
        with path.open("rb") as file:
            if not path.is_file():
                raise UnreadableInputError(f"{shown} is not a regular file", "Check the path.")
            if file.read(len(_MAGIC)) != _MAGIC:
                raise NotATraceError(f"{shown} is no Parquet file", _COLUMNS_HINT)
    except OSError as error:
        raise UnreadableInputError(f"{shown}: {error.strerror or error}", "Check the path.") from error
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ExtraMissingError(f"{shown}: reading Parquet needs pyarrow") from error
    try:
        with parquet.ParquetFile(path) as opened:
            names = _check_size_and_columns(opened, shown, limits or ReadLimits())
            read = opened.read(columns=names, use_threads=False)
            columns = {name: read.column(name) for name in names}
            kinds, unknown = _kinds(columns["optype"], pa)
            integers = {name: _integers(columns.get(name), len(kinds), name, shown) for name in _INTEGERS}
            times = {name: _seconds(columns[name], name, shown) for name in _SECONDS}
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise UnreadableInputError(f"{shown}: damaged Parquet: {sanitize_text(str(error))[:200]}") from error
    return _table(shown, kinds, unknown, integers, times)


def _check_size_and_columns(opened: Any, shown: str, limits: ReadLimits) -> list[str]:
    """Check sizes and columns in the metadata of a `ParquetFile`, and return the names of the columns to read."""
    metadata = opened.metadata
    unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if max(unpacked, metadata.num_rows * _BYTES_PER_ROW) > limits.max_bytes:
        raise TooLargeError(f"{shown}: {metadata.num_rows} rows take more than {limits.max_bytes / 1e9:g} GB")
    present = set(opened.schema_arrow.names)
    missing = [name for name in _COLUMNS if name not in present | _OPTIONAL]
    if missing:
        raise NotATraceError(f"{shown} has no column {', '.join(missing)}", _COLUMNS_HINT)
    if not metadata.num_rows:
        raise UnreadableInputError(f"{shown} has no rows")
    return [name for name in _COLUMNS if name in present]


def _kinds(column: Any, pa: Any) -> tuple[Integers, tuple[str, ...]]:
    """Return (index of each row's kind in `OPERATION_KINDS`, names of up to 8 unknown kinds, printable).

    The index is -1 for an unknown kind and for an empty cell. `pa` is the module `pyarrow`.
    """
    text = column.cast(pa.string()).combine_chunks().dictionary_encode()
    text = text.combine_chunks() if hasattr(text, "combine_chunks") else text  # chunked in some versions of pyarrow
    words = ["" if word is None else str(word) for word in text.dictionary.to_pylist()]
    codes = np.array([*(KIND_CODES.get(word, -1) for word in words), -1], np.int64)  # the last code is for empty cells
    indices = text.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    unknown = sorted({sanitize_text(word)[:60] for word in words if word not in KIND_CODES})
    return codes[indices], tuple(unknown[:8])


def _integers(column: Any, rows: int, name: str, shown: str) -> Integers:
    """Return a column as int64[rows], with -1 for missing values and a missing column. Refuse values out of range."""
    if column is None:
        return np.full(rows, -1, np.int64)
    if column.null_count:
        if name not in _OPTIONAL:
            raise UnreadableInputError(f"{shown}: column {name} has empty cells")
        column = column.fill_null(-1)
    values: NDArray[Any] = column.to_numpy()
    if not np.issubdtype(values.dtype, np.integer):
        raise UnreadableInputError(f"{shown}: column {name} has no whole numbers")
    most = 2**50 if name == "step" else MOST_RANKS  # also the limit of microbatches and model parts
    if values.min() < -1 or values.max() > most:
        raise UnreadableInputError(f"{shown}: values of column {name} are out of range")
    return values.astype(np.int64)


def _seconds(column: Any, name: str, shown: str) -> NDArray[np.float64]:
    """Return a column of times in seconds as float64[n]. Refuse values out of range."""
    values = np.asarray(column.to_numpy(), np.float64)
    if not np.isfinite(values).all() or np.abs(values).max() > _MOST_SECONDS[name]:
        raise UnreadableInputError(f"{shown}: values of column {name} are out of range")
    if name == "duration" and values.min() < 0:
        raise UnreadableInputError(f"{shown}: column duration has negative values")
    return values


def _table(
    shown: str,
    kinds: Integers,
    unknown: tuple[str, ...],
    integers: dict[str, Integers],
    times: dict[str, NDArray[np.float64]],
) -> OperationTable:
    """Return the table of rows with known kinds; starts count in ns from the first start. Unknown ranks become 0."""
    known = kinds >= 0
    if not known.any():
        raise NotATraceError(f"{shown} has no known operations, but {', '.join(unknown)}", _COLUMNS_HINT)
    seconds = times["start_ts"] - times["start_ts"].min()  # before scaling, because Unix times would lose digits
    return OperationTable(
        source=shown,
        step=integers["step"][known],
        data_rank=integers["dp_rank"][known],
        stage=integers["stage"][known],
        rank=np.maximum(integers["rank"][known], 0),
        kind=kinds[known],
        start_ns=np.rint(seconds[known] * 1e9).astype(np.int64),
        duration_ns=np.rint(times["duration"][known] * 1e9).astype(np.int64),
        microbatch=integers["mb_id"][known],
        chunk=integers["gmc"][known],
        unknown_kinds=unknown,
    )
