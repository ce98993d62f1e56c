"""Build the host chain of a CPU-only process: its training thread computes, enqueues collectives, and waits for them.

Collectives run on the process group's threads. Collectives are the graph's "device" ops, and the training thread's work
is all host work:

    training thread   backward ──┤ c10d::allreduce_ ├── backward ──┤ (nothing recorded) ├── copy_bucket_to_grad
    gloo thread                         ├───────── gloo:all_reduce ─────────┤
                                 node: enqueued                     node: blocked until the collective's end

TensorFlow's training thread is inside the call of its function for the whole step, and counts as waiting while an
executor thread waits:

    training thread   ──────────────── EagerExecute: step ────────────────────
    executor thread   forward, backward ┤ CollectiveReduceV2 ├ optimizer
                                node: enqueued      node: blocked until its end
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, Index
from gpudiag.analysis.diagnosis.simulation.host_chain import Chain, step_index
from gpudiag.analysis.diagnosis.simulation.host_time import analysed_span, lengths_in_turn, split_untraced
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps
from gpudiag.intervals import Intervals, among, subtract, union
from gpudiag.model.event import EventKind, EventTable, Role
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, WAITED_NS, DeviceTrack, HostThread, OpClass, Timeline

#: Maximum number of collectives under way at once; PyTorch's gloo has two threads per group.
_MAX_CONCURRENT = 16


class _Calls(NamedTuple):
    """Begin and end, in ns, of each enqueue; begin, end, and awaited op of each wait."""

    enqueue_start: Index
    enqueue_end: Index
    wait_start: Index
    wait_end: Index
    wait_op: Index


def collective_ops(track: DeviceTrack, index: int) -> TrackOps:
    """Return the collectives of a CPU track's analysed steps as ops of the graph, on streams without overlap.

    `index` is the index of the track in the timeline.
    """
    begin, end = analysed_span(track)
    table = track.collectives
    inside = np.flatnonzero((table.start >= begin) & (table.start < end))
    # Each collective goes to the first free stream.
    stream_ends: list[float] = []
    stream = np.zeros(len(inside), np.int64)
    before = np.full(len(inside), -np.inf)
    for position, op in enumerate(inside):
        free = next((number for number, free_from in enumerate(stream_ends) if free_from <= table.start[op]), None)
        if free is None:
            stream_ends.append(-np.inf)
            free = len(stream_ends) - 1
        stream[position], before[position] = free, stream_ends[free]
        stream_ends[free] = float(table.end[op])
    order = np.argsort(stream, kind="stable")
    chosen = inside[order]
    edges = np.searchsorted(stream[order], np.arange(len(stream_ends) + 1))
    return TrackOps(
        track=index,
        trace=track.trace,
        start=table.start[chosen].astype(np.float64),
        end=table.end[chosen].astype(np.float64),
        op_class=np.full(len(chosen), OpClass.COMMUNICATION, np.uint8),
        row=table.row[chosen],
        step=step_index(track, table.start[chosen]),
        launch_time=np.full(len(chosen), UNKNOWN, np.int64),
        launch_thread=np.full(len(chosen), track.steps.thread, np.int64),
        before_end=before[order],
        streams=list(pairwise(edges.tolist())),
    )


def build_cpu_chain(
    timeline: Timeline, trace_index: int, tracks: list[DeviceTrack], ops: list[TrackOps]
) -> Chain | None:
    """Return the chain of one CPU-only process, and fill in the node that enqueued each collective of `ops[0]`.

    The result is None if the training thread recorded nothing.
    """
    track, collectives = tracks[0], ops[0]
    trace = timeline.traces[trace_index]
    events = trace.events
    begin, end = analysed_span(track)
    thread = track.threads.get(track.steps.thread)
    if thread is None:
        return None
    in_function = trace.waits_in_collectives
    calls = (
        _calls_in_function(track, collectives) if in_function else _calls_of_loop(events, track, thread, collectives)
    )
    # The end of the analysed steps is a node too, because work after the last collective belongs to the iteration.
    marks = np.append(track.steps.start[(track.steps.start > begin) & (track.steps.start < end)], end)
    # `time` is when a node is reached, and `stop` is when the work before it ends: at a wait, when the wait begins.
    enqueues, waits = len(calls.enqueue_end), len(calls.wait_end)
    time = np.concatenate([calls.enqueue_end, calls.wait_end, marks])
    stop = np.concatenate([calls.enqueue_end, calls.wait_start, marks])
    is_wait = np.repeat([False, True, False], [enqueues, waits, len(marks)])
    target = np.full(len(time), NONE, np.int64)
    target[is_wait] = calls.wait_op
    order = np.argsort(time, kind="stable")
    time, stop, is_wait, target = time[order], stop[order], is_wait[order], target[order]
    before = np.concatenate([[begin], time[:-1]])
    stop = np.maximum(stop, before)
    _attach_enqueues(collectives, calls.enqueue_start, np.flatnonzero(~is_wait & among(time, calls.enqueue_end)))
    fetching = lengths_in_turn(thread.input, before, stop)
    covered = lengths_in_turn(union(thread.busy, thread.input), before, stop)
    untraced = split_untraced(track, events, [track.steps.thread], stop - before - covered, (before, stop))
    rows = events.rows_of(EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON)
    recorded = np.sort(events.end_ns[rows[events.thread[rows] == track.steps.thread]] + track.shift_ns)
    none = np.zeros(len(time))
    # The delay is negative if the collective's end was recorded late.
    delay = np.where(is_wait, time - collectives.end[np.maximum(target, 0)], 0.0) if len(collectives.end) else none
    return Chain(
        process=np.full(len(time), trace_index, np.int64),
        time=time.astype(np.float64),
        busy=covered - fetching + untraced.short,
        input=fetching,
        before_first_op=untraced.before_first_op,
        untraced=untraced.long,
        slow=none,
        allocating=none,
        profiler=none,
        events=np.diff(np.searchsorted(recorded, np.append(begin, time), side="right")).astype(np.int64),
        block=np.where(is_wait, HostBlock.COLLECTIVE, HostBlock.NOT).astype(np.uint8),
        block_track=np.where(is_wait, 0, NONE).astype(np.int64),
        block_on=target,
        block_delay=delay,
        row=np.full(len(time), NONE, np.int64),
        step=step_index(track, np.minimum(time, end - 1)),  # the node at the end belongs to the last step
    )


def _calls_in_function(track: DeviceTrack, collectives: TrackOps) -> _Calls:
    """Return TensorFlow's calls: the process enqueues each collective at its start, and waits from there to its end."""
    start, end = collectives.start.astype(np.int64), collectives.end.astype(np.int64)
    order = np.argsort(start, kind="stable")
    inside = order[end[order] < analysed_span(track)[1]]
    return _Calls(start[order], start[order], start[inside], end[inside], inside.astype(np.int64))


