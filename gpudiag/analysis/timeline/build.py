"""Build one timeline from the traces of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.collectives import (
    NO_MESSAGES,
    MatchedMessages,
    Matching,
    TrackCalls,
    match_collectives,
    track_calls,
    without_lone_communication,
)
from gpudiag.analysis.timeline.completeness import covered_share, device_activities
from gpudiag.analysis.timeline.host import (
    Spans,
    awaited_inside,
    communication_spans,
    device_ops,
    host_threads,
    launched_within,
    pageable_copy_calls,
    runtime_call_of,
)
from gpudiag.analysis.timeline.mixed_runs import without_claims, without_copies
from gpudiag.analysis.timeline.steps import (
    Windows,
    common_steps,
    device_windows,
    host_windows,
    marked_steps,
    steps_of_launches,
)
from gpudiag.analysis.timeline.validity import examine
from gpudiag.intervals import EMPTY, Intervals, among, distinct, groups, outermost, subtract, union
from gpudiag.model.event import DEVICE_WORK, HOST, EventKind, Role, Trace, any_of, framework_of
from gpudiag.model.timeline import UNKNOWN, DeviceOps, DeviceTrack, HostSteps, HostThread, OpClass, Timeline

Times = NDArray[np.int64]
Slot = tuple[int, int]
"""(Index of a trace, device number in that trace)."""


def build_timeline(traces: Sequence[Trace], world_size: int | None = None) -> Timeline:
    """Put the traces of one job on one clock and cut them into steps.

    Args:
        traces: one per process. Traces without a rank get unused ranks. Of two traces of one rank, the first is used.
        world_size: number of ranks in the job, if known; by default it is inferred from the traces.
    """
    copies = without_copies(traces)
    claims = without_claims(_with_ranks(copies.kept))
    traces = without_lone_communication(claims.kept, world_size)
    activities = device_activities(traces)
    unseen = {index for index, activity in enumerate(activities) if activity.missing}
    world = world_size or max([trace.world_size or 0 for trace in traces] + [_rank(trace) + 1 for trace in traces])
    slots = [(index, device) for index, trace in enumerate(traces) if index not in unseen for device in _devices(trace)]
    ranks = {_rank(trace) for trace in traces}
    calls = _completed(_calls(traces, slots), traces)
    matching = match_collectives(calls, ranks, _messages(calls))
    tracks = _tracks(traces, slots, matching)
    return Timeline(
        framework=framework_of(traces),
        world_size=world,
        ranks_present=tuple(sorted(ranks)),
        tracks=tracks,
        traces=tuple(traces),
        clocks=tuple(matching.clocks),
        validity=(
            *copies.validity,
            *claims.validity,
            *examine(
                traces, tracks, matching, world_size=world, activities=activities, repeated_ranks=copies.repeated_ranks
            ),
        ),
        covered=min((covered_share(track) for track in tracks), default=1.0),
        unseen={_rank(traces[index]): host_windows(_Host(traces[index]).steps).bounds for index in sorted(unseen)},
    )


def _with_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Give unused ranks to the traces without a rank; return all traces sorted by rank."""
    taken = {trace.rank for trace in traces if trace.rank is not None}
    free = (rank for rank in range(len(traces) + len(taken) + 1) if rank not in taken)
    ranked = []
    for trace in traces:
        if trace.rank is not None:
            ranked.append(trace)
            continue
        rank = next(free)
        note = f"{trace.source}: neither the trace nor its name says its rank; taken as rank {rank}"
        ranked.append(msgspec.structs.replace(trace, rank=rank, notes=(*trace.notes, note)))
    return sorted(ranked, key=_rank)


def _rank(trace: Trace) -> int:
    return trace.rank or 0


def _devices(trace: Trace) -> list[int]:
    """Return the devices with work in a trace; [HOST] if only the host computed."""
    events = trace.events
    rows = events.rows_of(*DEVICE_WORK)
    if len(rows):
        return [int(device) for device in distinct(events.device[rows])]
    return [HOST] if len(events.rows_of(EventKind.OPERATOR)) else []


def _calls(traces: Sequence[Trace], slots: Sequence[Slot]) -> list[TrackCalls]:
    """Return the collectives of each slot; host collectives belong to the first slot of their process."""
    base = min(trace.origin_ns for trace in traces)
    first = dict(reversed(slots))
    return [
        track_calls(
            traces[index].events,
            traces[index].collectives,
            rank=_rank(traces[index]),
            trace=index,
            source=traces[index].source,
            devices=(device, HOST) if first[index] == device else (device,),
            origin_ns=traces[index].origin_ns - base,
            clock_known=traces[index].origin_ns > 0,
        )
        for index, device in slots
    ]


