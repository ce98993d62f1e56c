"""Build traces for single tests, in Kineto's layout, and write them to files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.trace import read_traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpudiag.model.event import Trace

TRACES = Path(__file__).parents[1] / "traces"


def event(category: str, name: str, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    """Return a complete event (phase X); `more` adds or replaces fields, such as `args`."""
    return {"ph": "X", "cat": category, "name": name, "pid": 10, "tid": 11, "ts": start_us, "dur": length_us} | more


def kernel(name: str, start_us: float, length_us: float, correlation: int, **facts: Any) -> dict[str, Any]:
    """Return a kernel on device 0, stream 7."""
    arguments = {"device": 0, "stream": 7, "correlation": correlation} | facts
    return event("kernel", name, start_us, length_us, pid=0, tid=7, args=arguments)


def launch(start_us: float, correlation: int) -> dict[str, Any]:
    """Return the call that launches the kernel with correlation `correlation`."""
    return event("cuda_runtime", "cudaLaunchKernel", start_us, 2, args={"correlation": correlation})


def document(*events: Any, **header: Any) -> dict[str, Any]:
    """Return the JSON object of a Kineto trace with `events`; `header` adds top-level fields."""
    return {"schemaVersion": 1, **header, "traceEvents": list(events)}


def write(path: Path, content: Any, *, indent: int | None = None) -> Path:
    """Write a document as JSON, or write text or bytes unchanged; compress if the name of `path` ends in `.gz`."""
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content, indent=indent)
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_one(directory: Path, content: Any, name: str = "rank0.json") -> Trace:
    """Write a document to a file, and read it as a trace."""
    (trace,) = read_traces([write(directory / name, content)])
    return trace


def names(trace: Trace) -> list[str]:
    """Return the names of the events, in order of start."""
    return [trace.events.name_of(row) for row in range(len(trace.events))]


class Streams:
    """A process that launches work on a device's streams, as Kineto records it with `enable_cuda_sync_events`.

    Device times follow from the calls: operations of one stream run in order, and a stream waits for the events that
    `wait` names. A host call takes 2 µs and begins 1 µs after the previous call; `step` sets the host's clock. Times
    are in microseconds.

    No device work starts before `ahead_us`; if that is large, the host runs ahead of the device. `free` maps a stream
    to the end of its work. `happens` and `recorded_in` map the correlation of a `cudaEventRecord` to the time and the
    stream of its event.
    """

    def __init__(self, *, ahead_us: float = 0.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        self.ahead_us = ahead_us
        self.free: dict[int, float] = {}
        self.happens: dict[int, float] = {}
        self.recorded_in: dict[int, int] = {}
        self._correlation = 0

    def step(self, number: int, at: float, until: float) -> None:
        """Begin a step; the following host calls belong to it."""
        self.now = at
        self.events.append(event("user_annotation", f"ProfilerStep#{number}", at, until - at))

    def launch(self, stream: int, length: float, name: str = "k", thread: int = 11) -> None:
        """Launch a kernel; it starts at least 3 µs after its launch began, and no sooner than `ahead_us`."""
        correlation = self.call("cudaLaunchKernel", thread)
        start = max(self._free_from(stream), self.now)
        self.free[stream] = start + length
        self.events.append(kernel(name, start, length, correlation, stream=stream) | {"tid": stream})

    def record(self, stream: int, thread: int = 11) -> int:
        """Record an event after the stream's work so far. Returns the call's correlation."""
        correlation = self.call("cudaEventRecord", thread)
        self.happens[correlation] = self._free_from(stream)
        self.recorded_in[correlation] = stream
        return correlation

    def wait(self, stream: int, record: int, facts: Mapping[str, Any] = {}) -> None:
        """Make a stream wait for the event that the call `record` recorded.

        `facts` replaces arguments of the synchronization event; None removes an argument.
        """
        correlation = self.call("cudaStreamWaitEvent")
        self.free[stream] = max(self._free_from(stream), self.happens.get(record, 0.0))
        self.tell("Stream Wait Event", correlation, record, stream, facts)

    def synchronize(self, record: int, facts: Mapping[str, Any] = {}) -> None:
        """Make the host wait for an event; `record` and `facts` are as in `wait`."""
        began = self.now
        self.now = max(began, self.happens.get(record, 0.0))
        correlation = self.call("cudaEventSynchronize", length=self.now - began + 2)
        self.tell("Event Sync", correlation, record, -1, facts)

    def call(self, name: str, thread: int = 11, length: float = 2.0) -> int:
        """Add a call of `length` µs that ends 2 µs from now. Returns its correlation."""
        self._correlation += 1
        begin = self.now + 2 - length
        self.now += 3
        arguments = {"correlation": self._correlation}
        self.events.append(event("cuda_runtime", name, begin, length, tid=thread, args=arguments))
        return self._correlation

    def tell(self, name: str, correlation: int, record: int, stream: int, facts: Mapping[str, Any]) -> None:
        """Add the synchronization event of a call; `stream` is -1 if the host waits."""
        arguments = {
            "stream": stream,
            "correlation": correlation,
            "device": 0,
            "wait_on_stream": self.recorded_in.get(record, -1),
            "wait_on_cuda_event_record_corr_id": record,
            "wait_on_cuda_event_id": 6,
        }
        arguments = {key: value for key, value in {**arguments, **facts}.items() if value is not None}
        self.events.append(event("cuda_sync", name, self.now - 3, 1, pid=0, tid=stream, args=arguments))

    def _free_from(self, stream: int) -> float:
        return self.free.get(stream, self.ahead_us)

    def document(self, *, facts: bool = True) -> dict[str, Any]:
        """Return the trace; without `facts` it lacks the synchronization events."""
        return document(*(event_json for event_json in self.events if facts or event_json["cat"] != "cuda_sync"))
