"""An export model as an XSpace, so that TensorBoard's profile plugin (xprof) opens it.

One file holds all ranks: a plane per device, above it one with gpudiag's tracks, and the threads of all processes in
the one host plane that the plugin knows. Times are picoseconds there, so nothing is rounded.

The viewer draws planes in the order of numbers that it makes of their ids: 1001 + id for GPUs, 1501 + id for custom
planes, 1701 for the host (seen in xprof 2.24). It sorts a GPU's lines by how many events they have, those of a custom
plane by id: therefore gpudiag's tracks are in custom planes, and ids are chosen so that each lands right above its GPU.
"""

from __future__ import annotations

import re
from typing import Any

from gpudiag.errors import UnreadableInputError
from gpudiag.model.event import NO_CORRELATION, NO_SIZE, EventKind
from gpudiag.model.protobuf import message_type
from gpudiag.report.export.format import Format
from gpudiag.report.export.model import ExportModel, Group, Track, TrackKind
from gpudiag.report.export.xprof_steps import PARTS_LINE, STEPS_LINE, PacingGroup, StepEvent, pacing_group

_PS_PER_NS = 1_000
_GPU_PLANE = re.compile(r"/device:GPU:\d{1,4}$")
_LEAST_UNIX_NS = 10**17
_HOST_PLANE = "/host:CPU"
_GPUDIAG_PLANE = "/device:CUSTOM:{} · gpudiag"
_CUSTOM_AFTER_GPU = 500
#: Of an event: the step that it belongs to. The plugin keeps it, and fills what has none from the event before.
_GROUP = "group_id"
_COPY = "Memcpy "
#: What a kernel's registers and blocks are is not kept; without any details the plugin takes it for none.
_NO_DETAILS = "kernel"
#: The correlation id of events that are gpudiag's own: of no call.
_OWN_CALL = 2**40
#: Of more devices than this the viewer cannot tell the planes apart when each has one of gpudiag's tracks above it.
_MOST_DEVICES = 249


class _Plane:
    """A plane that is being filled; names are numbered as they come.

    Args:
        plane: the message.
        begins_ns: the export model's zero on the file's clock, which counts from the begin of the profile.
        roots: steps are what the plugin is to follow launches from; not where events say their steps.
    """

    def __init__(self, plane: Any, begins_ns: int = 0, *, roots: bool = True) -> None:
        self.message = plane
        self._roots = roots
        self._begins_ns = begins_ns
        self._names: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def name(self, text: str) -> int:
        """The number of an event's name. PyTorch's names of copies lose a space, by which the plugin knows them."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            entry = self.message.event_metadata[number]
            entry.id, entry.name = number, text
            if text.startswith(_COPY):
                entry.name, entry.display_name = text.replace(" ", "", 1), text
        return number

    def stat(self, text: str) -> int:
        """The number of a stat's name."""
        number = self._stats.get(text)
        if number is None:
            number = self._stats[text] = len(self._stats) + 1
            entry = self.message.stat_metadata[number]
            entry.id, entry.name = number, text
        return number

    def about(self, name: str, value: str) -> None:
        """Say something of the plane itself."""
        self.message.stats.add(metadata_id=self.stat(name), str_value=value)

    def line(
        self, track: Track, *, ident: int, title: str, calls_from: int = 0, pacing: PacingGroup | None = None
    ) -> None:
        """Add a track; `calls_from` is added to its correlation ids, which are of one process; `pacing` knows steps."""
        line = self.message.lines.add(id=ident, display_id=ident, name=title, timestamp_ns=self._begins_ns)
        used = {index: self.name(track.names[index]) for index in set(track.name.tolist())}
        add = line.events.add
        for start, end, index in zip(track.start.tolist(), track.end.tolist(), track.name.tolist(), strict=True):
            add(metadata_id=used[index], offset_ps=start * _PS_PER_NS, duration_ps=(end - start) * _PS_PER_NS)
        self._correlate(track, line.events, calls_from)
        self._number(track, line.events)
        if track.kind in {TrackKind.STREAM, TrackKind.SHADOWS}:
            self._for_statistics(track, line.events, pacing)

    def step_line(self, events: list[StepEvent], *, ident: int, title: str, marks: bool = False) -> None:
        """Add a line of events that say their step; `marks`: they are the steps."""
        if not events:
            return
        line = self.message.lines.add(id=ident, display_id=ident, name=title, timestamp_ns=self._begins_ns)
        for event in events:
            added = line.events.add(
                metadata_id=self.name(event.name),
                offset_ps=event.start * _PS_PER_NS,
                duration_ps=(event.end - event.start) * _PS_PER_NS,
            )
            added.stats.add(metadata_id=self.stat(_GROUP), int64_value=event.step)
            if marks:
                added.stats.add(metadata_id=self.stat("step_name"), str_value=event.name)
            else:
                added.stats.add(metadata_id=self.stat("correlation_id"), uint64_value=_OWN_CALL)

    def _for_statistics(self, track: Track, events: Any, pacing: PacingGroup | None) -> None:
        """Say which events are kernels, and of which step those of the group that sets the pace are."""
        if track.event_kind is not None and track.kind is TrackKind.STREAM:
            number = self.stat("kernel_details")
            for row in (track.event_kind == EventKind.KERNEL).nonzero()[0].tolist():
                events[row].stats.add(metadata_id=number, str_value=_NO_DETAILS)
        if pacing is not None:
            number = self.stat(_GROUP)
            for row, step in enumerate(pacing.step_of(track).tolist()):
                events[row].stats.add(metadata_id=number, int64_value=step)

    def _correlate(self, track: Track, events: Any, calls_from: int) -> None:
        """Join launches and device work, which the plugin needs to know what belongs to a step."""
        if track.correlation is None or track.size_bytes is None or track.kind is TrackKind.SHADOWS:
            return  # what PyTorch numbers annotations by is no call
        number = self.stat("correlation_id")
        for row, correlation in enumerate(track.correlation.tolist()):
            if correlation != NO_CORRELATION:
                events[row].stats.add(metadata_id=number, uint64_value=calls_from + correlation)
        if track.event_kind is None:
            return
        for row, (kind, size) in enumerate(zip(track.event_kind.tolist(), track.size_bytes.tolist(), strict=True)):
            if size != NO_SIZE and kind in {EventKind.COPY, EventKind.MEMSET}:
                details = "memcpy_details" if kind == EventKind.COPY else "Memset_details"
                what = "size" if kind == EventKind.COPY else "num_bytes"
                events[row].stats.add(metadata_id=self.stat(details), str_value=f"{what}:{size}")

    def _number(self, track: Track, events: Any) -> None:
        """Mark steps as TensorFlow does."""
        if track.step is None or track.kind is not TrackKind.THREAD:
            return
        for row, step in enumerate(track.step.tolist()):
            if step >= 0:
                events[row].stats.add(metadata_id=self.stat("step_num"), int64_value=step)
                if self._roots:
                    events[row].stats.add(metadata_id=self.stat("_r"), int64_value=1)


