"""Traces made up for one test each, in Kineto's layout, and written to files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.trace import read_traces

if TYPE_CHECKING:
    from gpudiag.model.event import Trace

TRACES = Path(__file__).parents[1] / "traces"


def event(category: str, name: str, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    """One complete event; what goes in `args` is given as `args`."""
    return {"ph": "X", "cat": category, "name": name, "pid": 10, "tid": 11, "ts": start_us, "dur": length_us} | more


def kernel(name: str, start_us: float, length_us: float, correlation: int, **told: Any) -> dict[str, Any]:
    """A kernel on device 0, stream 7."""
    arguments = {"device": 0, "stream": 7, "correlation": correlation} | told
    return event("kernel", name, start_us, length_us, pid=0, tid=7, args=arguments)


def launch(start_us: float, correlation: int) -> dict[str, Any]:
    """The call that launches it."""
    return event("cuda_runtime", "cudaLaunchKernel", start_us, 2, args={"correlation": correlation})


def document(*events: Any, **header: Any) -> dict[str, Any]:
    """A whole trace."""
    return {"schemaVersion": 1, **header, "traceEvents": list(events)}


def write(path: Path, content: Any, *, indent: int | None = None) -> Path:
    """Write a document (or text or bytes as they are) to a file, gzipped if its name says so."""
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content, indent=indent)
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_one(directory: Path, content: Any, name: str = "rank0.json") -> Trace:
    """Write a document and read it."""
    (trace,) = read_traces([write(directory / name, content)])
    return trace


def names(trace: Trace) -> list[str]:
    """The names of the events, in order of start."""
    return [trace.events.name_of(row) for row in range(len(trace.events))]