def _completed(calls: list[TrackCalls], traces: Sequence[Trace]) -> list[TrackCalls]:
    """Return the calls with groups and peers that the traces do not state but that can be inferred."""
    unstated = any(
        (not call.group_ranks and traces[track.trace].groups)
        or (call.operation in {"send", "recv"} and call.peer is None)
        for track in calls
        for call in track.calls
    )
    if len(calls) < 2 or not unstated:
        return calls
    from gpudiag.analysis.timeline.process_groups import with_groups_and_peers  # noqa: PLC0415  # only gloo needs it

    return with_groups_and_peers(calls, traces)


def _messages(calls: list[TrackCalls]) -> MatchedMessages:
    if not any(call.peer is not None for track in calls for call in track.calls):
        return NO_MESSAGES
    from gpudiag.analysis.timeline.point_to_point import find_messages  # noqa: PLC0415  # few jobs send messages

    return find_messages(calls)


def _tracks(traces: Sequence[Trace], slots: Sequence[Slot], matching: Matching) -> tuple[DeviceTrack, ...]:
    """Return the track of each slot on the common clock, cut into the steps that all tracks have."""
    base = min(trace.origin_ns for trace in traces)
    shifts = [
        traces[index].origin_ns - base + offset for (index, _), offset in zip(slots, matching.offsets, strict=True)
    ]
    hosts = [_Host(trace) for trace in traces]
    drafts = [_draft(hosts[index], device, shift) for (index, device), shift in zip(slots, shifts, strict=True)]
    windows = common_steps([draft_windows for _, _, draft_windows in drafts])
    return tuple(
        DeviceTrack(
            rank=_rank(traces[index]),
            device=device,
            device_name=traces[index].device_names.get(device, "") if device != HOST else "",
            trace=index,
            shift_ns=shift,
            ops=ops,
            collectives=matching.collectives[position],
            steps=steps,
            bounds=windows[position].bounds,
            window_steps=windows[position].steps,
            threads=hosts[index].threads(shift),
            overhead=hosts[index].overhead(shift),
            communication={thread: _later(spans, shift) for thread, spans in hosts[index].communication.items()},
            communication_calls={thread: _later(spans, shift) for thread, spans in hosts[index].calls_beside.items()},
        )
        for position, ((index, device), shift, (ops, steps, _)) in enumerate(zip(slots, shifts, drafts, strict=True))
    )