def xspace_of(exported: ExportModel, host: str = "gpudiag") -> Any:
    """The `XSpace` message of an export model.

    Args:
        exported: what to write.
        host: the host name that the plugin shows.
    """
    space = message_type("xplane", "XSpace")()
    space.hostnames.append(host)
    calls_from = _calls_from(exported)
    devices = [group for group in exported.groups if group.device is not None]
    pacing = pacing_group(exported)
    for place, group in enumerate(devices):
        own_id, gpu_id = _ids(place, len(devices))
        paces = pacing if pacing is not None and pacing.group is group else None
        streams = [track for track in group.tracks if track.kind is not TrackKind.GPUDIAG]
        plane = _Plane(space.planes.add(id=gpu_id, name=f"/device:GPU:{place}"))
        plane.about("device_vendor", "AMD" if group.model.startswith(("AMD", "gfx")) else "Nvidia")
        plane.about("gpu_device_name", group.model or group.title)
        for ident, track in enumerate(streams, start=1):
            title = _stream_title(track)
            plane.line(track, ident=ident, title=title, calls_from=calls_from[group.process], pacing=paces)
        if paces is not None:
            plane.step_line(paces.windows(), ident=len(streams) + 1, title=STEPS_LINE, marks=True)
            plane.step_line(paces.parts(), ident=len(streams) + 2, title=PARTS_LINE)
        if own_id is not None:
            _gpudiag_plane(space, 0, group, own_id)
    threads = _Plane(space.planes.add(id=len(space.planes), name=_HOST_PLANE), roots=pacing is None)
    ident = 0
    for place, group in enumerate(group for group in exported.groups if group.device is None):
        _gpudiag_plane(space, 0, group, place)
        for track in group.tracks:
            if track.kind is not TrackKind.GPUDIAG:
                ident += 1
                title = f"{group.title.removesuffix(' · host')} {track.title}"
                threads.line(track, ident=ident, title=title, calls_from=calls_from[group.process])
    if pacing is not None and pacing.group.device is None:
        threads.step_line(pacing.windows(), ident=ident + 1, title=STEPS_LINE, marks=True)
        threads.step_line(pacing.parts(), ident=ident + 2, title=PARTS_LINE)
    environment = _Plane(space.planes.add(id=len(space.planes), name="Task Environment"))
    last = max((int(t.end.max()) for g in exported.groups for t in g.tracks if len(t)), default=0)
    for name, value in (
        ("profile_start_time", exported.origin_ns),
        ("profile_stop_time", exported.origin_ns + last),
    ):
        environment.message.stats.add(metadata_id=environment.stat(name), uint64_value=value)
    return space


