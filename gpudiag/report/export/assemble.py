"""From a timeline and its attribution to what is exported: all events, on the common clock, and gpudiag's tracks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.model.attribution import Attribution
from gpudiag.model.event import HOST, NO_NUMBER, EventKind, Trace
from gpudiag.model.sanitize import printable
from gpudiag.model.timeline import UNKNOWN, Timeline
from gpudiag.report.export.gpudiag_tracks import gpudiag_tracks
from gpudiag.report.export.model import ExportModel, Group, Track, TrackKind


def export_model_of(timeline: Timeline, attribution: Attribution, recordings: Sequence[Trace]) -> ExportModel:
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
        device_tracks = [
            index
            for index, device_track in enumerate(timeline.tracks)
            if _is_of(timeline.traces[device_track.trace], trace)
        ]
        shift = timeline.tracks[device_tracks[0]].shift_ns if device_tracks else 0
        of_device = {timeline.tracks[index].device: index for index in device_tracks}
        ranks = tuple(sorted({timeline.tracks[index].rank for index in device_tracks})) or (trace.rank or 0,)
        for device in np.unique(trace.events.device[trace.events.device != HOST]).tolist():
            device_track = of_device.get(device)
            rank = ranks[0] if device_track is None else timeline.tracks[device_track].rank
            model = printable(trace.device_names.get(device, ""))
            own = () if device_track is None else gpudiag_tracks(timeline, attribution, device_track)
            devices.append(
                Group(
                    title=" · ".join(filter(None, (f"rank {rank}", f"cuda:{device}", model))),
                    process=process,
                    ranks=(rank,),
                    device=device,
                    model=model,
                    tracks=(*own, *_streams(trace, device, shift)),
                )
            )
        device_track = of_device.get(UNKNOWN)
        own = () if device_track is None else gpudiag_tracks(timeline, attribution, device_track)
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        threads = (*own, *_threads(trace, shift))
        hosts.append(Group(title=f"{who} · host", process=process, ranks=ranks, device=None, model="", tracks=threads))
    groups = [*sorted(devices, key=lambda group: (group.ranks, group.device or 0)), *hosts]
    origin = min((trace.origin_ns for trace in timeline.traces), default=0)
    return _from_zero(ExportModel(framework=timeline.framework, origin_ns=origin, groups=tuple(groups)))


def _is_of(part: Trace, whole: Trace) -> bool:
    """Whether one is made of the other."""
    return part is whole or (part.source == whole.source and part.rank != whole.rank)


def _streams(trace: Trace, device: int, shift: int) -> list[Track]:
    events = trace.events
    on_device = events.device == device
    shadow = events.kind == EventKind.DEVICE_ANNOTATION
    return [
        *_tracks(trace, on_device & ~shadow, shift, TrackKind.STREAM, "Stream {}"),
        *_tracks(trace, on_device & shadow, shift, TrackKind.SHADOWS, "Annotations of stream {}"),
    ]


def _threads(trace: Trace, shift: int) -> list[Track]:
    return _tracks(trace, trace.events.device == HOST, shift, TrackKind.THREAD, "thread {}")


def _tracks(trace: Trace, chosen: NDArray[np.bool_], shift: int, kind: TrackKind, title: str) -> list[Track]:
    """A track per thread of the chosen events."""
    events, numbers = trace.events, _step_numbers(trace)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return []
    order = rows[np.argsort(events.thread[rows], kind="stable")]
    threads, first = np.unique(events.thread[order], return_index=True)
    names = tuple(map(printable, events.names))  # viewers may act on what a terminal acts on
    tracks = []
    for thread, part in zip(threads.tolist(), np.split(order, first[1:]), strict=True):
        step = numbers[part]
        marks = kind is TrackKind.THREAD and bool((step != NO_NUMBER).any())
        tracks.append(
            Track(
                kind=kind,
                title=title.format(thread),
                ident=thread,
                start=events.start_ns[part] + shift,
                end=events.end_ns[part] + shift,
                name=events.name[part],
                names=names,
                event_kind=events.kind[part],
                correlation=events.correlation[part],
                size_bytes=events.size_bytes[part],
                step=step if marks else None,
            )
        )
    return tracks


def _step_numbers(trace: Trace) -> NDArray[np.int64]:
    """int64[n]: the step number of each event, `NO_NUMBER` where it marks no step."""
    number = np.full(len(trace.events), NO_NUMBER, np.int64)
    for marks in trace.step_marks:
        number[marks.row] = marks.number
    return number


def _from_zero(exported: ExportModel) -> ExportModel:
    """The export model with its first event at 0."""
    starts = [int(track.start[0]) for group in exported.groups for track in group.tracks if len(track)]
    first = min(starts, default=0)
    groups = tuple(
        replace(group, tracks=tuple(_moved(track, -first) for track in group.tracks if len(track)))
        for group in exported.groups
    )
    origin = exported.origin_ns + first if exported.origin_ns > 1 else 0
    return ExportModel(framework=exported.framework, origin_ns=origin, groups=groups)


def _moved(track: Track, by: int) -> Track:
    return replace(track, start=track.start + by, end=track.end + by)
