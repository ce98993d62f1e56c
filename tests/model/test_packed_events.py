"""Test that any event table is equal after packing and unpacking."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, EventTable
from gpudiag.model.large_jobs.packed_events import (
    ColumnReader,
    ColumnWriter,
    PackedEvents,
    pack,
    plain,
    stand_in,
    unpack,
)
from tests.examples import examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Type of each column.
TYPES: dict[str, Any] = {
    "kind": np.uint8,
    "name": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.int64,
    "device": np.int16,
    "correlation": np.int64,
    "size_bytes": np.int64,
    "role": np.uint8,
    "direction": np.uint8,
    "host_memory": np.uint8,
}
#: The format stores differences of consecutive values, and each difference must be below 2**63.
_LEAST, _MOST = -(2**62), 2**62 - 1
_times = st.integers(0, 20) | st.integers(_LEAST, _MOST)
_events = st.tuples(
    st.integers(0, 255),
    st.integers(0, 3) | st.just(2**31 - 1),
    _times,
    st.integers(0, 3) | st.integers(0, 2**62),
    st.integers(0, 3) | st.integers(_LEAST, _MOST),
    st.sampled_from([HOST, 0, 1, 2**15 - 1]),
    st.sampled_from([NO_CORRELATION, 1, 2]) | st.integers(1, _MOST),
    st.just(NO_SIZE) | st.integers(0, 2**62),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 255),
)


def table_of(rows: list[tuple[int, ...]]) -> EventTable:
    """Return a table of rows, whose values are in the order of `TYPES`, sorted by start; ties keep their order."""
    ordered = sorted(rows, key=lambda row: row[2])
    columns: dict[str, NDArray[Any]] = {
        name: np.array([row[place] for row in ordered], TYPES[name]) for place, name in enumerate(TYPES)
    }
    columns["end_ns"] = columns["start_ns"] + columns["end_ns"]  # drawn as a duration
    return EventTable(**columns, names=("a", "b", "c", "d"))


def assert_round_trip(table: EventTable) -> None:
    """Check that a table is equal, with equal column types, after packing and unpacking."""
    packed = pack(table)
    assert len(packed) == len(table)
    again = unpack(packed)
    for name, column in table.columns().items():
        assert getattr(again, name).dtype == TYPES[name], name
        assert np.array_equal(getattr(again, name), column), name
    assert again.names == table.names


@examples(300)
@given(st.lists(_events, max_size=30))
def test_any_table_is_equal_after_unpacking(rows: list[tuple[int, ...]]) -> None:
    assert_round_trip(table_of(rows))


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), st.integers(0, 1)), max_size=60))
def test_events_with_common_starts_and_ends_keep_their_order(rows: list[tuple[int, ...]]) -> None:
    table = table_of(
        [(0, row % 4, start, duration, thread, device, -1, -1, 0, 0, 0)
         for row, (start, duration, thread, device) in enumerate(rows)]
    )  # fmt: skip
    assert_round_trip(table)


@examples(50)
@given(_events, st.integers(0, 500))
def test_constant_columns_are_equal_after_unpacking(row: tuple[int, ...], count: int) -> None:
    assert_round_trip(table_of([row] * count))


def test_empty_table_is_packed() -> None:
    assert_round_trip(table_of([]))


@examples(200)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=40))
def test_any_column_is_equal_after_reading(values: list[int]) -> None:
    writer = ColumnWriter()
    columns = [writer.add(np.array(part, np.int64)) for part in (values, values[:3], [], values)]
    reader = ColumnReader(*writer.compressed())
    for column, part in zip(columns, (values, values[:3], [], values), strict=True):
        assert reader.column(column).tolist() == part


def test_packed_events_stand_for_their_table() -> None:
    table = table_of([(1, row % 4, 10 * row, 5, row % 2, HOST, -1, -1, 0, 0, 0) for row in range(50)])
    packed = stand_in(pack(table))
    assert isinstance(packed, PackedEvents)
    assert len(packed) == 50
    assert packed.name_of(7) == table.name_of(7)
    copy: Any = pickle.loads(pickle.dumps(packed))  # noqa: S301
    assert isinstance(copy, PackedEvents)
    assert np.array_equal(copy.start_ns, table.start_ns)
    assert isinstance(plain(packed), EventTable)
    assert plain(table) is table


def test_table_whose_columns_do_not_belong_together_is_refused() -> None:
    table = pack(table_of([(1, 0, 10 * row, row, row, HOST, row + 1, -1, 0, 0, 0) for row in range(9)]))
    import msgspec

    for name, column in table.columns.items():
        without = {other: value for other, value in table.columns.items() if other != name}
        for columns in (without, table.columns | {name: msgspec.structs.replace(column, length=3)}):
            with pytest.raises(ValueError, match=r"column|boolean|shape|mask"):
                unpack(msgspec.structs.replace(table, columns=columns))
