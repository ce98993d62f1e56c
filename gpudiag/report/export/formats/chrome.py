"""Write a JSON trace for Chrome (`about:tracing`), Perfetto and Speedscope.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds with
three decimals, so that they are exact to a nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpudiag.model.event import NO_CORRELATION, NO_SIZE, EventKind
from gpudiag.report.export.formats import Format
from gpudiag.report.export.model import ExportModel, ExportTrack, TrackKind
from gpudiag.units import NS_PER_US

#: Kineto's categories, so that tools for PyTorch's traces read the file.
_CATEGORIES = {
    EventKind.OPERATOR: "cpu_op",
    EventKind.ANNOTATION: "user_annotation",
    EventKind.RUNTIME: "cuda_runtime",
    EventKind.KERNEL: "kernel",
    EventKind.COPY: "gpu_memcpy",
    EventKind.MEMSET: "gpu_memset",
    EventKind.DEVICE_ANNOTATION: "gpu_user_annotation",
    EventKind.OVERHEAD: "overhead",
    EventKind.DEVICE_SYNC: "cuda_sync",
    EventKind.PYTHON: "python_function",
    EventKind.MODULE: "cpu_op",
}
_GPUDIAG = "gpudiag"


def encode_chrome(exported: ExportModel) -> bytes:
    """Return the file's bytes, with one event per line."""
    document = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": exported.origin_ns,
        "traceEvents": [*_metadata(exported), *_events(exported)],
    }
    return msgspec.json.encode(document).replace(b'},{"ph"', b'},\n{"ph"')


def _metadata(exported: ExportModel) -> Iterator[dict[str, Any]]:
    """Yield the events that define names and order of groups (processes in the format) and tracks (threads)."""
    for pid, group in enumerate(exported.groups):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": group.title}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid, track in enumerate(group.tracks):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track.title}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _events(exported: ExportModel) -> Iterator[dict[str, Any]]:
    """Yield each event of the model as a complete event (`"ph": "X"`) of the format."""
    for pid, group in enumerate(exported.groups):
        for tid, track in enumerate(group.tracks):
            arguments = _arguments(track, group.device)
            for row, (start, end, name) in enumerate(track.rows()):
                event: dict[str, Any] = {
                    "ph": "X",
                    "cat": _GPUDIAG if track.event_kind is None else _CATEGORIES[EventKind(int(track.event_kind[row]))],
                    "name": name,
                    "pid": pid,
                    "tid": tid,
                    "ts": start / NS_PER_US,
                    "dur": (end - start) / NS_PER_US,
                }
                if arguments[row]:
                    event["args"] = arguments[row]
                yield event


def _arguments(track: ExportTrack, device: int | None) -> list[dict[str, int]]:
    """Return device, stream, correlation and size of each event, if known; gpudiag's tracks have none of them."""
    if track.correlation is None or track.size_bytes is None:
        return [{} for _ in range(len(track))]
    location = {} if device is None else {"device": device}
    if track.kind is TrackKind.STREAM:
        location["stream"] = track.ident
    return [
        location
        | ({"correlation": correlation} if correlation != NO_CORRELATION else {})
        | ({"bytes": size} if size != NO_SIZE else {})
        for correlation, size in zip(track.correlation.tolist(), track.size_bytes.tolist(), strict=True)
    ]


FORMAT = Format(
    name="chrome", ending=".trace.json.gz", opens="chrome://tracing or https://ui.perfetto.dev", encode=encode_chrome
)
