"""Write an XSpace for TensorBoard's profile plugin (xprof).

One file has all ranks. Each device has two planes: one with its streams, and above it one with gpudiag's tracks. The
threads of all processes share one host plane, because the plugin supports only one. Times are picoseconds, so that they
are exact.

The viewer orders planes by a number made from their ids: 1001 + id for GPUs, 1501 + id for custom planes, 1701 for the
host (xprof 2.24). The viewer sorts lines of a GPU by their number of events, and lines of a custom plane by their ids.
Therefore gpudiag's tracks are in custom planes, whose ids place each plane directly above its GPU.
The pacing group is the rank for which the others wait; its steps become those of the profile (`xprof_steps`).
"""

from __future__ import annotations

import re
from typing import Any

from gpudiag.errors import UnreadableInputError
from gpudiag.model.event import NO_CORRELATION, NO_SIZE, EventKind
from gpudiag.model.protobuf import message_type
from gpudiag.report.export.formats import Format
from gpudiag.report.export.model import ExportModel, ExportTrack, TrackGroup, TrackKind
from gpudiag.report.export.xprof_steps import PARTS_LINE, STEPS_LINE, PacingGroup, StepEvent, pacing_group

_PS_PER_NS = 1_000
_GPU_PLANE = re.compile(r"/device:GPU:\d{1,4}$")
_LEAST_UNIX_NS = 10**17  # the year 1973; smaller times count from the start of a profile
_HOST_PLANE = "/host:CPU"
_GPUDIAG_PLANE = "/device:CUSTOM:{} · gpudiag"
_CUSTOM_AFTER_GPU = 500  # custom planes are numbered from 1501, GPUs from 1001
#: Name of the stat with an event's step. The plugin gives an event without this stat the step of the previous event.
_GROUP = "group_id"
_COPY = "Memcpy "
#: Placeholder for registers and blocks, which are unknown. The plugin ignores kernels without details.
_NO_DETAILS = "kernel"
#: Correlation id of gpudiag's events, which belong to no call. Calls have smaller ids.
_NO_CALL = 2**40
#: Largest number of devices with 2 * devices < `_CUSTOM_AFTER_GPU`. The ids of gpudiag's planes (see `_plane_ids`) are
#: then negative, so that they differ from the ids of all other planes.
_MOST_DEVICES = 249


