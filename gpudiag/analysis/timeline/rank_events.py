"""Reduce the events of one trace to what the timeline needs, without knowledge of other traces.

In large jobs the events are packed. Of the timeline's modules, only this one always unpacks those of all ranks.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.collectives import calls_by_start
from gpudiag.analysis.timeline.completeness import DeviceActivity, device_activity, recorded_spans
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
from gpudiag.analysis.timeline.steps import marked_steps, steps_of_launches
from gpudiag.intervals import EMPTY, Intervals, among, distinct, groups, outermost, subtract, union
from gpudiag.model.event import DEVICE_WORK, HOST, EventKind, EventTable, Role, Trace, any_of
from gpudiag.model.timeline import UNKNOWN, DeviceOps, HostSteps, HostThread, OpClass

Times = NDArray[np.int64]


class RankEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one process, on its trace's own clock.

    Attributes:
        activity: launches with and without recorded device work.
        activity_with_device: the activity if the process is known to use a device, which another trace may state.
        groups: one index into the trace's collectives for each group in which devices communicate.
        calls: device (`HOST` for a process without devices) → intp[m], indices of its communication in the trace's
            collectives, by start. The first device also has the communication of the host.
        call_start, call_end: int64[n], ns, of all collectives of the trace.
        ops: device → its work; on CPUs, `HOST` → top-level operators of the training thread.
        steps: the step marks.
        threads: thread id → host thread.
        overhead: times at which the profiler blocked the process.
        communication, communication_calls: see `DeviceTrack`.
        recorded: times with any event but marks of steps and modules.
        end_ns: end of the last event.
    """

    activity: DeviceActivity
    activity_with_device: DeviceActivity
    groups: tuple[int, ...]
    calls: dict[int, NDArray[np.intp]]
    call_start: Times
    call_end: Times
    ops: dict[int, DeviceOps]
    steps: HostSteps
    threads: dict[int, HostThread]
    overhead: Intervals
    communication: Spans
    communication_calls: Spans
    recorded: Intervals
    end_ns: int


def events_of_rank(trace: Trace) -> RankEvents:
    """Return the work of the process of a trace."""
    events = trace.events
    devices = _devices(events)
    host = _Host(trace, events)
    rows = np.array([call.row for call in trace.collectives], np.int64)
    on_device = {
        id(call.group_ranks): index for index, call in enumerate(trace.collectives) if events.device[call.row] != HOST
    }
    activity = device_activity(trace, uses_devices=trace.uses_devices)
    return RankEvents(
        activity=activity,
        activity_with_device=activity if len(host.device_rows) else device_activity(trace, uses_devices=True),
        groups=tuple(on_device.values()),
        calls={
            device: calls_by_start(events, rows, (device, HOST) if device == devices[0] else (device,))
            for device in devices
        },
        call_start=events.start_ns[rows],
        call_end=events.end_ns[rows],
        ops={device: _host_ops(host) if device == HOST else _device_ops(host, device) for device in devices},
        steps=host.steps,
        threads=host.threads,
        overhead=host.spans(events.rows_of(EventKind.OVERHEAD)),
        communication=host.communication,
        communication_calls=host.communication_calls,
        recorded=recorded_spans(events),
        end_ns=int(events.end_ns.max(initial=0)),
    )


def later(spans: Intervals, shift_ns: int) -> Intervals:
    """Return the intervals `shift_ns` later."""
    return Intervals(spans.start + shift_ns, spans.end + shift_ns)


def _devices(events: EventTable) -> list[int]:
    """Return the devices with work in a trace; [HOST] if only the host computed."""
    rows = events.rows_of(*DEVICE_WORK)
    if len(rows):
        return [int(device) for device in distinct(events.device[rows])]
    return [HOST] if len(events.rows_of(EventKind.OPERATOR)) else []


