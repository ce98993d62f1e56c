"""Test that damaged and hostile digests are refused with the reader's errors, without much memory."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.large_jobs.packed_events import plain
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.readers.digest.decode import decode
from gpudiag.trace.readers.digest.encode import encode
from gpudiag.trace.readers.digest.layout import DIGEST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

TRACES = Path(__file__).parents[3] / "traces"
(TRACE,) = read_traces([TRACES / "gloo_dataloader" / "rank0.pt.trace.json.gz"])
DIGEST = encode(TRACE)
HEAD = f"{DIGEST_SCHEMA}\n".encode()
MOST_BYTES = 100_000_000


def read(content: bytes, limits: ReadLimits | None = None) -> None:
    decode(content, "rank0.gpudiag-digest", limits or ReadLimits())


def changed(change: Callable[[dict[str, Any]], None], **others: int) -> bytes:
    """Return the digest with a changed header; `others` may claim a false `size` of the header."""
    _, packed, events, rest = msgspec.msgpack.decode(DIGEST[len(HEAD) :])
    header = msgspec.msgpack.decode(zlib.decompress(packed))
    change(header)
    content = msgspec.msgpack.encode(header)
    parts = (others.get("size", len(content)), zlib.compress(content), events, rest)
    return HEAD + msgspec.msgpack.encode(parts)


def test_unchanged_parts_are_read() -> None:
    read(changed(lambda _header: None))


def column(part: str, name: str, index: int, value: int) -> Callable[[dict[str, Any]], None]:
    """Return a change of the header: a column's length (index 0), width (1) or begin (2) becomes `value`."""

    def change(header: dict[str, Any]) -> None:
        columns = header[part] if part == "events" else header[part]["columns"]
        columns[name][index] = value

    return change


def without(part: str, name: str) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        del (header[part] if part == "events" else header[part]["columns"])[name]

    return change


def field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update({name: value})


def all_constant(length: int, **values: int) -> Callable[[dict[str, Any]], None]:
    """Return a change of the header: all event columns have `length` equal values, which take no bytes."""

    def change(header: dict[str, Any]) -> None:
        header["events"] = {name: [length, 0, values.get(name, 0)] for name in header["events"]}
        header["events"]["correlation"] = [0, 0, 0]

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(column("events", "gap", 0, value) for value in (-1, 0, 1, 2**40, 2**63)),
        *(column("events", "gap", 1, value) for value in (-1, 3, 16, 2**63 - 1)),
        *(column("events", "gap", 2, value) for value in (-1, 2**40, 2**63 - 1)),
        *(column("events", "moved", place, 1) for place in (0, 1)),
        *(column("events", "name", place, 2**62) for place in (0, 1, 2)),
        *(column("events", "correlated", 0, 5), column("events", "correlation", 0, 5)),
        *(column("collectives", "row", place, 2**31) for place in (0, 1, 2)),
        column("collectives", "call", 0, 7),
        *(without("events", name) for name in ("gap", "moved", "correlation", "role")),
        *(without("collectives", name) for name in ("row", "call", "sequence")),
        *(without("event_waits", name) for name in ("call", "record", "event")),
        *(field("ranks", value) for value in ([], [[-1]], [[2**40]], None)),
        *(field("calls", value) for value in ([], [["a", "0", -1, 1, 1, None]], [["a", "0", 9, 1, 1, None]], 1)),
        *(field("groups", {"0": [value, ""]}) for value in (-1, 9, 2**62)),
        *(field("rank", value) for value in (-1, 2**20, "0")),
        *(field("world_size", value) for value in (0, -1, 2**21)),
        *(field(name, -1) for name in ("dropped_events", "unrecorded_graphs", "size", "events_size")),
        *(field(name, 2**61) for name in ("size", "events_size")),
        *(field("origin_ns", value) for value in (2**63, -(2**63), 1.5)),
        *(field("workload", value) for value in ("play", None)),
        *(field("names", value) for value in ([], ["one"], [1])),
        field("step_marks", [{"columns": {}}]),
        field("step_marks", [{"columns": {"row": [3, 0, 2**40], "number": [3, 0, 1]}}]),
        field("modules", {"columns": {"row": [1, 0, 0], "module": [1, 0, 4], "backward": [1, 0, 0]}}),
        field("operator_work", {"columns": {"row": [1, 0, 0], "flops": [1, 0, -9]}}),
        *(all_constant(length) for length in (0, -1, 2**32)),
        all_constant(4, kind=99),
        all_constant(4, duration=-1),
        all_constant(4, gap=2**62),
        all_constant(4, device=-9),
        all_constant(4, size_bytes=-9),
        all_constant(4, name=-1),
        all_constant(4, moved=1),
    ],
)
def test_impossible_header_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(UnreadableInputError) as raised:
        read(changed(change))
    assert str(raised.value).isprintable()
    assert not isinstance(raised.value, NotATraceError)


