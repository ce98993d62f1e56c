"""Make small copies of real traces for the tests: everything that gpudiag reads is kept, and the rest is removed.

    python tests/traces/minify.py IN.json.gz OUT.json.gz [--top-level] [--steps N] [--first-ms N] [--forget-host]
        [--without CATEGORY] [--shapes]

Always removed: flow, counter and metadata events, arguments that gpudiag does not read, and most of the device
properties. Names of kernels are cut to 48 characters and a checksum, except for communication kernels. Times are
unchanged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_HEADER = ("schemaVersion", "distributedInfo", "host_name", "displayTimeUnit", "baseTimeNanoseconds", "INFO")
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_ON_DEVICE = ("device", "stream", "correlation", "bytes")
_COLLECTIVE = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Group size",
    "Process Group Name",
    "Process Group Ranks",
    "Seq",
)
_AWAITED = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id")
_SHAPES = ("Input Dims", "Input type")
_INPUTS = (*_SHAPES, "Input Strides", "Concrete Inputs")
_PROCESSORS = "blocks per SM"
_COMMUNICATES = ("nccl", "gloo:", "record_param_comms")
_LONGEST_NAME = 48


def read_arguments(event: Event, *, shapes: bool = False) -> Event:
    """Return the arguments of an event that gpudiag reads; with `shapes`, also the shapes of operators' inputs."""
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return {}
    kept = [*(key for key in _ON_DEVICE if key != "correlation"), *_COLLECTIVE, "correlation"]
    if event.get("cat") == "cuda_sync":
        kept += _AWAITED
    if event["name"].startswith(_COMMUNICATES):
        kept += (*_SHAPES, _PROCESSORS)
    elif shapes and event.get("cat") == "cpu_op":
        kept += _INPUTS
    return {key: arguments[key] for key in kept if key in arguments}


def header_of(document: Event) -> Event:
    """Return the fields of a trace that gpudiag reads, except its events."""
    header = {key: document[key] for key in _HEADER if key in document}
    devices = document.get("deviceProperties", [])
    return header | {
        "deviceProperties": [{key: each[key] for key in ("id", "name") if key in each} for each in devices]
    }


def _short(event: Event) -> str:
    name: str = event["name"]
    if event["cat"].lower() != "kernel" or len(name) <= _LONGEST_NAME or "nccl" in name:
        return name
    return f"{name[:_LONGEST_NAME]}~{zlib.crc32(name.encode()):08x}"


def _slim(event: Event, *, shapes: bool) -> Event:
    slim: Event = {key: event[key] for key in ("ph", "cat", "pid", "tid") if key in event}
    slim["name"] = _short(event)
    if arguments := read_arguments(event, shapes=shapes):
        slim["args"] = arguments
    return slim | {key: event[key] for key in ("ts", "dur") if key in event}


def _without_nested(events: list[Event]) -> list[Event]:
    """Remove nested operators, and calls that neither launch nor await device work.

    Communication and step marks are kept, even if they are nested.
    """
    launching = {
        event["args"]["correlation"] for event in events if event["cat"].lower() in _DEVICE_WORK and event.get("args")
    }
    # Thread → end of its last operator that is not nested.
    covered_until: dict[Any, float] = defaultdict(lambda: float("-inf"))
    kept = []
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        category = event["cat"].lower()
        if category in {"cpu_op", "operator"} and not event["name"].startswith(_COMMUNICATES):
            thread, end = event["tid"], event["ts"] + event["dur"]
            if end <= covered_until[thread] and not event["name"].startswith("ProfilerStep"):
                continue
            covered_until[thread] = max(covered_until[thread], end)
        if (
            category.endswith(("runtime", "driver"))
            and (event.get("args") or {}).get("correlation") not in launching
            and "Synchronize" not in event["name"]
        ):
            continue
        kept.append(event)
    return kept


def _first_steps(events: list[Event], steps: int) -> list[Event]:
    """Keep host events that start before the end of step number `steps`, and the device work launched by then."""
    ends = sorted(
        event["ts"] + event["dur"]
        for event in events
        if event["name"].startswith("ProfilerStep#") and event["cat"].lower() in {"user_annotation", "operator"}
    )
    last = ends[steps - 1]
    on_device = [event["cat"].lower() in {*_DEVICE_WORK, "gpu_user_annotation"} for event in events]
    late = {
        event["args"]["correlation"]
        for event, device in zip(events, on_device, strict=True)
        if not device and event["ts"] >= last and "correlation" in (event.get("args") or {})
    }
    return [
        event
        for event, device in zip(events, on_device, strict=True)
        if ((event.get("args") or {}).get("correlation") not in late if device else event["ts"] < last)
    ]


def _packed(text: bytes) -> bytes:
    """Compress with zopfli if it is installed (15 % smaller), otherwise with gzip."""
    try:
        from zopfli.gzip import compress
    except ImportError:
        return gzip.compress(text, 9, mtime=0)
    packed: bytes = compress(text, numiterations=5)
    return packed


def minify(
    source: Path,
    target: Path,
    *,
    top_level: bool,
    steps: int | None,
    forget_host: bool,
    first_ms: float | None = None,
    without: str | None = None,
    shapes: bool = False,
) -> None:
    """Write a small copy of one trace. The arguments are the options of `main`; None keeps everything."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt", encoding="utf-8") as file:
        document = json.load(file)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    if first_ms is not None:
        # Kineto's event of category "Trace" spans the whole recording and begins before all other events.
        begin = min(event["ts"] for event in events if event["cat"] != "Trace")
        events = [event for event in events if event["ts"] < begin + 1000 * first_ms]
    events = [event for event in events if event["cat"] != without]
    if steps is not None:
        events = _first_steps(events, steps)
    if top_level:
        events = _without_nested(events)
    small = header_of(document)
    if forget_host and "host_name" in small:
        small["host_name"] = "node-a"
    # Sorting by thread compresses best; readers sort events by time.
    events.sort(key=lambda event: (event["cat"], str(event["tid"]), event["ts"]))
    small["traceEvents"] = [_slim(event, shapes=shapes) for event in events]
    text = json.dumps(small, separators=(",", ":")).replace('},{"ph"', '},\n{"ph"').encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_packed(text))


def main() -> None:
    """Parse the command line and write the copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--top-level", action="store_true", help="drop operators inside operators, and idle calls")
    parser.add_argument("--steps", type=int, help="keep only the first steps")
    parser.add_argument("--first-ms", type=float, help="keep only what begins within so many milliseconds")
    parser.add_argument("--without", metavar="CATEGORY", help="drop the events of a category")
    parser.add_argument("--forget-host", action="store_true", help="put a made-up name for the host's")
    parser.add_argument("--shapes", action="store_true", help="keep the shapes of operators' inputs")
    options = parser.parse_args()
    minify(
        options.source,
        options.target,
        top_level=options.top_level,
        steps=options.steps,
        forget_host=options.forget_host,
        first_ms=options.first_ms,
        without=options.without,
        shapes=options.shapes,
    )


if __name__ == "__main__":
    main()
