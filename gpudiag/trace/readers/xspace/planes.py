"""Convert planes of an XSpace from protobuf messages to columns of events, and parse the details of copies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import NO_SIZE, Direction, HostMemory
from gpudiag.trace.readers.xspace.wire import RawEvents, decode_events

#: Event stats that are read, by name (TensorFlow: xla/tsl/profiler/utils/xplane_schema.cc).
CORRELATION, DEVICE = "correlation_id", "device_id"
STEP, BUFFER = "step_num", "buffer_size"
#: Number of the function's run for which TensorFlow's executor works.
ID = "id"
COPY_DETAILS, SET_DETAILS = "memcpy_details", "Memset_details"
#: Stats of a tensor sent between devices: the key that both sides share, the producing op, the consuming op.
KEY, FROM, TO = "key", "from", "to"
#: Stats with the op of a kernel or copy, and with the graph's node that the executor begins.
OP, NODE = "tf_op", "name"
#: Stats of work that XLA compiled: operation, module, number of the module's run, and number of the CPU device.
HLO_OP, HLO_MODULE, RUN, ORDINAL = "hlo_op", "hlo_module", "run_id", "device_ordinal"
_TEXTS = (COPY_DETAILS, SET_DETAILS, KEY, FROM, TO, OP, NODE, HLO_OP, HLO_MODULE)
_WANTED = {word.lower(): word for word in (CORRELATION, DEVICE, STEP, BUFFER, ID, RUN, ORDINAL, *_TEXTS)}
#: Stats that are read only on device events, because on host calls they repeat the op of the launched work.
_DEVICE_STATS = frozenset({OP})

#: Names of lines that gpudiag added to a trace, for the overview of TensorBoard's plugin.
_GPUDIAG_LINE = re.compile(r"gpudiag: ")
_PS_PER_NS = 1_000
#: The year 2116 in Unix ns. Begins of lines above this value or below 0 are invalid and are replaced by this value.
#: Differences of begins then fit int64. Events on such a line are left out later, because they are far from all others.
_LAST_NS = 2**62

_DEVICE_PLANE = re.compile(r"/device:GPU:(\d{1,4})$")
_OTHER_PLANE = re.compile(r"/device:([A-Za-z]{1,20})(?:_[A-Za-z]+)?:\d{1,4}\b")
#: Kinds of devices that are not reported as unread: GPUs, logical devices of the host, and planes derived from others.
_NO_ACCELERATOR = ("GPU", "CPU", "CUSTOM")
_STREAM = re.compile(r"Stream #?(\d{1,18})\b")
#: Instants of TensorFlow's allocator: a third of all events, each with a dozen stats that are not needed.
_WITHOUT_STATS = {"MemoryAllocation", "MemoryDeallocation"}
#: Limit on plausible numbers of compute units, above that of any GPU.
_MAX_UNITS = 10_000
#: Beginning of the names of lines with CUPTI's overhead, one line per thread of the operating system.
_OVERHEAD_LINE = "Host Threads/"


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one plane as columns of equal length n, in file order.

    Attributes:
        device: ordinal of a GPU's plane; None for a host's.
        name: int64[n], index into `names`.
        start_ns, end_ns: int64[n], ns since `base_ns`; the format's picoseconds are truncated.
        line: int64[n], index into `lines`.
        names: distinct names.
        lines: (id, name) of each line; the id is the stream's on a GPU and the thread's on a host.
        stats: name → (indices of events, values), int64[k] each; values are integers, or keys of `texts`.
        texts: text values of stats.
        base_ns: the earliest start of a line (Unix, ns, or since the profiler began).
        about: stats of the plane itself.
    """

    device: int | None
    name: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    line: NDArray[np.int64]
    names: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]
    stats: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
    texts: dict[int, str]
    base_ns: int
    about: dict[str, Any]

    def whole(self, stat: str, missing: int) -> NDArray[np.int64]:
        """Return int64[n]: the value of a stat for every event; `missing` if an event does not have it."""
        column = np.full(len(self.name), missing, np.int64)
        if stat in self.stats:
            events, values = self.stats[stat]
            column[events] = values
        return column

    def text(self, stat: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return (int64[n] of indices into the texts, the distinct texts) of a stat; "" for events without the stat."""
        column = self.whole(stat, -1)
        refs, index = np.unique(column, return_inverse=True)
        return index.astype(np.int64), tuple(self.texts.get(ref, "") for ref in refs.tolist())

    def with_text(self, stat: str, matches: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return bool[n]: whether the text of each event's stat satisfies the predicate `matches`."""
        index, texts = self.text(stat)
        return np.array([matches(text) for text in texts], np.bool_)[index]

    def named(self, matches: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event's name satisfies the predicate `matches`."""
        return np.array([bool(matches(name)) for name in self.names], np.bool_)[self.name]

    @property
    def overhead(self) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event is on a line in which CUPTI records its overhead."""
        flags = np.array([name.startswith(_OVERHEAD_LINE) for _, name in self.lines], np.bool_)
        return flags[self.line]


def about(plane: Any) -> dict[str, Any]:
    """Return name → value of the stats of a plane itself."""
    names = plane.stat_metadata
    stats: dict[str, Any] = {}
    for stat in plane.stats:
        kind = stat.WhichOneof("value")
        if kind is None or stat.metadata_id not in names:
            continue
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = names[value].name if value in names else ""
        stats[names[stat.metadata_id].name] = value
    return stats


def unread_device_of(plane: Any) -> str | None:
    """Return the kind of accelerator of a plane, such as TPU; None for `_NO_ACCELERATOR`, and for an empty plane."""
    match = _OTHER_PLANE.search(plane.name)
    if match is None or match[1] in _NO_ACCELERATOR or not any(len(line.events) for line in plane.lines):
        return None
    return match[1]


def device_of(plane: Any) -> int | None:
    """Return the ordinal of the GPU of a plane; None if the plane is not a GPU's."""
    match = _DEVICE_PLANE.search(plane.name)
    return int(match[1]) if match else None


def device_model(plane: Plane) -> str:
    """Return the model of a GPU, or vendor and number of compute units if only these are known (AMD); "" if unknown."""
    for field in ("gpu_device_name", "device_type_string"):
        model: Any = plane.about.get(field, "")
        if model and isinstance(model, str):
            return model
    vendor, units = plane.about.get("device_vendor", ""), plane.about.get("core_count", 0)
    if not vendor or not isinstance(vendor, str):
        return ""
    count = f" with {units} compute units" if isinstance(units, int) and 0 < units < _MAX_UNITS else ""
    return f"{vendor} GPU{count}"


def read_plane(plane: Any) -> Plane:
    """Decode one plane to columns. A GPU's lines other than streams are left out, because they repeat events.

    Events without a time are left out too.

    Raises:
        WireError: an event is broken.
    """
    device = device_of(plane)
    lines, idents = _lines_to_read(plane, on_device=device is not None)
    metadata = plane.stat_metadata
    wanted = {
        ident: word
        for ident, entry in metadata.items()
        if (word := _WANTED.get(entry.name.lower())) and (device is not None or word not in _DEVICE_STATS)
    }
    bare = [ident for ident, entry in plane.event_metadata.items() if entry.name in _WITHOUT_STATS]
    raw = decode_events([event for line in lines for event in line.events], wanted, bare)
    line_of = np.repeat(np.arange(len(lines)), [len(line.events) for line in lines])
    begins = np.array([line.timestamp_ns for line in lines], np.int64)
    begins = np.where((begins < 0) | (begins > _LAST_NS), _LAST_NS, begins)
    base_ns = int(begins.min()) if len(begins) else 0
    begin = (begins - base_ns)[line_of]
    end_ps = raw.offset_ps + np.maximum(raw.duration_ps, 0)  # the length of a damaged event may be negative
    timed = ~raw.aggregated
    name, names = _names(plane, raw.metadata_id[timed])
    stats, texts = _stats(metadata, wanted, raw)
    return Plane(
        device=device,
        name=name,
        start_ns=(begin + raw.offset_ps // _PS_PER_NS)[timed],
        end_ns=(begin + end_ps // _PS_PER_NS)[timed],
        line=line_of[timed],
        names=names,
        lines=tuple(idents),
        stats=stats,
        texts=texts,
        base_ns=base_ns,
        about=about(plane),
    )


def _lines_to_read(plane: Any, *, on_device: bool) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the lines to read and the (id, name) of each: on a GPU only streams, and none that gpudiag added."""
    lines, idents = [], []
    for line in plane.lines:
        stream = _STREAM.match(line.name) if on_device else None
        if (on_device and stream is None) or _GPUDIAG_LINE.match(line.name):
            continue
        lines.append(line)
        idents.append((int(stream[1]) if stream else line.id, line.name))
    return lines, idents


def _names(plane: Any, metadata_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (int64[n], index of each event's name among the distinct names; the distinct names)."""
    idents = distinct(metadata_id)
    index = np.searchsorted(idents, metadata_id)
    known = plane.event_metadata
    names = tuple(known[ident].name if ident in known else "" for ident in idents.tolist())
    return index.astype(np.int64), names


def _stats(
    metadata: Any, wanted: dict[int, str], raw: RawEvents
) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]], dict[int, str]]:
    """Return (name → (events, values) of stats, texts that values refer to), for events that have a time.

    `metadata` has the names of stats and texts, by id; `wanted` has the stats to return (id → name).
    """
    position = np.cumsum(~raw.aggregated) - 1  # index of each event among the events that have a time
    stats: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    texts: dict[int, str] = {}
    for number, name in wanted.items():
        chosen = (raw.stat_id == number) & ~raw.aggregated[raw.stat_event]
        if not chosen.any():
            continue
        value = raw.stat_value[chosen]
        stats[name] = (position[raw.stat_event[chosen]], value)
        if name in _TEXTS:
            texts.update({ref: metadata[ref].name for ref in distinct(value).tolist() if ref in metadata})
    return stats, texts


class PlaneCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy: name for reports, size (`NO_SIZE` if unknown), direction, and kind of host memory."""

    name: str
    size_bytes: int = NO_SIZE
    direction: Direction = Direction.NONE
    host_memory: HostMemory = HostMemory.UNKNOWN


_DIRECTION = re.compile(r"Memcpy([HDAP])2([HDAP])$")
#: Name of a copy in XSpaces that gpudiag writes from PyTorch's traces. xprof recognises names without a space only.
_WRITTEN_DIRECTION = re.compile(r"Memcpy([HDAP])to([HDAP])\b(?: \((\w+) -> (\w+)\))?")
_MEMORY_KINDS = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")
_COPY_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_SET_SIZE = re.compile(r"\bnum_bytes:(\d{1,18})\b")
_DIRECTIONS = {
    "H2D": Direction.HOST_TO_DEVICE,
    "D2H": Direction.DEVICE_TO_HOST,
    "D2D": Direction.DEVICE_TO_DEVICE,
    "P2P": Direction.PEER,
    "H2H": Direction.HOST_TO_HOST,
}


def parse_copy(event: str, details: str) -> PlaneCopy:
    """Parse a copy from the event's name and its `memcpy_details`. A fact that neither states is unknown. Example:

    MemcpyH2D   kind_src:pageable kind_dst:device size:38535168 dest:0 async:1
    → host to device, from pageable memory, 38535168 bytes, name "Memcpy HtoD (Pageable -> Device)"
    """
    size = _COPY_SIZE.search(details)
    size_bytes = int(size[1]) if size else NO_SIZE
    direction = _DIRECTION.match(event) or _WRITTEN_DIRECTION.match(event)
    if direction is None:
        return PlaneCopy(name=event, size_bytes=size_bytes)
    detailed = _MEMORY_KINDS.search(details)
    kinds = [kind for kind in (detailed.groups() if detailed else direction.groups()[2:]) if kind]
    memory = {kind.upper() for kind in kinds} & {"PINNED", "PAGEABLE"}
    suffix = f" ({' -> '.join(kind.capitalize() for kind in kinds)})" if kinds else ""
    return PlaneCopy(
        name=f"Memcpy {direction[1]}to{direction[2]}{suffix}",
        size_bytes=size_bytes,
        direction=_DIRECTIONS.get(f"{direction[1]}2{direction[2]}", Direction.NONE),
        host_memory=HostMemory["PAGEABLE" if "PAGEABLE" in memory else "PINNED"] if memory else HostMemory.UNKNOWN,
    )


def parse_memset_bytes(details: str) -> int:
    """Return the number of bytes that a memset filled, from its `Memset_details`; `NO_SIZE` if unknown."""
    size = _SET_SIZE.search(details)
    return int(size[1]) if size else NO_SIZE
