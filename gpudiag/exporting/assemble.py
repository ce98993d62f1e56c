"""From a timeline and its attribution to a scene: every event that was read, on the common clock, and our own lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gpudiag.exporting.own_lines import own_lines
from gpudiag.exporting.scene import Group, Scene, Track, TrackKind
from gpudiag.model.event import HOST, EventKind
from gpudiag.model.timeline import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpudiag.model.attribution import Attribution
    from gpudiag.model.event import EventTable, Trace
    from gpudiag.model.timeline import Timeline

_STEP_MARK = re.compile(r"(?:ProfilerStep|gpudiag\.step)#(\d{1,17})$|[^#]*#step_num=(\d{1,17})#$")
NO_STEP = -1


def scene_of(timeline: Timeline, attribution: Attribution, recordings: Sequence[Trace]) -> Scene:
    """Everything of a job that can be shown.

    Args:
        timeline: the job.
        attribution: its windows, cut into buckets.
        recordings: what was recorded, one trace per process. These are the timeline's traces, but where it has several
            made of one process (TensorFlow's, one per GPU): there it is the whole one, and has their source.
    """
    devices: list[Group] = []
    hosts: list[Group] = []
    for process, trace in enumerate(recordings):
        lanes = [index for index, lane in enumerate(timeline.lanes) if _is_of(timeline.traces[lane.trace], trace)]
        shift = timeline.lanes[lanes[0]].shift_ns if lanes else 0
        of_device = {timeline.lanes[index].device: index for index in lanes}
        ranks = tuple(sorted({timeline.lanes[index].rank for index in lanes})) or (trace.rank or 0,)
        for device in np.unique(trace.events.device[trace.events.device != HOST]).tolist():
            lane = of_device.get(device)
            rank = ranks[0] if lane is None else timeline.lanes[lane].rank
            model = trace.device_names.get(device, "")
            own = () if lane is None else own_lines(timeline.lanes[lane], attribution.lanes[lane])
            devices.append(
                Group(
                    title=" · ".join(filter(None, (f"rank {rank}", f"cuda:{device}", model))),
                    process=process,
                    ranks=(rank,),
                    device=device,
                    model=model,
                    tracks=(*own, *_streams(trace.events, device, shift)),
                )
            )
        lane = of_device.get(UNKNOWN)
        own = () if lane is None else own_lines(timeline.lanes[lane], attribution.lanes[lane])
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        threads = (*own, *_threads(trace.events, shift))
        hosts.append(Group(title=f"{who} · host", process=process, ranks=ranks, device=None, model="", tracks=threads))
    groups = [*sorted(devices, key=lambda group: (group.ranks, group.device or 0)), *hosts]
    origin = min((trace.origin_ns for trace in timeline.traces), default=0)
    return _from_zero(Scene(framework=timeline.framework, origin_ns=origin, groups=tuple(groups)))


def _is_of(part: Trace, whole: Trace) -> bool:
    """Whether one is made of the other."""
    return part is whole or (part.source == whole.source and part.rank != whole.rank)


def _streams(events: EventTable, device: int, shift: int) -> list[Track]:
    on_device = events.device == device
    shadow = events.kind == EventKind.DEVICE_ANNOTATION
    return [
        *_tracks(events, on_device & ~shadow, shift, TrackKind.STREAM, "Stream {}"),
        *_tracks(events, on_device & shadow, shift, TrackKind.SHADOWS, "Annotations of stream {}"),
    ]


def _threads(events: EventTable, shift: int) -> list[Track]:
    return _tracks(events, events.device == HOST, shift, TrackKind.THREAD, "thread {}")


def _tracks(events: EventTable, chosen: NDArray[np.bool_], shift: int, kind: TrackKind, title: str) -> list[Track]:
    """A track per thread of the chosen events."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return []
    order = rows[np.argsort(events.thread[rows], kind="stable")]
    threads, first = np.unique(events.thread[order], return_index=True)
    numbers = _step_numbers(events)
    tracks = []
    for thread, part in zip(threads.tolist(), np.split(order, first[1:]), strict=True):
        step = numbers[events.name[part]]
        marks = kind is TrackKind.THREAD and bool((step != NO_STEP).any())
        tracks.append(
            Track(
                kind=kind,
                title=title.format(thread),
                ident=thread,
                start=events.start_ns[part] + shift,
                end=events.end_ns[part] + shift,
                name=events.name[part],
                names=events.names,
                event_kind=events.kind[part],
                correlation=events.correlation[part],
                size_bytes=events.size_bytes[part],
                step=step if marks else None,
            )
        )
    return tracks


def _step_numbers(events: EventTable) -> NDArray[np.int64]:
    """int64[names]: the step number in each name, `NO_STEP` where it is no step mark."""
    found = (_STEP_MARK.match(name) for name in events.names)
    return np.array([int(match[1] or match[2]) if match else NO_STEP for match in found], np.int64)


def _from_zero(scene: Scene) -> Scene:
    """The scene with its first event at 0."""
    starts = [int(track.start[0]) for group in scene.groups for track in group.tracks if len(track)]
    first = min(starts, default=0)
    groups = tuple(
        replace(group, tracks=tuple(_moved(track, -first) for track in group.tracks if len(track)))
        for group in scene.groups
    )
    origin = scene.origin_ns + first if scene.origin_ns > 1 else 0
    return Scene(framework=scene.framework, origin_ns=origin, groups=groups)


def _moved(track: Track, by: int) -> Track:
    return replace(track, start=track.start + by, end=track.end + by)
