"""Test reading `cuda_sync` events: for which event each stream or host call waits, if that was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.model.event import NO_NUMBER, Trace
from gpudiag.trace import read_traces
from tests.trace.documents import TRACES, Streams, kernel, launch, read_one

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RECORD, STREAM, EVENT = "wait_on_cuda_event_record_corr_id", "wait_on_stream", "wait_on_cuda_event_id"


def recorded_wait(facts: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return a trace in which kernel `c` of stream 20 waits for kernel `a` of stream 7, but not for kernel `b`.

    `facts` replaces arguments of the recorded wait.
    """
    streams = Streams()
    streams.launch(7, 50, "a")
    record = streams.record(7)
    streams.launch(7, 50, "b")
    streams.wait(20, record, facts)
    streams.launch(20, 50, "c")
    return streams.document()


def waits(trace: Trace) -> list[tuple[str, int, str | None, int, int]]:
    """Return (call, waiting stream, recording call, recorded stream, event) of each wait."""
    event_waits, name_of = trace.event_waits, trace.events.name_of
    records = [None if row == NO_NUMBER else name_of(row) for row in event_waits.record.tolist()]
    calls = map(name_of, event_waits.call.tolist())
    columns = (event_waits.stream.tolist(), records, event_waits.recorded_stream.tolist(), event_waits.event.tolist())
    return list(zip(calls, *columns, strict=True))


def test_wait_is_joined_to_its_call_and_recording_call(tmp_path: Path) -> None:
    trace = read_one(tmp_path, recorded_wait())
    assert waits(trace) == [("cudaStreamWaitEvent", 20, "cudaEventRecord", 7, 6)]
    event_waits = trace.event_waits
    assert trace.events.start_ns[event_waits.record[0]] < trace.events.start_ns[event_waits.call[0]]
    assert event_waits.device.tolist() == [0]


def test_only_the_waiting_stream_is_known_since_cuda_13(tmp_path: Path) -> None:
    facts = {RECORD: -1, STREAM: -1, EVENT: 2197}
    assert waits(read_one(tmp_path, recorded_wait(facts))) == [("cudaStreamWaitEvent", 20, None, NO_NUMBER, 2197)]


@pytest.mark.parametrize("number", [-5, 2**70, -(2**70), 1e300, 0, 777, "x", None, [], {}, True, 1.5, "2", "9" * 500])
@pytest.mark.parametrize("argument", [RECORD, STREAM, EVENT])
def test_invalid_numbers_are_unknown(tmp_path: Path, argument: str, number: Any) -> None:
    trace = read_one(tmp_path, recorded_wait({argument: number}))
    (wait,) = waits(trace)
    assert wait[:2] == ("cudaStreamWaitEvent", 20)
    assert wait[2] in {"cudaEventRecord", None}
    assert all(NO_NUMBER <= column < 2**63 for column in wait[3:])
    assert trace.notes == ()


def test_correlation_without_recording_call_is_unknown(tmp_path: Path) -> None:
    launched = 1  # the correlation of the call that launched "a"
    for record in (launched, 777):
        assert waits(read_one(tmp_path, recorded_wait({RECORD: record})))[0][2] is None


def test_recording_call_after_the_wait_is_ignored(tmp_path: Path) -> None:
    streams = Streams()
    streams.launch(7, 50)
    streams.wait(20, record := 3)
    assert streams.record(21) == record
    assert waits(read_one(tmp_path, streams.document())) == [("cudaStreamWaitEvent", 20, None, NO_NUMBER, 6)]


def test_wait_without_recorded_call_is_left_out(tmp_path: Path) -> None:
    content = recorded_wait()
    content["traceEvents"] = [
        event_json for event_json in content["traceEvents"] if event_json["name"] != "cudaStreamWaitEvent"
    ]
    assert waits(read_one(tmp_path, content)) == []


def test_host_waits_in_synchronizations_but_not_in_queries(tmp_path: Path) -> None:
    streams = Streams()
    streams.launch(7, 50)
    record = streams.record(7)
    streams.synchronize(record)
    streams.tell("Event Sync", streams.call("cudaEventQuery"), record, -1, {})
    nothing = {STREAM: None, RECORD: None, EVENT: None}
    streams.tell("Stream Sync", streams.call("cudaStreamSynchronize"), -1, 20, nothing)
    streams.tell("Context Sync", streams.call("cudaDeviceSynchronize"), -1, -1, {})
    assert waits(read_one(tmp_path, streams.document())) == [
        ("cudaEventSynchronize", NO_NUMBER, "cudaEventRecord", 7, 6),
        # Synchronizing a stream is equivalent to recording an event in this stream and waiting for the event.
        ("cudaStreamSynchronize", NO_NUMBER, "cudaStreamSynchronize", 20, NO_NUMBER),
    ]


def test_trace_without_sync_events_has_no_waits(tmp_path: Path) -> None:
    assert not len(read_one(tmp_path, [launch(0, 1), kernel("k", 5, 2, 1)]).event_waits)
    (trace,) = read_traces([TRACES / "public" / "benchmark_result_alexnet.json.gz"])
    assert {wait[0] for wait in waits(trace)} == {"cudaStreamSynchronize", "cudaStreamWaitEvent"}
