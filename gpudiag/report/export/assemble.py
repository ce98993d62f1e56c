"""Make the export model of a job: all events on the timeline's common clock, and gpudiag's tracks.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import intersect, subtract
from gpudiag.model.event import HOST, NO_NUMBER, EventKind, Trace
from gpudiag.model.sanitize import printable
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, Timeline, TrackAttribution
from gpudiag.report.export.model import ExportModel, ExportTrack, TrackGroup, TrackKind

STEPS, PARTS, WAITS = "gpudiag steps", "gpudiag buckets", "gpudiag waits"
#: Two parts of the bucket `idle` that have separate names on the track.
UNMARKED_INPUT, QUEUED = "idle: input without marks", "idle: the next op is queued"


def export_model_of(timeline: Timeline, attribution: Attribution, recordings: Sequence[Trace]) -> ExportModel:
    """Return all events of a job, the first of which begins at 0.

    Args:
        timeline: the job.
        attribution: the buckets of the timeline's windows.
        recordings: one trace per process. Usually they are the timeline's traces. If the timeline has several traces of
            a process (TensorFlow: one per GPU), the recording is the whole trace of the process.
    """
    devices: list[TrackGroup] = []
    hosts: list[TrackGroup] = []
    for process, recording in enumerate(recordings):
        indices = [i for i, track in enumerate(timeline.tracks) if _same_file(timeline.traces[track.trace], recording)]
        # All tracks of a process have the same shift. A recording without device track stays on its own clock.
        shift = timeline.tracks[indices[0]].shift_ns if indices else 0
        ranks = tuple(sorted({timeline.tracks[index].rank for index in indices})) or (recording.rank or 0,)
        results = {
            timeline.tracks[index].device: (timeline.tracks[index], _gpudiag_tracks(timeline, attribution, index))
            for index in indices
        }
        devices += _device_groups(recording, process, ranks[0], results, shift)
        # A track of the host replaces the device in a CPU-only run; gpudiag's tracks are then above the threads.
        added = results[UNKNOWN][1] if UNKNOWN in results else ()
        name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        threads = (*added, *_tracks(recording, recording.events.device == HOST, shift, TrackKind.THREAD, "thread {}"))
        group = TrackGroup(title=f"{name} · host", process=process, ranks=ranks, device=None, model="", tracks=threads)
        hosts.append(group)
    groups = [*sorted(devices, key=lambda group: (group.ranks, group.device or 0)), *hosts]
    origin = min((trace.origin_ns for trace in timeline.traces), default=0)
    return _from_zero(ExportModel(framework=timeline.framework, origin_ns=origin, groups=tuple(groups)))


def _same_file(trace: Trace, recording: Trace) -> bool:
    """Return whether the trace is the recording, or the part of the recording that belongs to one rank."""
    return trace is recording or (trace.source == recording.source and trace.rank != recording.rank)


def _device_groups(
    recording: Trace,
    process: int,
    first_rank: int,
    results: dict[int, tuple[DeviceTrack, tuple[ExportTrack, ...]]],
    shift: int,
) -> list[TrackGroup]:
    """Return a track group for each device of a recording.

    Args:
        recording: the trace of one process, whose number in the export is `process`.
        first_rank: rank of a device that has no device track.
        results: device → its device track, and gpudiag's tracks for it.
        shift: ns, added to all times.
    """
    events = recording.events
    groups = []
    for device in np.unique(events.device[events.device != HOST]).tolist():
        device_track, added = results.get(device, (None, ()))
        rank = first_rank if device_track is None else device_track.rank
        model = printable(recording.device_names.get(device, ""))
        on_device, shadow = events.device == device, events.kind == EventKind.DEVICE_ANNOTATION
        groups.append(
            TrackGroup(
                title=" · ".join(filter(None, (f"rank {rank}", f"cuda:{device}", model))),
                process=process,
                ranks=(rank,),
                device=device,
                model=model,
                tracks=(
                    *added,
                    *_tracks(recording, on_device & ~shadow, shift, TrackKind.STREAM, "Stream {}"),
                    *_tracks(recording, on_device & shadow, shift, TrackKind.SHADOWS, "Annotations of stream {}"),
                ),
            )
        )
    return groups


def _tracks(trace: Trace, selected: NDArray[np.bool_], shift: int, kind: TrackKind, title: str) -> list[ExportTrack]:
    """Return a track for each thread or stream of the selected events.

    Args:
        selected: bool[n], the events to include.
        shift: ns, added to all times.
        kind: source of the events; only threads have step marks.
        title: format of the tracks' titles, for the number of the thread or stream.
    """
    events, numbers = trace.events, _step_numbers(trace)
    rows = np.flatnonzero(selected)
    if not len(rows):
        return []
    # A stable order keeps the events of a thread sorted by time.
    order = rows[np.argsort(events.thread[rows], kind="stable")]
    threads, first = np.unique(events.thread[order], return_index=True)
    names = tuple(map(printable, events.names))  # viewers may interpret control characters like a terminal
    tracks = []
    for thread, indices in zip(threads.tolist(), np.split(order, first[1:]), strict=True):
        step = numbers[indices]
        marks = kind is TrackKind.THREAD and bool((step != NO_NUMBER).any())
        tracks.append(
            ExportTrack(
                kind=kind,
                title=title.format(thread),
                ident=thread,
                start=events.start_ns[indices] + shift,
                end=events.end_ns[indices] + shift,
                name=events.name[indices],
                names=names,
                event_kind=events.kind[indices],
                correlation=events.correlation[indices],
                size_bytes=events.size_bytes[indices],
                step=step if marks else None,
            )
        )
    return tracks


def _step_numbers(trace: Trace) -> NDArray[np.int64]:
    """Return int64[n]: the step number of each event that is a step mark; `NO_NUMBER` for other events."""
    number = np.full(len(trace.events), NO_NUMBER, np.int64)
    for marks in trace.step_marks:
        number[marks.row] = marks.number
    return number


def _from_zero(exported: ExportModel) -> ExportModel:
    """Shift all times so that the first event begins at 0, and drop empty tracks.

    Readers set the origin to 1 ns if all ranks share a clock of unknown Unix time. The result then has the origin 0.
    """
    starts = [int(track.start[0]) for group in exported.groups for track in group.tracks if len(track)]
    first = min(starts, default=0)
    groups = []
    for group in exported.groups:
        tracks = [
            replace(track, start=track.start - first, end=track.end - first) for track in group.tracks if len(track)
        ]
        groups.append(replace(group, tracks=tuple(tracks)))
    origin = exported.origin_ns + first if exported.origin_ns > 1 else 0
    return ExportModel(framework=exported.framework, origin_ns=origin, groups=tuple(groups))


def _gpudiag_tracks(timeline: Timeline, attribution: Attribution, index: int) -> tuple[ExportTrack, ...]:
    """Return gpudiag's tracks for a device track: steps, buckets and waits. Empty tracks are omitted."""
    device_track = timeline.tracks[index]
    tracks = (
        _steps_track(device_track),
        _buckets_track(attribution.tracks[index]),
        _waits_track(device_track, next(timeline.whole_collectives([device_track]))),
    )
    return tuple(track for track in tracks if len(track))