class _Host:
    """Host activity of one trace on its own clock, computed once for all its devices.

    Attributes:
        device_rows, calls: rows of all device work, and of the call that launched each (`UNKNOWN` if not recorded).
        collective_rows: rows of the trace's collectives.
        waits_in_collectives: whether the training thread waits in calls while other threads run its operators.
        awaited: on CPUs, unless `waits_in_collectives`, the training thread's waits for collectives inside operators.
        steps, threads, communication, communication_calls: as in `RankEvents`.
    """

    def __init__(self, trace: Trace, events: EventTable) -> None:
        self.events = events
        self.device_rows = events.rows_of(*DEVICE_WORK)
        self.calls = runtime_call_of(events, self.device_rows)
        marked = marked_steps(trace)
        self.steps = steps_of_launches(events, *self._launches()) if marked is None else marked
        copies = events.kind[self.device_rows] == EventKind.COPY
        pageable = pageable_copy_calls(events, self.device_rows[copies], self.calls[copies])
        self.collective_rows = np.array([call.row for call in trace.collectives], np.int64)
        self.waits_in_collectives = trace.waits_in_collectives
        self.threads = host_threads(events, pageable)
        self.awaited = EMPTY
        training = self.threads.get(self.steps.thread)
        if len(self.device_rows) == 0 and not trace.waits_in_collectives and training is not None:
            self.awaited = awaited_inside(trace, self.steps.thread)
            busy = subtract(training.busy, self.awaited)
            self.threads[training.thread] = msgspec.structs.replace(training, busy=busy, awaited=self.awaited)
        self.communication: Spans
        self.communication_calls: Spans
        self.communication, self.communication_calls = communication_spans(trace, self.threads, self.steps)

    def _launches(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Return the calls that launched device work (on CPUs: top-level ops), and the name of each call's work."""
        events, known = self.events, self.calls != UNKNOWN
        if len(self.device_rows) == 0:
            tops = _top_level(events.rows_of(EventKind.OPERATOR), events.start_ns, events.end_ns, events.thread)
            return tops, events.name[tops]
        # A launch gets the name of its device work, because most calls are named cudaLaunchKernel.
        launches, first = np.unique(self.calls[known], return_index=True)
        return launches, events.name[self.device_rows[known][first]]

    def spans(self, rows: NDArray[np.integer]) -> Intervals:
        return union(Intervals(self.events.start_ns[rows], self.events.end_ns[rows]))


def _device_ops(host: _Host, device: int) -> DeviceOps:
    """Return the device work of one device of this host, on the clock of the host's trace."""
    on_device = host.events.device[host.device_rows] == device
    return device_ops(
        host.events,
        host.device_rows[on_device],
        host.calls[on_device],
        step_start=host.steps.start,
        communication=host.communication,
    )


def _host_ops(host: _Host) -> DeviceOps:
    """Return the top-level operators of the training thread, which stand in for device work on CPU-only runs.

    Waits for collectives are cut out of the operators, because nothing is computed during a wait.
    """
    events, steps = host.events, host.steps
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == steps.thread]
    rows = _top_level(rows, events.start_ns, events.end_ns, events.thread)
    rows = rows[~among(rows, host.collective_rows)]
    # Operators of the loader on this thread (collating, copying into pinned memory) are input, not compute.
    thread = host.threads.get(steps.thread)
    if thread is not None and len(thread.input):
        opened = np.searchsorted(thread.input.start, events.start_ns[rows], side="right") - 1
        rows = rows[(opened < 0) | (thread.input.end[opened] <= events.start_ns[rows])]
    start, end = events.start_ns[rows], events.end_ns[rows]
    waits = host.spans(host.collective_rows) if host.waits_in_collectives else host.awaited
    if host.waits_in_collectives or len(waits):
        rows, start, end = _without(rows, start, end, waits)
    communicating = any_of(events.role[rows], Role.ENQUEUE, Role.COMMUNICATION)
    communicating |= launched_within(host.communication, events.thread[rows], start)
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
