"""Make small copies of real XSpaces for the tests: everything that gpudiag reads is kept, and the rest is removed.

    python tests/traces/minify_xspace.py IN.xplane.pb.gz OUT.xplane.pb.gz [--steps N] [--shortest US] [--python]

Always removed: stats that gpudiag does not read; events of zero duration; threads that neither launch, nor mark steps,
nor contain profiler overhead; on threads that run XLA modules on CPU devices, all events except the operations of
modules; and Python functions, unless `--python` keeps them. `--shortest` also removes short kernels with their launches
and, on GPUs, short executor events. `--gpus` removes all but the first GPUs. Names of kernels are cut to 48 characters
and a checksum, except for communication kernels. Times are unchanged.
"""

from __future__ import annotations

import argparse
import gzip
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from gpudiag.model.protobuf import message_type

_OF_MODULES = {"hlo_op", "hlo_module", "run_id", "device_ordinal"}
_READ = {"correlation_id", "step_num", "_r", "buffer_size", "memcpy_details", "Memset_details", "key", "from", "to"}
_READ |= _OF_MODULES
#: Stats that are read on GPUs only.
_READ_OF_DEVICES = {"tf_op", "name"}
#: The call through which JAX's main thread launches, and by which JAX is recognized.
_DISPATCH = "PjitFunction("
#: Threads of XLA, which compile and run modules.
_XLA_THREADS = ("tf_XLA", "tf_xla", "tf_PjRt")
#: Host event → its stats that are read besides `_READ`.
_READ_OF_EXECUTORS = {"ExecutorState::Process": {"id"}, "ExecutorState::ProcessAsync::Start": {"name"}}
_LONGEST_NAME = 48
#: Name and type of a TensorFlow op (`name:Type`), by which communication is recognized.
_OP = re.compile(r"[^:\s(]+:\w+")


def minify(
    source: Path, target: Path, steps: int | None, shortest_ps: int, gpus: int | None = None, *, python: bool = False
) -> None:
    """Write a small copy of an XSpace.

    `source` may be gzip-compressed. `steps` and `gpus` are the numbers to keep (None: all). Kernels shorter than
    `shortest_ps` are removed, and, unless `python`, Python functions.
    """
    data = source.read_bytes()
    space = message_type("xplane", "XSpace").FromString(gzip.decompress(data) if source.suffix == ".gz" else data)
    last_ps = _end_of_steps(space, steps)
    late = _launched_after(space, last_ps) | _short_kernels(space, shortest_ps) | _without(space, gpus)
    for plane in list(space.planes):
        if plane.name == "/host:__ScopeRangeCallStack__":
            space.planes.remove(plane)
            continue
        devices = any(plane.name.startswith("/device:") for plane in space.planes)
        if not devices:
            _keep_operations_only(plane)
        if not python:
            _without_python(plane)
        _slim(plane, last_ps, late, shortest_ps, devices=devices)
    del space.hostnames[:]
    space.hostnames.append("node-a")
    for plane in space.planes:
        if plane.name == "Task Environment":
            _forget_paths(plane)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_packed(space.SerializeToString(deterministic=True)))


def _stat_names(plane: Any) -> dict[int, str]:
    return {number: entry.name for number, entry in plane.stat_metadata.items()}


def _begin_ps(line: Any, event: Any) -> int:
    return int(line.timestamp_ns * 1000 + event.offset_ps)


def _end_of_steps(space: Any, steps: int | None) -> int:
    """Return the time in ps after which host events are removed.

    The time is the end of step number `steps`, or 1 s after the last step if `steps` is None. Without step marks, no
    event is as late as the returned time.
    """
    ends: list[int] = []
    for plane in space.planes:
        names = _stat_names(plane)
        for line in plane.lines:
            for event in line.events:
                marked = any(names[stat.metadata_id] == "step_num" for stat in event.stats)
                ends += [_begin_ps(line, event) + event.duration_ps] if marked else []
    return sorted(ends)[steps - 1] if steps is not None else max(ends, default=2**62) + 10**12


def _launched_after(space: Any, last_ps: int) -> set[int]:
    """Return the correlation ids of launches after `last_ps`."""
    late: set[int] = set()
    for plane in space.planes:
        if plane.name.startswith("/device:"):
            continue
        names = _stat_names(plane)
        for line in plane.lines:
            for event in line.events:
                if _begin_ps(line, event) >= last_ps:
                    late.update(s.uint64_value for s in event.stats if names[s.metadata_id] == "correlation_id")
    return late


def _without(space: Any, gpus: int | None) -> set[int]:
    """Remove the planes of all GPUs but the first `gpus`. Return the correlation ids of the removed work."""
    others = [
        plane
        for plane in space.planes
        if gpus is not None and plane.name.startswith("/device:GPU:") and int(plane.name.rpartition(":")[2]) >= gpus
    ]
    gone: set[int] = set()
    for plane in others:
        names = _stat_names(plane)
        events = [event for line in plane.lines for event in line.events]
        gone.update(s.uint64_value for event in events for s in event.stats if names[s.metadata_id] == "correlation_id")
        space.planes.remove(plane)
    return gone


def _short_kernels(space: Any, shortest_ps: int) -> set[int]:
    """Return the correlation ids of kernels shorter than `shortest_ps`, except copies and communication."""
    short: set[int] = set()
    for plane in space.planes:
        if not plane.name.startswith("/device:"):
            continue
        names = _stat_names(plane)
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if event.duration_ps < shortest_ps and not name.startswith(("Mem", "nccl")):
                    short.update(s.uint64_value for s in event.stats if names[s.metadata_id] == "correlation_id")
    return short