class _Host:
    """Host activity of one trace on its own clock, computed once for all its devices."""

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        self.events = events
        self.device_rows = events.rows_of(*DEVICE_WORK)
        self.calls = runtime_call_of(events, self.device_rows)
        marked = marked_steps(trace)
        self.steps = steps_of_launches(events, *self._launches()) if marked is None else marked
        copies = events.kind[self.device_rows] == EventKind.COPY
        pageable = pageable_copy_calls(events, self.device_rows[copies], self.calls[copies])
        self.collective_rows = np.array([call.row for call in trace.collectives], np.int64)
        self.waits_in_collectives = trace.waits_in_collectives
        self._threads = host_threads(events, pageable)
        self.awaited = EMPTY
        training = self._threads.get(self.steps.thread)
        if len(self.device_rows) == 0 and not trace.waits_in_collectives and training is not None:
            self.awaited = awaited_inside(trace, self.steps.thread)
            busy = subtract(training.busy, self.awaited)
            self._threads[training.thread] = msgspec.structs.replace(training, busy=busy, awaited=self.awaited)
        self.communication: Spans
        self.calls_beside: Spans
        self.communication, self.calls_beside = communication_spans(trace, self._threads, self.steps)

    def _launches(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Return the calls that launched device work (on CPUs: top-level ops), and the name of each call's work."""
        events, known = self.events, self.calls != UNKNOWN
        if len(self.device_rows) == 0:
            tops = _top_level(events.rows_of(EventKind.OPERATOR), events.start_ns, events.end_ns, events.thread)
            return tops, events.name[tops]
        # A launch gets the name of its device work, because most calls are named cudaLaunchKernel.
        launches, first = np.unique(self.calls[known], return_index=True)
        return launches, events.name[self.device_rows[known][first]]

    def spans(self, rows: NDArray[np.integer], shift_ns: int) -> Intervals:
        return union(_later(Intervals(self.events.start_ns[rows], self.events.end_ns[rows]), shift_ns))

    def overhead(self, shift_ns: int) -> Intervals:
        return self.spans(self.events.rows_of(EventKind.OVERHEAD), shift_ns)

    def threads(self, shift_ns: int) -> dict[int, HostThread]:
        return {
            thread_id: HostThread(
                thread=thread_id,
                busy=_later(thread.busy, shift_ns),
                input=_later(thread.input, shift_ns),
                blocked=_later(thread.blocked, shift_ns),
                awaited=_later(thread.awaited, shift_ns),
            )
            for thread_id, thread in self._threads.items()
        }


def _draft(host: _Host, device: int, shift: int) -> tuple[DeviceOps, HostSteps, Windows]:
    """Return the (work, steps, windows) of a device on the common clock."""
    steps = msgspec.structs.replace(host.steps, start=host.steps.start + shift, end=host.steps.end + shift)
    if device == HOST:
        return _host_ops(host, steps, shift), steps, host_windows(steps)
    on_device = host.events.device[host.device_rows] == device
    ops = device_ops(
        host.events,
        host.device_rows[on_device],
        host.calls[on_device],
        step_start=host.steps.start,
        shift_ns=shift,
        communication=host.communication,
    )
    return ops, steps, device_windows(ops, steps)


def _host_ops(host: _Host, steps: HostSteps, shift: int) -> DeviceOps:
    """Return the top-level operators of the training thread, which stand in for device work on CPU-only runs."""
    events = host.events
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == steps.thread]
    rows = _top_level(rows, events.start_ns, events.end_ns, events.thread)
    rows = rows[~among(rows, host.collective_rows)]
    # Operators of the loader on this thread (collating, copying into pinned memory) are input, not compute.
    thread = host.threads(0).get(steps.thread)
    if thread is not None and len(thread.input):
        opened = np.searchsorted(thread.input.start, events.start_ns[rows], side="right") - 1
        rows = rows[(opened < 0) | (thread.input.end[opened] <= events.start_ns[rows])]
    start, end = events.start_ns[rows] + shift, events.end_ns[rows] + shift
    waits = host.spans(host.collective_rows, shift) if host.waits_in_collectives else _later(host.awaited, shift)
    if host.waits_in_collectives or len(waits):
        rows, start, end = _without(rows, start, end, waits)
    communicating = any_of(events.role[rows], Role.ENQUEUE, Role.COMMUNICATION)
    spans = {ident: _later(inside, shift) for ident, inside in host.communication.items()}
    communicating |= launched_within(spans, events.thread[rows], start)
    unknown = np.full(len(rows), UNKNOWN, np.int64)
    return DeviceOps(
        start=start,
        end=end,
        op_class=np.where(communicating, OpClass.COMMUNICATION, OpClass.COMPUTE).astype(np.uint8),
        row=rows.astype(np.int64),
        stream=unknown,
        step=(np.searchsorted(steps.start, start, side="right") - 1).astype(np.int32),
        launch_start=unknown,
        launch_end=unknown,
        launch_thread=np.full(len(rows), steps.thread, np.int64),
    )


def _later(spans: Intervals, shift_ns: int) -> Intervals:
    return Intervals(spans.start + shift_ns, spans.end + shift_ns)


def _without(rows: NDArray[np.intp], start: Times, end: Times, cut: Intervals) -> tuple[NDArray[np.intp], Times, Times]:
    """Cut intervals out of disjoint operators: cutting 4-6 out of 0-10 leaves 0-4 and 6-10, both with the same row."""
    left = subtract(Intervals(start, end), cut)
    return rows[np.searchsorted(start, left.start, side="right") - 1], left.start, left.end


def _top_level(rows: NDArray[np.intp], start: Times, end: Times, thread: NDArray[np.int64]) -> NDArray[np.intp]:
    """Select the rows that no other row of their thread encloses. `rows` is sorted by start (ties: longer first)."""
    kept = []
    for _, positions in groups(thread[rows]):
        on_thread = rows[positions]
        kept.append(on_thread[outermost(start[on_thread], end[on_thread])])
    return np.sort(np.concatenate(kept)) if kept else rows
