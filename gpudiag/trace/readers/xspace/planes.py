"""Planes of an XSpace, from protobuf messages to columns: what each recorded, and what it says of itself."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.trace.readers.xspace.wire import RawEvents, decode_events

#: Stats of events that are read, by name (TensorFlow: xla/tsl/profiler/utils/xplane_schema.cc).
CORRELATION, DEVICE = "correlation_id", "device_id"
STEP, BUFFER = "step_num", "buffer_size"
#: The run of a function that an executor works for.
ID = "id"
COPY_DETAILS, SET_DETAILS = "memcpy_details", "Memset_details"
#: Of what is sent from device to device: the key by which both sides know it, whose result it is, and who needs it.
KEY, FROM, TO = "key", "from", "to"
#: The op of a kernel or copy; the graph's node that an executor begins.
OP, NODE = "tf_op", "name"
_WORDS = (COPY_DETAILS, SET_DETAILS, KEY, FROM, TO, OP, NODE)
_WANTED = {word.lower(): word for word in (CORRELATION, DEVICE, STEP, BUFFER, ID, *_WORDS)}
#: Of a host's calls the op is not read: it is that of what they launch.
_OF_DEVICES_ALONE = frozenset({OP})

#: Lines that gpudiag wrote beside what was recorded, for the plugin's overview.
_OWN_LINE = re.compile(r"gpudiag: ")
_PS_PER_NS = 1_000
#: The year 2116. What a line says beyond it or below 0 is no time: taken as this, distances between lines fit int64 and
#: the line's events are days away from all others and left out.
_LAST_NS = 2**62

_DEVICE_PLANE = re.compile(r"/device:GPU:(\d{1,4})$")
_OTHER_PLANE = re.compile(r"/device:([A-Za-z]{1,20})(?:_[A-Za-z]+)?:\d{1,4}\b")
#: Planes that are of no accelerator, or of one that is read: derived ones, and logical devices of the host.
_NO_ACCELERATOR = ("GPU", "CPU", "CUSTOM")
_STREAM = re.compile(r"Stream #?(\d{1,18})\b")
#: Instants of TensorFlow's allocator: a third of all events, each with a dozen stats of which none is read.
_WITHOUT_STATS = {"MemoryAllocation", "MemoryDeallocation"}
#: Where CUPTI files what it cost itself, by thread of the operating system.
_OVERHEAD_LINE = "Host Threads/"


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one plane as columns of equal length n, in file order.

    Attributes:
        device: ordinal of a GPU's plane; None for a host's.
        name: int64[n], index into `names`.
        start_ns, end_ns: int64[n], since `base_ns`; the picoseconds of the format are cut off.
        line: int64[n], which of `lines`.
        names: distinct names.
        lines: (id, name) of each line; the id is that of the stream on a GPU, of the thread on a host.
        stats: for each stat that some event has, (events, values): int64[k] each; values are whole numbers, or indices
            into `texts` for what the profiler put into words.
        texts: the words.
        base_ns: the earliest start of a line (Unix, ns, or since the profiler began).
        about: what the plane says of itself.
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
        """int64[n]: a stat of every event, `missing` where it has none."""
        column = np.full(len(self.name), missing, np.int64)
        if stat in self.stats:
            events, values = self.stats[stat]
            column[events] = values
        return column

    @property
    def overhead(self) -> NDArray[np.bool_]:
        """bool[n], events of the lines in which CUPTI files what it cost itself."""
        flags = np.array([name.startswith(_OVERHEAD_LINE) for _, name in self.lines], np.bool_)
        return flags[self.line]


def about(plane: Any) -> dict[str, Any]:
    """The stats of a plane itself, by name."""
    names = plane.stat_metadata
    told: dict[str, Any] = {}
    for stat in plane.stats:
        kind = stat.WhichOneof("value")
        if kind is None or stat.metadata_id not in names:
            continue
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = names[value].name if value in names else ""
        told[names[stat.metadata_id].name] = value
    return told


def unread_device_of(plane: Any) -> str | None:
    """Return the kind of the accelerator, other than a GPU, whose plane with events it is; else None."""
    found = _OTHER_PLANE.search(plane.name)
    if found is None or found[1] in _NO_ACCELERATOR or not any(len(line.events) for line in plane.lines):
        return None
    return found[1]


def device_of(plane: Any) -> int | None:
    """The ordinal of the GPU whose plane it is, or None."""
    found = _DEVICE_PLANE.search(plane.name)
    return int(found[1]) if found else None


def read_plane(plane: Any) -> Plane:
    """The columns of one plane, whose events are undecoded. Of a GPU only streams are read: other lines repeat them.

    Raises:
        WireError: an event is broken.
    """
    device = device_of(plane)
    chosen, idents = [], []
    for line in plane.lines:
        stream = _STREAM.match(line.name)
        if (device is not None and stream is None) or _OWN_LINE.match(line.name):
            continue
        chosen.append(line)
        idents.append((int(stream[1]) if device is not None and stream is not None else line.id, line.name))
    metadata = plane.stat_metadata
    wanted = {
        ident: word
        for ident, entry in metadata.items()
        if (word := _WANTED.get(entry.name.lower())) and (device is not None or word not in _OF_DEVICES_ALONE)
    }
    bare = [ident for ident, entry in plane.event_metadata.items() if entry.name in _WITHOUT_STATS]
    raw = decode_events([event for line in chosen for event in line.events], wanted, bare)
    line_of = np.repeat(np.arange(len(chosen)), [len(line.events) for line in chosen])
    begins = np.array([line.timestamp_ns for line in chosen], np.int64)
    begins = np.where((begins < 0) | (begins > _LAST_NS), _LAST_NS, begins)
    base_ns = int(begins.min()) if len(begins) else 0
    begin = (begins - base_ns)[line_of]
    reach_ps = raw.offset_ps + np.maximum(raw.duration_ps, 0)
    timed = ~raw.aggregated
    name, names = _names(plane, raw.metadata_id[timed])
    stats, texts = _stats(metadata, wanted, raw)
    return Plane(
        device=device,
        name=name,
        start_ns=(begin + raw.offset_ps // _PS_PER_NS)[timed],
        end_ns=(begin + reach_ps // _PS_PER_NS)[timed],
        line=line_of[timed],
        names=names,
        lines=tuple(idents),
        stats=stats,
        texts=texts,
        base_ns=base_ns,
        about=about(plane),
    )


def _names(plane: Any, metadata_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each event's name as an index, and the names."""
    idents = distinct(metadata_id)
    index = np.searchsorted(idents, metadata_id)
    known = plane.event_metadata
    names = tuple(known[ident].name if ident in known else "" for ident in idents.tolist())
    return index.astype(np.int64), names


def _stats(
    metadata: Any, wanted: dict[int, str], raw: RawEvents
) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]], dict[int, str]]:
    """The stats by name, of the events that have a place in time, and the words that they refer to."""
    place = np.cumsum(~raw.aggregated) - 1
    stats: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    texts: dict[int, str] = {}
    for number, name in wanted.items():
        mine = (raw.stat_id == number) & ~raw.aggregated[raw.stat_event]
        if not mine.any():
            continue
        value = raw.stat_value[mine]
        stats[name] = (place[raw.stat_event[mine]], value)
        if name in _WORDS:
            referred = distinct(value).tolist()
            texts.update({one: metadata[one].name for one in referred if one in metadata})
    return stats, texts