def _steps_track(device_track: DeviceTrack) -> ExportTrack:
    """Return the track of step windows, with one name and one step number per window."""
    numbers = device_track.window_steps
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=STEPS,
        ident=0,
        start=device_track.bounds[:-1],
        end=device_track.bounds[1:],
        name=np.arange(len(numbers), dtype=np.int32),
        names=tuple(f"step {number}" for number in numbers.tolist()),
        step=numbers.astype(np.int64),
    )


def _buckets_track(attributed: TrackAttribution) -> ExportTrack:
    """Return the track of buckets. Idle time is split into `UNMARKED_INPUT`, `QUEUED` and the rest."""
    unmarked = intersect(attributed.parts["idle"], attributed.unmarked_input)
    rest = subtract(attributed.parts["idle"], unmarked)
    queued = intersect(rest, attributed.queued)
    parts = {**attributed.parts, "idle": subtract(rest, queued), UNMARKED_INPUT: unmarked, QUEUED: queued}
    start = np.concatenate([intervals.start for intervals in parts.values()])
    order = np.argsort(start, kind="stable")
    name = np.repeat(np.arange(len(parts), dtype=np.int32), [len(intervals) for intervals in parts.values()])
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=PARTS,
        ident=1,
        start=start[order],
        end=np.concatenate([intervals.end for intervals in parts.values()])[order],
        name=name[order],
        names=tuple(parts),
    )


def _waits_track(device_track: DeviceTrack, whole: NDArray[np.bool_]) -> ExportTrack:
    """Return the waits, each from this rank's arrival at a collective to the last rank's arrival.

    Waits that begin outside of step windows are omitted. If two waits overlap, the later wait begins when the earlier
    wait ends. `whole` is bool[m], for each of the track's m collectives: all its participants were recorded. A wait in
    another collective names no awaited rank, because that rank may be unrecorded.
    """
    table = device_track.collectives
    waits = (
        (table.last_arrival > table.start)
        & (table.start >= device_track.bounds[0])
        & (table.start < device_track.bounds[-1])
    )
    start, end, rank = table.start[waits], table.last_arrival[waits], np.where(whole, table.last_rank, UNKNOWN)[waits]
    # Each wait begins after the ends of all earlier waits.
    begin = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
    nonempty = end > begin
    ranks = np.unique(rank[nonempty])
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=WAITS,
        ident=2,
        start=begin[nonempty],
        end=end[nonempty],
        name=np.searchsorted(ranks, rank[nonempty]).astype(np.int32),
        names=tuple("waits" if number == UNKNOWN else f"waits for rank {number}" for number in ranks.tolist()),
    )