class _Plane:
    """Writer of a plane. Names are numbered in order of appearance.

    Args:
        plane: the plane's message.
        begins_ns: the export model's zero on the file's clock, which starts with the profile.
        roots: mark steps as roots from which the plugin follows launches; False if each event states its step.
    """

    def __init__(self, plane: Any, begins_ns: int = 0, *, roots: bool = True) -> None:
        self.message = plane
        self._roots = roots
        self._begins_ns = begins_ns
        self._names: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def name(self, text: str) -> int:
        """Return the number of an event's name. `Memcpy HtoD` becomes `MemcpyHtoD`, which the plugin recognizes."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            entry = self.message.event_metadata[number]
            entry.id, entry.name = number, text
            if text.startswith(_COPY):
                entry.name, entry.display_name = text.replace(" ", "", 1), text
        return number

    def stat(self, text: str) -> int:
        """Return the number of a stat's name."""
        number = self._stats.get(text)
        if number is None:
            number = self._stats[text] = len(self._stats) + 1
            entry = self.message.stat_metadata[number]
            entry.id, entry.name = number, text
        return number

    def describe(self, name: str, value: str) -> None:
        """Add a stat of the plane."""
        self.message.stats.add(metadata_id=self.stat(name), str_value=value)

    def line(
        self,
        track: ExportTrack,
        *,
        ident: int,
        title: str,
        correlation_offset: int = 0,
        pacing: PacingGroup | None = None,
    ) -> None:
        """Add a track as line number `ident`; adding `correlation_offset` makes correlation ids unique in the file.

        `pacing` is the group whose steps are written into a stream's events; None if the plugin finds the steps.
        """
        line = self.message.lines.add(id=ident, display_id=ident, name=title, timestamp_ns=self._begins_ns)
        used = {index: self.name(track.names[index]) for index in set(track.name.tolist())}
        add = line.events.add
        for start, end, index in zip(track.start.tolist(), track.end.tolist(), track.name.tolist(), strict=True):
            add(metadata_id=used[index], offset_ps=start * _PS_PER_NS, duration_ps=(end - start) * _PS_PER_NS)
        self._correlate(track, line.events, correlation_offset)
        self._mark_steps(track, line.events)
        if track.kind in {TrackKind.STREAM, TrackKind.SHADOWS}:
            self._for_statistics(track, line.events, pacing)

    def step_lines(self, pacing: PacingGroup, first: int) -> None:
        """Add the lines of steps and their parts, numbered from `first`."""
        self._step_line(pacing.windows(), ident=first, title=STEPS_LINE, marks=True)
        self._step_line(pacing.parts(), ident=first + 1, title=PARTS_LINE, marks=False)

    def _step_line(self, events: list[StepEvent], *, ident: int, title: str, marks: bool) -> None:
        """Add a line of events with their steps. If `marks`, the events are the steps themselves."""
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
                added.stats.add(metadata_id=self.stat("correlation_id"), uint64_value=_NO_CALL)

    def _for_statistics(self, track: ExportTrack, events: Any, pacing: PacingGroup | None) -> None:
        """Mark kernels in `events` of the track's line, so that the plugin counts them; with `pacing`, write steps."""
        if track.event_kind is not None and track.kind is TrackKind.STREAM:
            number = self.stat("kernel_details")
            for row in (track.event_kind == EventKind.KERNEL).nonzero()[0].tolist():
                events[row].stats.add(metadata_id=number, str_value=_NO_DETAILS)
        if pacing is not None:
            number = self.stat(_GROUP)
            for row, step in enumerate(pacing.step_of(track).tolist()):
                events[row].stats.add(metadata_id=number, int64_value=step)

    def _correlate(self, track: ExportTrack, events: Any, offset: int) -> None:
        """Add the sizes of copies, and correlation ids, by which the plugin assigns device work to steps."""
        # The ids of PyTorch's annotations on the device do not belong to a call.
        if track.correlation is None or track.size_bytes is None or track.kind is TrackKind.SHADOWS:
            return
        number = self.stat("correlation_id")
        for row, correlation in enumerate(track.correlation.tolist()):
            if correlation != NO_CORRELATION:
                events[row].stats.add(metadata_id=number, uint64_value=offset + correlation)
        if track.event_kind is None:
            return
        for row, (kind, size) in enumerate(zip(track.event_kind.tolist(), track.size_bytes.tolist(), strict=True)):
            if size != NO_SIZE and kind in {EventKind.COPY, EventKind.MEMSET}:
                details = "memcpy_details" if kind == EventKind.COPY else "Memset_details"
                what = "size" if kind == EventKind.COPY else "num_bytes"
                events[row].stats.add(metadata_id=self.stat(details), str_value=f"{what}:{size}")

    def _mark_steps(self, track: ExportTrack, events: Any) -> None:
        """Mark the steps of a thread as TensorFlow does, with `step_num`, and as roots with `_r` if `roots`."""
        if track.step is None or track.kind is not TrackKind.THREAD:
            return
        for row, step in enumerate(track.step.tolist()):
            if step >= 0:
                events[row].stats.add(metadata_id=self.stat("step_num"), int64_value=step)
                if self._roots:
                    events[row].stats.add(metadata_id=self.stat("_r"), int64_value=1)


def xspace_of(exported: ExportModel, host: str = "gpudiag") -> Any:
    """Return the `XSpace` message of an export model; `host` is the host name that the plugin shows."""
    space = message_type("xplane", "XSpace")()
    space.hostnames.append(host)
    correlation_offsets = _correlation_offsets(exported)
    pacing = pacing_group(exported)
    _device_planes(space, exported, correlation_offsets, pacing)
    _host_plane(space, exported, correlation_offsets, pacing)
    # A plane of this name holds the start and end of the profile.
    environment = _Plane(space.planes.add(id=len(space.planes), name="Task Environment"))
    last = max((int(t.end.max()) for g in exported.groups for t in g.tracks if len(t)), default=0)
    times = {"profile_start_time": exported.origin_ns, "profile_stop_time": exported.origin_ns + last}
    for name, value in times.items():
        environment.message.stats.add(metadata_id=environment.stat(name), uint64_value=value)
    return space


def _device_planes(
    space: Any, exported: ExportModel, correlation_offsets: dict[int, int], pacing: PacingGroup | None
) -> None:
    """Add the plane of each device, and the plane with gpudiag's tracks above it.

    `correlation_offsets` are by process. Only the device of the pacing group states its steps; see `xprof_steps`.
    """
    devices = [group for group in exported.groups if group.device is not None]
    for position, group in enumerate(devices):
        gpudiag_id, gpu_id = _plane_ids(position, len(devices))
        paces = pacing if pacing is not None and pacing.group is group else None
        streams = [track for track in group.tracks if track.kind is not TrackKind.GPUDIAG]
        plane = _Plane(space.planes.add(id=gpu_id, name=f"/device:GPU:{position}"))
        plane.describe("device_vendor", "AMD" if group.model.startswith(("AMD", "gfx")) else "Nvidia")
        plane.describe("gpu_device_name", group.model or group.title)
        offset = correlation_offsets[group.process]
        for ident, track in enumerate(streams, start=1):
            plane.line(track, ident=ident, title=_stream_title(track), correlation_offset=offset, pacing=paces)
        if paces is not None:
            plane.step_lines(paces, first=len(streams) + 1)
        if gpudiag_id is not None:
            _gpudiag_plane(space, 0, group, gpudiag_id)