def _calls_of_loop(events: EventTable, track: DeviceTrack, thread: HostThread, collectives: TrackOps) -> _Calls:
    """Return PyTorch's calls: the training thread enqueues collectives, and pauses until they are done."""
    begin, end = analysed_span(track)
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == track.steps.thread]
    start, stop = events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns
    enqueues = np.flatnonzero((events.role[rows] == Role.ENQUEUE) & (stop >= begin) & (stop < end))
    enqueues = enqueues[np.argsort(stop[enqueues], kind="stable")]
    wait_start, wait_end, wait_op = _waits(start, stop, track.steps.start, collectives, thread.awaited)
    inside = (wait_end >= begin) & (wait_end < end)
    return _Calls(start[enqueues], stop[enqueues], wait_start[inside], wait_end[inside], wait_op[inside])


def _waits(
    start: Index, end: Index, marks: Index, collectives: TrackOps, awaited: Intervals
) -> tuple[Index, Index, Index]:
    """Return (from, to, op) of each pause of the training thread that a collective ended.

    A pause is attributed to the collective whose end is nearest to the pause's end. A collective's thread wakes the
    training thread and then records the collective's end. If the collective's thread loses its core after the wake-up,
    the recorded end may lie milliseconds after the pause. For example, the last two collectives of a step, in ms:

        gloo threads       ──── A ────┤118.8       ─────────── B ───────────┤170.1
        training thread    ┤119.3 ═══════════ pause ═══════════ 167.5├ copies gradients

    B ended the pause, not A. If the pause were attributed to A, its 49 ms would not count as transfer. If no collective
    ends in a pause, the pause is attributed to the next collective to end, if half of that collective or more lies in
    the pause.

    Waiting inside an operator (`awaited`) is a pause too. If the collective ended in the first half of the pause, and
    `PAUSE_NS` or more before the pause's end, the thread waited until the collective's end, and the rest is untraced,
    because no wake-up takes longer than the wait before it.

    A pause across a step's mark is no wait for communication, because gradients are ready before the update, and the
    loader follows the update. A collective may seem to end in such a pause if its thread lost its core before it
    recorded the end.

    Args:
        start, end: int64[k], begin and end of the training thread's operators, in ns.
        marks: int64, starts of the steps, in ns.
        collectives: the analysed collectives.
        awaited: times in which the thread waited inside an operator.
    """
    busy = subtract(union(Intervals(start, end)), awaited)
    pause_from, pause_to = busy.end[:-1], busy.start[1:]
    across_mark = np.searchsorted(marks, pause_to) > np.searchsorted(marks, pause_from)
    long = (pause_to - pause_from >= WAITED_NS) & ~across_mark
    pause_from, pause_to = pause_from[long], pause_to[long]
    order = np.argsort(collectives.end, kind="stable")
    ends = collectives.end[order]
    ended = np.full(len(pause_to), NONE, np.int64)
    for pause, (begin, stop) in enumerate(zip(pause_from.tolist(), pause_to.tolist(), strict=True)):
        after = int(np.searchsorted(ends, stop, side="right"))
        under_way = after + np.flatnonzero(collectives.start[order[after : after + _MAX_CONCURRENT]] < stop)
        if after and ends[after - 1] > begin:
            ended[pause] = order[after - 1]
            if len(under_way) and ends[under_way[0]] - stop < stop - ends[after - 1]:
                ended[pause] = order[under_way[0]]
        elif len(under_way):
            first = order[under_way[0]]
            duration = collectives.end[first] - collectives.start[first]
            if stop - max(begin, collectives.start[first]) >= MOST * duration:
                ended[pause] = first
    waited = ended != NONE
    pause_from, pause_to, ended = pause_from[waited], pause_to[waited], ended[waited]
    until = collectives.end[ended].astype(np.int64)
    left_early = (pause_to - until >= PAUSE_NS) & (pause_to - until > MOST * (pause_to - pause_from))
    return pause_from, np.where(left_early, until, pause_to), ended


def _attach_enqueues(collectives: TrackOps, enqueue_start: Index, nodes: Index) -> None:
    """Match collectives, in order, with the nodes that enqueued them. A collective starts after its enqueue.

    The start of the enqueuing call is compared, not its end. A worker thread begins as soon as it gets the work, often
    long before the enqueuing call returns, because on a busy CPU the caller may lose its core to the worker.
    """
    used = 0
    for op in np.argsort(collectives.start, kind="stable"):
        if used < int(np.searchsorted(enqueue_start, collectives.start[op], side="right")):
            collectives.launch[op] = nodes[used]
            used += 1
