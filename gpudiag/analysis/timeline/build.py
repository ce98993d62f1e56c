"""From the traces of all ranks to one timeline."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.blocking_communication import awaited_inside
from gpudiag.analysis.timeline.collectives import match_collectives, track_calls
from gpudiag.analysis.timeline.communication import Spans, communication_spans, launched_within
from gpudiag.analysis.timeline.coverage import covered_share
from gpudiag.analysis.timeline.host import host_threads, pageable_copy_calls
from gpudiag.analysis.timeline.launches import device_ops, runtime_call_of
from gpudiag.analysis.timeline.participants import without_lone_communication
from gpudiag.analysis.timeline.steps import marked_steps, steps_of_launches
from gpudiag.analysis.timeline.validity import examine
from gpudiag.analysis.timeline.validity.device_activity import device_activities
from gpudiag.analysis.timeline.validity.duplicates import without_claims, without_copies
from gpudiag.analysis.timeline.windows import Windows, common_steps, device_windows, host_windows
from gpudiag.intervals import EMPTY, Intervals, among, distinct, groups, subtract, union
from gpudiag.model.event import DEVICE_WORK, HOST, EventKind, Role, Trace, any_of, framework_of
from gpudiag.model.timeline import UNKNOWN, DeviceOps, DeviceTrack, HostSteps, HostThread, OpClass, Timeline

Times = NDArray[np.int64]


def build_timeline(traces: Sequence[Trace], world_size: int | None = None) -> Timeline:
    """Put the traces of one job on one clock and cut them into steps.

    Args:
        traces: one per process. Where a trace does not know its rank, it takes the first that no other trace has; of
            two of one rank the first counts.
        world_size: number of ranks in the job where the traces do not say; at least the number of traces is assumed.
    """
    copies = without_copies(traces)
    claims = without_claims(_with_ranks(copies.kept))
    traces = without_lone_communication(claims.kept, world_size)
    activities = device_activities(traces)
    unseen = {index for index, activity in enumerate(activities) if activity.missing}
    world = world_size or max([trace.world_size or 0 for trace in traces] + [(trace.rank or 0) + 1 for trace in traces])
    slots = [(index, device) for index, trace in enumerate(traces) for device in _devices(trace) if index not in unseen]
    base = min(trace.origin_ns for trace in traces)
    calls = [
        track_calls(
            traces[index].events,
            traces[index].collectives,
            rank=_rank(traces[index]),
            trace=index,
            devices=_calls_of(slots, index, device),
            origin_ns=traces[index].origin_ns - base,
            clock_known=traces[index].origin_ns > 0,
        )
        for index, device in slots
    ]
    ranks = {_rank(trace) for trace in traces}
    matching = match_collectives(calls, ranks)
    shifts = [traces[i].origin_ns - base + offset for (i, _), offset in zip(slots, matching.offsets, strict=True)]
    host = [_Host(trace) for trace in traces]
    drafts = [_draft(host[index], device, shift) for (index, device), shift in zip(slots, shifts, strict=True)]
    windows = common_steps([draft_windows for _, _, draft_windows in drafts])
    tracks = tuple(
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
            threads=host[index].threads(shift),
            overhead=host[index].overhead(shift),
            communication=host[index].communication(shift),
            communication_calls=host[index].communication_calls(shift),
        )
        for position, ((index, device), shift, (ops, steps, _)) in enumerate(zip(slots, shifts, drafts, strict=True))
    )
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
                traces, tracks, matching, world=world, activities=activities, repeated_ranks=copies.repeated_ranks
            ),
        ),
        covered=min((covered_share(track) for track in tracks), default=1.0),
        unseen={_rank(traces[index]): host_windows(_Host(traces[index]).steps).bounds for index in sorted(unseen)},
    )


def _calls_of(slots: Sequence[tuple[int, int]], trace: int, device: int) -> tuple[int, ...]:
    """Whose collectives a lane has: its device's, and on the first of a process those of the host."""
    return (device, HOST) if slots.index((trace, device)) == [index for index, _ in slots].index(trace) else (device,)


