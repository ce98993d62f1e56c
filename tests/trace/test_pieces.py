"""Test that reading in blocks equals reading the whole file, for any cut and any layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.trace import ReadLimits, read_traces, unpack
from gpudiag.trace.readers.kineto.document import CutShortError, NotInPiecesError, decode_in_pieces
from gpudiag.trace.readers.kineto.event_json import Document, Event, Repairs, decode_whole
from tests.trace.documents import TRACES, document, event

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOSTILE = ['}, {"ph": "X"}', '"traceEvents": [', "},{", '\\"},\\n{\\"', "]}", "\\", '"']


def _in_pieces(pieces: Iterable[bytes]) -> tuple[list[Event], Document]:
    events: list[Event] = []
    for piece in decode_in_pieces(pieces, Repairs()):
        if isinstance(piece, Document):
            return [*events, *piece.events], piece
        events += piece
    raise AssertionError("the document never came")


def _plain(events: list[Event]) -> list[Any]:
    return [msgspec.to_builtins((event.cat, event.name, event.tid, event.ts, event.dur)) for event in events]


@given(
    st.lists(st.sampled_from([*_HOSTILE, "aten::add", "k" * 300]), min_size=1, max_size=12),
    st.sampled_from([None, 0, 2]),
    st.integers(1, 400),
    st.booleans(),
)
def test_any_layout_decodes_in_any_blocks(words: list[str], indent: int | None, step: int, tail: bool) -> None:
    whole = document(
        *(
            event("cpu_op", word, position, 1, args={"nested": [{"a": 1}, {"b": word}]})
            for position, word in enumerate(words)
        ),
        note=_HOSTILE,
    )
    if tail:
        whole["traceName"] = whole.pop("note")
    text = json.dumps(whole, indent=indent).encode()
    try:
        events, _ = _in_pieces(text[start : start + step] for start in range(0, len(text), step))
    except NotInPiecesError:
        pass  # a cut inside a string or list that looks like the end of an event is detected
    else:
        assert _plain(events) == _plain(decode_whole(text, "x", Repairs()).events)


def test_headers_on_both_sides_of_the_events_are_read() -> None:
    text = b'{"baseTimeNanoseconds": 7, "traceEvents": [{"ph":"X", "ts":1},\n {"ph":"X", "ts":2}], "host_name": "n"}'
    events, header = _in_pieces([text[:50], text[50:]])
    assert [event.ts for event in events] == [1, 2]
    assert (bytes(memoryview(header.base_time)), bytes(memoryview(header.host))) == (b"7", b'"n"')


@pytest.mark.parametrize("broken", ["", '{"ph": "X", "ts": "1"},'])
def test_events_of_all_phases_are_distinguished(broken: str) -> None:
    """Decode all events at once, and one by one if one is malformed."""
    others = ",".join(f'{{"ph": "{phase}", "name": "n", "ts": 2}}' for phase in "BEiICbnestfMPNRv")
    last = '{"name": "no phase", "ts": 2}, {"ts": 1, "ph": "X"}'
    decoded = decode_whole(f'{{"traceEvents": [{others}, {broken} {last}]}}'.encode(), "x", Repairs())
    assert [event.ts for event in decoded.events] == [1] * (2 if broken else 1)


@pytest.mark.parametrize(
    "text",
    [
        b'[{"ph": "X"}]',
        b'{"x": {"traceEvents": [{"ph": "X"}]}}',
        b'{"traceEvents": 5}',
        b"{}",
        b"",
        b'{"traceEvents": [' + b"[" * 5000,
    ],
)
def test_text_that_cannot_be_cut_into_pieces_is_refused(text: bytes) -> None:
    with pytest.raises(NotInPiecesError):
        _in_pieces([text])


def test_unfinished_text_is_reported_without_reading_again() -> None:
    with pytest.raises(CutShortError) as caught:
        _in_pieces([b'{"traceEvents": [{"ph": "X"}, {"ph"', b': "Y"}'])
    assert caught.value.args == (41,)


def test_real_trace_is_read_equally_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    path = TRACES / "public" / "nccl_data.json.gz"
    (expected,) = read_traces([path])
    for piece in (5_000, 40_000, 1 << 30):
        monkeypatch.setattr(unpack, "_PIECE", piece)
        events, _ = _in_pieces(unpack.read_pieces(path, "x", ReadLimits()))  # the file is read only once
        assert len(events) == len(expected.events) + 1  # the additional event is the profiler's span
        (trace,) = read_traces([path])
        assert trace.events.names == expected.events.names
        assert (trace.events.start_ns == expected.events.start_ns).all()
        assert (trace.events.correlation == expected.events.correlation).all()
        assert trace.collectives == expected.collectives


def test_kernel_finds_its_host_range_in_a_different_block(monkeypatch: pytest.MonkeyPatch) -> None:
    path = TRACES / "public" / "sampled_rank-1.json.gz"
    (expected,) = read_traces([path])
    monkeypatch.setattr(unpack, "_PIECE", 10_000)
    (trace,) = read_traces([path])
    assert trace.collectives == expected.collectives
    assert {call.operation for call in trace.collectives} == {"all_to_all", "all_reduce", "all_gather"}