@pytest.mark.parametrize("length", [10_000_000, 200_000_000])
def test_columns_of_equal_values_are_bounded_before_memory_is_taken(length: int) -> None:
    content = changed(all_constant(length))
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match="unpacks to more than"):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["collectives", "event_waits"])
def test_parts_of_equal_values_are_bounded_before_memory_is_taken(part: str) -> None:
    def change(header: dict[str, Any]) -> None:
        header[part]["columns"] = {name: [200_000_000, 0, 0] for name in header[part]["columns"]}

    with pytest.raises(TooLargeError):
        read(changed(change))


def test_header_that_claims_much_memory_is_refused() -> None:
    with pytest.raises(TooLargeError):
        read(changed(lambda _header: None, size=2**40))
    with pytest.raises(TooLargeError):
        read(DIGEST, ReadLimits(max_bytes=50_000))
    bomb = zlib.compress(bytes(300_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInputError):
            read(HEAD + msgspec.msgpack.encode((1000, bomb, b"", b"")))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_another_version_and_other_files_are_told_apart() -> None:
    with pytest.raises(UnreadableInputError, match="has the schema gpudiag/digest/2, not gpudiag/digest/1"):
        read(DIGEST.replace(b"digest/1", b"digest/2", 1))
    with pytest.raises(UnreadableInputError, match=r"digest/\\x1b"):
        read(DIGEST.replace(b"digest/1", b"digest/\x1b", 1))
    for content in (b"x", b"{}\n", b"\n", b"gpudiag/digest/" + b"9" * 500, b"PK\x07\x08"):
        with pytest.raises(NotATraceError):
            read(content)


def test_bytes_that_are_cut_or_flipped_are_refused() -> None:
    chance = random.Random(1)  # noqa: S311 - the changes must be reproducible
    for place in [*range(len(HEAD), len(HEAD) + 40), *(chance.randrange(len(DIGEST)) for _ in range(300))]:
        with pytest.raises(UnreadableInputError):
            read(DIGEST[:place])
        flipped = bytearray(DIGEST)
        flipped[place] ^= 1 << chance.randrange(8)
        try:
            trace = decode(bytes(flipped), TRACE.source, ReadLimits())
        except UnreadableInputError:
            continue
        whole = msgspec.structs.replace(trace, events=plain(trace.events))
        assert encode(whole) == DIGEST, "only bits that mean nothing may be flipped (padding in zlib's format)"
    with pytest.raises(UnreadableInputError):
        read(DIGEST + b"x")


def test_changed_columns_with_valid_checksums_are_refused_or_possible() -> None:
    chance = np.random.default_rng(1)
    size, packed, events, rest = msgspec.msgpack.decode(DIGEST[len(HEAD) :])
    columns = bytearray(zlib.decompress(events))
    others = bytearray(zlib.decompress(rest))
    for _ in range(200):
        parts = (bytearray(columns), bytearray(others))
        for part in parts:
            part[int(chance.integers(len(part)))] = int(chance.integers(256))
        content = HEAD + msgspec.msgpack.encode((size, packed, *(zlib.compress(bytes(part), 1) for part in parts)))
        try:
            trace = decode(content, "rank0.gpudiag-digest", ReadLimits())
        except UnreadableInputError:
            continue
        assert (np.diff(trace.events.start_ns) >= 0).all()
        assert (trace.events.end_ns >= trace.events.start_ns).all()
        assert all(0 <= call.row < len(trace.events) for call in trace.collectives)


def test_unprintable_notes_are_escaped() -> None:
    trace = decode(changed(field("notes", ["\x1b[31m red"])), "rank0.gpudiag-digest", ReadLimits())
    assert trace.notes == ("\\x1b[31m red",)


def test_empty_file_truncated_digest_and_directory_are_refused(tmp_path: Path) -> None:
    empty, digest = tmp_path / "a.gpudiag-digest", tmp_path / "b.gpudiag-digest"
    empty.touch()
    digest.write_bytes(DIGEST[:-50])
    for path in (empty, digest, tmp_path):
        with pytest.raises(UnreadableInputError):
            read_traces([path])