def _host_plane(
    space: Any, exported: ExportModel, correlation_offsets: dict[int, int], pacing: PacingGroup | None
) -> None:
    """Add the plane with the threads of all processes, and the planes with gpudiag's tracks of hosts.

    If there is a pacing group, the threads' step marks are no roots (see `_Plane`), because the events of this group
    state their steps.
    """
    threads = _Plane(space.planes.add(id=len(space.planes), name=_HOST_PLANE), roots=pacing is None)
    ident = 0
    for position, group in enumerate(group for group in exported.groups if group.device is None):
        _gpudiag_plane(space, 0, group, position)
        for track in group.tracks:
            if track.kind is not TrackKind.GPUDIAG:
                ident += 1
                title = f"{group.title.removesuffix(' · host')} {track.title}"
                threads.line(track, ident=ident, title=title, correlation_offset=correlation_offsets[group.process])
    if pacing is not None and pacing.group.device is None:
        threads.step_lines(pacing, first=ident + 1)


def with_gpudiag_tracks(data: bytes, exported: ExportModel) -> bytes:
    """Add gpudiag's tracks above the GPUs in `data`, a serialized XSpace that TensorFlow or JAX wrote for a process."""
    space = message_type("xplane", "XSpace").FromString(data)
    devices = {group.device: group for group in exported.groups}
    planes = sorted((plane for plane in space.planes if _GPU_PLANE.match(plane.name)), key=_ordinal)
    begins = [line.timestamp_ns for plane in space.planes for line in plane.lines if line.events]
    # TensorFlow counts times from the start of the profile, JAX from 1970.
    origin = exported.origin_ns - (_start_ns(space) if min(begins, default=0) < _LEAST_UNIX_NS else 0)
    for position, plane in enumerate(planes):
        gpudiag_id, plane.id = _plane_ids(position, len(planes))
        group = devices.get(_ordinal(plane))
        if group is not None and gpudiag_id is not None:
            _gpudiag_plane(space, origin, group, gpudiag_id)
    result: bytes = space.SerializeToString()
    return result


def _ordinal(plane: Any) -> int:
    return int(plane.name.rpartition(":")[2])


def _start_ns(space: Any) -> int:
    """Return the Unix time at which the profile starts; 0 if it is unknown."""
    for plane in space.planes:
        names = plane.stat_metadata
        for stat in plane.stats:
            if stat.metadata_id in names and names[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    return 0


def _correlation_offsets(exported: ExportModel) -> dict[int, int]:
    """Return an offset per process that makes correlation ids unique in the file."""
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


def _plane_ids(position: int, devices: int) -> tuple[int | None, int]:
    """Return the plane ids of gpudiag's tracks for a device (None if there are too many devices), and of the device.

    The viewer orders the planes of device number p by 1501 + 2p - 500 = 1001 + 2p, and by 1001 + 2p + 1.
    """
    if devices <= _MOST_DEVICES:
        return 2 * position - _CUSTOM_AFTER_GPU, 2 * position + 1
    return None, position


def _gpudiag_plane(space: Any, begins_ns: int, group: TrackGroup, ident: int) -> None:
    """Add a plane with gpudiag's tracks of the group, if it has any; `begins_ns` as in `_Plane`."""
    tracks = [track for track in group.tracks if track.kind is TrackKind.GPUDIAG]
    if tracks:
        title = group.title.partition(" · ")[0]
        plane = _Plane(space.planes.add(id=ident, name=_GPUDIAG_PLANE.format(title)), begins_ns)
        for number, track in enumerate(tracks, start=1):
            plane.line(track, ident=number, title=track.title)


def _stream_title(track: ExportTrack) -> str:
    """Return TensorFlow's title `Stream #7(Compute,Memcpy)`, from which the plugin derives a stream's contents."""
    if track.kind is not TrackKind.STREAM:
        return track.title
    kinds = set() if track.event_kind is None else set(track.event_kind.tolist())
    words = {EventKind.KERNEL: "Compute", EventKind.COPY: "Memcpy", EventKind.MEMSET: "Memset"}
    contents = ",".join(word for kind, word in words.items() if kind in kinds)
    return f"Stream #{track.ident}({contents or 'Compute'})"


def encode_xspace(exported: ExportModel) -> bytes:
    """Return a serialized `XSpace`.

    Raises:
        UnreadableInputError: events are too far apart for times in picoseconds.
    """
    try:
        data: bytes = xspace_of(exported).SerializeToString()
    except ValueError as error:
        raise UnreadableInputError(
            f"events are too far apart for an XSpace ({error})", "Use another format: --to csv."
        ) from error
    return data


FORMAT = Format(
    name="xspace",
    ending=".xplane.pb",
    opens="TensorBoard's profile plugin (gpudiag view does both)",
    encode=encode_xspace,
)
