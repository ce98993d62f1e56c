"""Test that any events are decoded as protobuf decodes them, and that invalid bytes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.protobuf import message_type
from gpudiag.trace.readers.xspace.wire import WireError, decode_events

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUE = st.one_of(
    st.tuples(st.just("uint64_value"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("int64_value"), INT64),
    st.tuples(st.just("ref_value"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("double_value"), st.floats(allow_nan=False)),
    st.tuples(st.just("str_value"), st.text(max_size=300)),
    st.tuples(st.just("bytes_value"), st.binary(max_size=20)),
)
STATS = st.lists(st.tuples(st.integers(-2, 300), VALUE), max_size=6)
EVENTS = st.lists(st.tuples(INT64, INT64, INT64, STATS, st.booleans()), max_size=12)
WHOLE = {"uint64_value", "int64_value", "ref_value"}


def message(ident: int, offset: int, duration: int, stats: list[Any], aggregated: bool) -> Any:
    """Return an XEvent. If the event is aggregated, `offset` is its number of occurrences."""
    plane = message_type("xplane", "XSpace")().planes.add()
    event = plane.lines.add().events.add(metadata_id=ident, duration_ps=duration)
    if aggregated:
        event.num_occurrences = offset
    else:
        event.offset_ps = offset
    for stat, (kind, value) in stats:
        setattr(event.stats.add(metadata_id=stat), kind, value)
    return event


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@given(EVENTS, st.sets(st.integers(-2, 300)))
def test_decodes_like_protobuf(events: list[Any], wanted: set[int]) -> None:
    messages = [message(*event) for event in events]
    raw = decode_events([event.SerializeToString() for event in messages], wanted)
    assert raw.metadata_id.tolist() == [event.metadata_id for event in messages]
    assert raw.offset_ps.tolist() == [event.offset_ps for event in messages]
    assert raw.duration_ps.tolist() == [event.duration_ps for event in messages]
    assert raw.aggregated.tolist() == [event.WhichOneof("data") == "num_occurrences" for event in messages]
    expected = [
        (index, stat.metadata_id, signed(getattr(stat, kind)) if kind in WHOLE else 0)
        for index, event in enumerate(messages)
        for stat in event.stats
        if stat.metadata_id in wanted
        for kind in [stat.WhichOneof("value")]
    ]
    decoded = zip(raw.stat_event.tolist(), raw.stat_id.tolist(), raw.stat_value.tolist(), strict=True)
    assert sorted(decoded) == sorted(expected)


@given(EVENTS, st.sets(st.integers(-3, 3)))
def test_bare_events_have_no_stats(events: list[Any], bare: set[int]) -> None:
    """Events get ids from -3 to 3, so that some are among the ids `bare`, whose stats are not decoded."""
    messages = [message(ident % 7 - 3, *rest) for ident, *rest in events if not rest[-1]]
    raw = decode_events([event.SerializeToString() for event in messages], range(-2, 301), bare)
    assert raw.metadata_id.tolist() == [event.metadata_id for event in messages]
    assert raw.offset_ps.tolist() == [event.offset_ps for event in messages]
    assert raw.duration_ps.tolist() == [event.duration_ps for event in messages]
    counts = [0 if event.metadata_id in bare else len(event.stats) for event in messages]
    assert [raw.stat_event.tolist().count(index) for index in range(len(messages))] == counts


def test_several_batches_of_events_are_decoded() -> None:
    first = message(3, 10, 5, [(1, ("uint64_value", 9))], aggregated=False).SerializeToString()
    other = message(4, 11, 6, [], aggregated=False).SerializeToString()
    raw = decode_events([first, other] * 20_000, {1})
    assert raw.metadata_id.tolist() == [3, 4] * 20_000
    assert raw.stat_event.tolist() == list(range(0, 40_000, 2))


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a field without its value
        b"\x08\x80",  # a varint without its end
        b"\x22\x05\x08",  # a stat longer than the event
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # the largest possible length
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a negative length
        b"\x0b",  # a group, which proto3 does not have
        b"\x08\x01" * 5000,  # fields without end
        b"\x22\x02\x08\x80",  # a truncated stat
    ],
)
def test_invalid_event_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_events([data], {1, 0})


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        raw = decode_events([data, b"\x08\x05"], {1, 2, 3})
    except WireError:
        return
    assert len(raw.metadata_id) == 2
    assert raw.metadata_id[1] == 5
