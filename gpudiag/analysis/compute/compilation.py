"""Find the times in which a host compiles: TorchDynamo and inductor, retracing of `tf.function`, XLA and JAX."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, among, distinct, union
from gpudiag.model.event import EventKind, EventTable
from gpudiag.model.timeline import DeviceTrack

#: Ranges that last as long as a compilation. PyTorch marks its phases by `dynamo_timed`. Lookups in caches of compiled
#: code ("TorchDynamo Cache Lookup", "CompiledFunction") are no compilations.
_COMPILES = re.compile(
    r"\(dynamo_timed\)$|^entire_(frame|backward)_compile|^_compile\.compile_inner|^compile_fx|^backend_compile$"
    r"|^XlaCompile|^XlaCompilationCache|^LocalClient::Compile|^backend_compile_and_load|^PjRt\w*Client::?Compile"
    r"|^(Lower|lower)_?jaxpr|^trace_to_jaxpr|^XlaJit.*Compile|^GpuCompiler::|FuncGraph\.?from_py_func|^torch\._dynamo"
)
#: The outermost range of one compilation, of which others are phases.
_ONE_COMPILATION = re.compile(r"^_compile\.compile_inner")
#: Characters of a name that are looked at; files come from other people.
_LONGEST_NAME = 1000
#: Identity of a compilation in PyTorch's ranges: frame / number of its recompilation.
_FRAME = re.compile(r"compile_id=!?(?P<frame>[\d/]*?\d+)/(?P<again>\d+)\b")


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """Compilations of one process.

    Attributes:
        spans: times in which the training thread, or a thread that launches, compiled, as a set on the common clock.
        starts: int64[k], begins of compilations, on the common clock.
        frames: compiled frame → highest number of its recompilations, for PyTorch.
    """

    spans: Intervals
    starts: NDArray[np.int64]
    frames: dict[str, int]


@lru_cache(maxsize=4096)
def compiles(name: str) -> bool:
    """Return whether a host range of this name spans a compilation.

    >>> compiles("_compile.compile_inner (dynamo_timed)"), compiles("TorchDynamo Cache Lookup"), compiles("aten::mm")
    (True, False, False)
    """
    return _COMPILES.search(name) is not None


def compilations(events: EventTable, track: DeviceTrack) -> Compilation | None:
    """Return the compilations of a track's process; None without any."""
    threads = {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}
    rows = events.rows_on(threads, EventKind.OPERATOR, EventKind.ANNOTATION)
    used = distinct(events.name[rows]).tolist()
    wanted = [name for name in used if compiles(events.names[name][:_LONGEST_NAME])]
    if not wanted:
        return None
    compiling = rows[among(events.name[rows], np.array(wanted))]
    spans = union(Intervals(events.start_ns[compiling] + track.shift_ns, events.end_ns[compiling] + track.shift_ns))
    single = np.array([name for name in wanted if _ONE_COMPILATION.search(events.names[name])], np.int64)
    outermost = compiling[among(events.name[compiling], single)]
    starts = events.start_ns[outermost] + track.shift_ns if len(outermost) else spans.start
    frames: dict[str, int] = {}
    for name in used:
        found = _FRAME.search(events.names[name][:_LONGEST_NAME])
        if found is not None:
            frames[found["frame"]] = max(frames.get(found["frame"], 0), int(found["again"][:9]))
    return Compilation(spans=spans, starts=starts, frames=frames)