def with_gpudiag_tracks(data: bytes, exported: ExportModel) -> bytes:
    """TensorFlow's profile of the one process of an export model as it is, with gpudiag's tracks above its GPUs.

    Args:
        data: the serialized XSpace.
        exported: what was found in it.
    """
    space = message_type("xplane", "XSpace").FromString(data)
    devices = {group.device: group for group in exported.groups}
    planes = sorted((plane for plane in space.planes if _GPU_PLANE.match(plane.name)), key=_ordinal)
    begins = [line.timestamp_ns for plane in space.planes for line in plane.lines if line.events]
    # TensorFlow's times count from the begin of the profile, JAX's from 1970.
    origin = exported.origin_ns - (_begun_ns(space) if min(begins, default=0) < _LEAST_UNIX_NS else 0)
    for place, plane in enumerate(planes):
        own_id, plane.id = _ids(place, len(planes))
        group = devices.get(_ordinal(plane))
        if group is not None and own_id is not None:
            _gpudiag_plane(space, origin, group, own_id)
    result: bytes = space.SerializeToString()
    return result


def _ordinal(plane: Any) -> int:
    return int(plane.name.rpartition(":")[2])


def _begun_ns(space: Any) -> int:
    for plane in space.planes:
        names = plane.stat_metadata
        for stat in plane.stats:
            if stat.metadata_id in names and names[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    return 0


def _calls_from(exported: ExportModel) -> dict[int, int]:
    """What to add to each process's correlation ids so that no two processes share one."""
    most: dict[int, int] = {}
    for group in exported.groups:
        for track in group.tracks:
            if track.correlation is not None and len(track):
                most[group.process] = max(most.get(group.process, 0), int(track.correlation.max()))
    offsets, following = {}, 0
    for process in sorted({group.process for group in exported.groups}):
        offsets[process] = following
        following += most.get(process, 0)
    return offsets


def _ids(place: int, devices: int) -> tuple[int | None, int]:
    """Plane ids of gpudiag's tracks of a device (None where there is no number left for them) and of the device."""
    if devices <= _MOST_DEVICES:
        return 2 * place - _CUSTOM_AFTER_GPU, 2 * place + 1
    return None, place


def _gpudiag_plane(space: Any, begins_ns: int, group: Group, ident: int) -> None:
    own = [track for track in group.tracks if track.kind is TrackKind.GPUDIAG]
    if own:
        title = group.title.partition(" · ")[0]
        plane = _Plane(space.planes.add(id=ident, name=_GPUDIAG_PLANE.format(title)), begins_ns)
        for number, track in enumerate(own, start=1):
            plane.line(track, ident=number, title=track.title)


def _stream_title(track: Track) -> str:
    """As TensorFlow writes it: the plugin tells streams, and what runs on them, by that."""
    return f"Stream #{track.ident}({_contents(track)})" if track.kind is TrackKind.STREAM else track.title


def _contents(track: Track) -> str:
    """What runs on a stream, as TensorFlow writes it: the plugin tells streams apart by it."""
    if track.event_kind is None:
        return "Compute"
    kinds = set(track.event_kind.tolist())
    words = {EventKind.KERNEL: "Compute", EventKind.COPY: "Memcpy", EventKind.MEMSET: "Memset"}
    return ",".join(word for kind, word in words.items() if kind in kinds) or "Compute"


def encode_xspace(exported: ExportModel) -> bytes:
    """The file's bytes: a serialized `XSpace`.

    Raises:
        UnreadableInputError: events so far apart that the format, which counts picoseconds, cannot say it.
    """
    try:
        data: bytes = xspace_of(exported).SerializeToString()
    except ValueError as error:
        raise UnreadableInputError(
            f"events are further apart than an XSpace can say ({error})", "Use another format: --to csv."
        ) from error
    return data


FORMAT = Format(
    name="xspace",
    ending=".xplane.pb",
    opens="TensorBoard's profile plugin (gpudiag view does both)",
    encode=encode_xspace,
)