class _Host:
    """The host side of one trace, worked out once for all its devices."""

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        self.events = events
        self.device_rows = events.rows_of(*DEVICE_WORK)
        self.calls = runtime_call_of(events, self.device_rows)
        marked = marked_steps(trace)
        self.steps = steps_of_launches(events, *self._launches()) if marked is None else marked
        copies = events.kind[self.device_rows] == EventKind.COPY
        self.pageable = pageable_copy_calls(events, self.device_rows[copies], self.calls[copies])
        self.collective_rows = np.array([call.row for call in trace.collectives], np.int64)
        self.waits_in_collectives = trace.waits_in_collectives
        self._threads = host_threads(events, self.pageable)
        self.awaited = EMPTY
        trains = self._threads.get(self.steps.thread)
        if len(self.device_rows) == 0 and not trace.waits_in_collectives and trains is not None:
            self.awaited = awaited_inside(trace, self.steps.thread)
            busy = subtract(trains.busy, self.awaited)
            self._threads[trains.thread] = msgspec.structs.replace(trains, busy=busy, awaited=self.awaited)
        self._communication, self._calls = communication_spans(trace, self._threads, self.steps)

    def _launches(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Calls that launched device work (CPU-only traces: top-level ops), and the name of what each launched."""
        events, known = self.events, self.calls != UNKNOWN
        if len(self.device_rows) == 0:
            tops = _top_level(events.rows_of(EventKind.OPERATOR), events.start_ns, events.end_ns, events.thread)
            return tops, events.name[tops]
        # A launch is known by what it launched: most calls are named cudaLaunchKernel.
        launches, first = np.unique(self.calls[known], return_index=True)
        return launches, events.name[self.device_rows[known][first]]

    def communication_times(self, shift_ns: int) -> Intervals:
        rows = self.collective_rows
        return union(Intervals(self.events.start_ns[rows] + shift_ns, self.events.end_ns[rows] + shift_ns))

    def threads(self, shift_ns: int) -> dict[int, HostThread]:
        return {
            ident: msgspec.structs.replace(
                thread,
                busy=_later(thread.busy, shift_ns),
                input=_later(thread.input, shift_ns),
                blocked=_later(thread.blocked, shift_ns),
                awaited=_later(thread.awaited, shift_ns),
            )
            for ident, thread in self._threads.items()
        }

    def communication(self, shift_ns: int) -> Spans:
        return {thread: _later(found, shift_ns) for thread, found in self._communication.items()}

    def communication_calls(self, shift_ns: int) -> Spans:
        return {thread: _later(found, shift_ns) for thread, found in self._calls.items()}

    def overhead(self, shift_ns: int) -> Intervals:
        rows = self.events.rows_of(EventKind.OVERHEAD)
        return union(Intervals(self.events.start_ns[rows] + shift_ns, self.events.end_ns[rows] + shift_ns))


def _draft(host: _Host, device: int, shift: int) -> tuple[DeviceOps, HostSteps, Windows]:
    steps = HostSteps(
        start=host.steps.start + shift,
        number=host.steps.number,
        end=host.steps.end + shift,
        source=host.steps.source,
        thread=host.steps.thread,
        ends_known=host.steps.ends_known,
    )
    if device == HOST:
        ops = _host_ops(host, steps, shift)
        return ops, steps, host_windows(steps)
    mine = host.events.device[host.device_rows] == device
    ops = device_ops(
        host.events, host.device_rows[mine], host.calls[mine], host.steps.start, shift, host.communication(0)
    )
    return ops, steps, device_windows(ops, steps)


def _host_ops(host: _Host, steps: HostSteps, shift: int) -> DeviceOps:
    """Top-level operators of the training thread, which on CPU-only runs do the work of a device."""
    events = host.events
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == steps.thread]
    rows = _top_level(rows, events.start_ns, events.end_ns, events.thread)
    rows = rows[~among(rows, host.collective_rows)]
    # What the loader runs on this thread (collating, copying into pinned memory) is input, not the model's work.
    thread = host.threads(0).get(steps.thread)
    if thread is not None and len(thread.input):
        opened = np.searchsorted(thread.input.start, events.start_ns[rows], side="right") - 1
        rows = rows[(opened < 0) | (thread.input.end[opened] <= events.start_ns[rows])]
    start, end = events.start_ns[rows] + shift, events.end_ns[rows] + shift
    if host.waits_in_collectives:
        rows, start, end = _without(rows, start, end, host.communication_times(shift))
    elif len(host.awaited):
        rows, start, end = _without(rows, start, end, _later(host.awaited, shift))
    exchanging = any_of(events.role[rows], Role.ENQUEUE, Role.COMMUNICATION)
    exchanging |= launched_within(host.communication(shift), events.thread[rows], start)
    op_class = np.where(exchanging, OpClass.COMMUNICATION, OpClass.COMPUTE)
    unknown = np.full(len(rows), UNKNOWN, np.int64)
    return DeviceOps(
        start=start,
        end=end,
        op_class=op_class.astype(np.uint8),
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
    """Operators that do not overlap, with this cut out of each: 0-10 without 4-6 is 0-4 and 6-10, of the same row."""
    left = subtract(Intervals(start, end), cut)
    return rows[np.searchsorted(start, left.start, side="right") - 1], left.start, left.end


def _top_level(
    rows: NDArray[np.intp], start: NDArray[np.int64], end: NDArray[np.int64], thread: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Of rows sorted by start (ties: longer first), those inside no other of the same thread; sorted by start."""
    kept = []
    for _, places in groups(thread[rows]):
        mine = rows[places]
        reach = np.maximum.accumulate(end[mine])
        outside = np.concatenate([[True], start[mine][1:] >= reach[:-1]])
        kept.append(mine[outside])
    return np.sort(np.concatenate(kept)) if kept else rows


def _devices(trace: Trace) -> list[int]:
    """The devices with work in a trace; HOST alone where there is none but the host computed."""
    events = trace.events
    rows = events.rows_of(*DEVICE_WORK)
    if len(rows):
        return [int(device) for device in distinct(events.device[rows])]
    return [HOST] if len(events.rows_of(EventKind.OPERATOR)) else []


def _rank(trace: Trace) -> int:
    return trace.rank if trace.rank is not None else 0


def _with_ranks(traces: Sequence[Trace]) -> list[Trace]:
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