def _is_executors(plane: Any, event: Any) -> bool:
    return bool(plane.event_metadata[event.metadata_id].name.startswith("ExecutorState::"))


def _without_python(plane: Any) -> None:
    for line in plane.lines:
        kept = [event for event in line.events if not plane.event_metadata[event.metadata_id].name.startswith("$")]
        del line.events[:]
        line.events.extend(kept)


def _keep_operations_only(plane: Any) -> None:
    """If a line dispatches nothing, and has operations of XLA modules or is a thread of XLA, keep only operations."""
    names = _stat_names(plane)
    for line in plane.lines:
        if any(plane.event_metadata[event.metadata_id].name.startswith(_DISPATCH) for event in line.events):
            continue
        kept = [event for event in line.events if any(names[stat.metadata_id] == "hlo_op" for stat in event.stats)]
        if kept or any(line.name.startswith(name) for name in _XLA_THREADS):
            del line.events[:]
            line.events.extend(kept)


def _slim(plane: Any, last_ps: int, late: set[int], shortest_ps: int, *, devices: bool) -> None:
    """Remove events, stats and lines of a plane that gpudiag does not read, or that the options exclude.

    Removed are host events from `last_ps` on, events with the correlation ids `late`, and, if the space has device
    planes (`devices`), executor events shorter than `shortest_ps`.
    """
    names = _stat_names(plane)
    on_device = plane.name.startswith("/device:")
    for line in list(plane.lines):
        kept = []
        for event in line.events:
            if devices and _is_executors(plane, event) and event.duration_ps < shortest_ps:
                continue
            of_event = _READ_OF_EXECUTORS.get(plane.event_metadata[event.metadata_id].name, set())
            read = _READ | (_READ_OF_DEVICES if on_device else of_event)
            stats = [stat for stat in event.stats if names[stat.metadata_id] in read]
            calls = {stat.uint64_value for stat in stats if names[stat.metadata_id] == "correlation_id"}
            gone = calls & late or (not on_device and _begin_ps(line, event) >= last_ps)
            if event.duration_ps == 0 or gone:
                continue
            del event.stats[:]
            event.stats.extend(stats)
            kept.append(event)
        del line.events[:]
        line.events.extend(kept)
        launches = any(names[s.metadata_id] == "correlation_id" for event in kept for s in event.stats)
        runs_modules = any(names[s.metadata_id] == "hlo_op" for event in kept for s in event.stats)
        trains = any(names[s.metadata_id] == "step_num" for event in kept for s in event.stats)
        runs = not devices and any(plane.event_metadata[event.metadata_id].name in _READ_OF_EXECUTORS for event in kept)
        runs |= any(plane.event_metadata[event.metadata_id].name.startswith(_DISPATCH) for event in kept)
        if not kept or not (launches or trains or runs or runs_modules or line.name.startswith("Host Threads/")):
            plane.lines.remove(line)
    _forget_unused(plane)


def _forget_unused(plane: Any) -> None:
    """Remove unused names, and number the remaining names from 1; those of events in order of use, most used first."""
    events = [event for line in plane.lines for event in line.events]
    used = [ident for ident, _ in Counter(event.metadata_id for event in events).most_common()]
    number = {ident: place for place, ident in enumerate(used, start=1)}
    texts = {place: _short(plane.event_metadata[ident].name) for ident, place in number.items()}
    for event in events:
        event.metadata_id = number[event.metadata_id]
    plane.event_metadata.clear()
    for place, text in texts.items():
        plane.event_metadata[place].id, plane.event_metadata[place].name = place, text
    stats = [*plane.stats, *(stat for event in events for stat in event.stats)]
    needed = {stat.metadata_id for stat in stats} | {s.ref_value for s in stats if s.WhichOneof("value") == "ref_value"}
    number = {ident: place for place, ident in enumerate(sorted(needed & set(plane.stat_metadata)), start=1)}
    texts = {place: plane.stat_metadata[ident].name for ident, place in number.items()}
    for stat in stats:
        stat.metadata_id = number[stat.metadata_id]
        if stat.WhichOneof("value") == "ref_value":
            stat.ref_value = number[stat.ref_value]
    plane.stat_metadata.clear()
    for place, text in texts.items():
        plane.stat_metadata[place].id, plane.stat_metadata[place].name = place, text


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME or "nccl" in name or _OP.fullmatch(name):
        return name
    return f"{name[:_LONGEST_NAME]}~{zlib.crc32(name.encode()):08x}"


def _forget_paths(plane: Any) -> None:
    names = _stat_names(plane)
    kept = [stat for stat in plane.stats if names[stat.metadata_id].startswith("profile_st")]
    del plane.stats[:]
    plane.stats.extend(kept)


def _packed(data: bytes) -> bytes:
    """Compress with zopfli if it is installed, otherwise with gzip."""
    try:
        from zopfli.gzip import compress
    except ImportError:
        return gzip.compress(data, 9, mtime=0)
    packed: bytes = compress(data, numiterations=5)
    return packed


def main() -> None:
    """Parse the command line and write the copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int, help="keep this many steps; all when left out")
    parser.add_argument("--shortest", type=int, default=0, metavar="US", help="drop kernels shorter than this")
    parser.add_argument("--gpus", type=int, help="keep the first ones; all when left out")
    parser.add_argument("--python", action="store_true", help="keep Python functions")
    options = parser.parse_args()
    minify(options.source, options.target, options.steps, options.shortest * 10**6, options.gpus, python=options.python)


if __name__ == "__main__":
    main()
