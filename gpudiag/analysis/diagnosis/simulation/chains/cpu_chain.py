"""The host chain of a CPU-only process: the training thread computes, hands collectives over, and waits for them.

Collectives run on the process group's own threads. They are the graph's "device" ops; the training thread's work is all
host work:

    training thread   backward ──┤ c10d::allreduce_ ├── backward ──┤ (nothing recorded) ├── copy_bucket_to_grad
    gloo thread                         ├───────── gloo:all_reduce ─────────┤
                                 node: handed over                  node: blocked until the collective's end

TensorFlow's training thread is inside the call of its function all the while, and waits where an executor thread does:

    training thread   ──────────────── EagerExecute: step ────────────────────
    executor thread   forward, backward ┤ CollectiveReduceV2 ├ optimizer
                            node: handed over      node: blocked until its end
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.simulation.chains.host_chain import Chain, step_index
from gpudiag.analysis.diagnosis.simulation.chains.host_time import body_span, lengths_in_turn, silence
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps
from gpudiag.intervals import EMPTY, Intervals, among, subtract, union
from gpudiag.model.event import EventKind, EventTable, Role
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, WAITED_NS, DeviceTrack, OpClass, Timeline

#: Of each collective when its hand-over begins and ends; of each wait when it begins and ends, and for which op.
_Enqueued = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

#: Collectives that may be under way at once; PyTorch's gloo has two threads per group.
_MOST_BESIDE = 16


def collective_ops(track: DeviceTrack, index: int) -> TrackOps:
    """The collectives of a CPU lane's analysed steps, as the ops of the graph; one stream per thread that ran them."""
    begin, end = body_span(track)
    table = track.collectives
    inside = np.flatnonzero((table.start >= begin) & (table.start < end))
    # Without the trace at hand, threads are told apart by what overlaps: greedy, first free stream.
    stream_ends: list[float] = []
    stream = np.zeros(len(inside), np.int64)
    before = np.full(len(inside), -np.inf)
    for position, op in enumerate(inside):
        free = next((s for s, e in enumerate(stream_ends) if e <= table.start[op]), None)
        if free is None:
            stream_ends.append(-np.inf)
            free = len(stream_ends) - 1
        stream[position], before[position] = free, stream_ends[free]
        stream_ends[free] = float(table.end[op])
    order = np.argsort(stream, kind="stable")
    chosen = inside[order]
    edges = np.searchsorted(stream[order], np.arange(len(stream_ends) + 1))
    none = np.full(len(chosen), NONE, np.int64)
    return TrackOps(
        track=index,
        trace=track.trace,
        start=table.start[chosen].astype(np.float64),
        end=table.end[chosen].astype(np.float64),
        op_class=np.full(len(chosen), OpClass.COMMUNICATION, np.uint8),
        host_copy=np.zeros(len(chosen), np.bool_),
        row=table.row[chosen],
        step=step_index(track, table.start[chosen]),
        order=chosen.astype(np.int64),
        launch_time=np.full(len(chosen), UNKNOWN, np.int64),
        launch_thread=np.full(len(chosen), track.steps.thread, np.int64),
        before_end=before[order],
        wait_a=none.copy(),
        wait_b=none.copy(),
        waited_end=np.full(len(chosen), -np.inf),
        given=[],
        streams=[(int(a), int(b)) for a, b in pairwise(edges)],
        launch=none.copy(),
    )


def cpu_chain_of(
    timeline: Timeline, trace_index: int, tracks: list[DeviceTrack], parts: list[TrackOps]
) -> Chain | None:
    """The chain of one CPU-only process, and in `parts[0]` which node handed each collective over."""
    track, part = tracks[0], parts[0]
    events = timeline.traces[trace_index].events
    shift = track.shift_ns
    begin, end = body_span(track)
    thread = track.threads.get(track.steps.thread)
    if thread is None:
        return None
    waits_in_them = timeline.traces[trace_index].waits_in_collectives
    enqueue = _in_a_function if waits_in_them else _beside_the_loop
    handed_from, handed, blocked_from, blocked_to, blocked_on = enqueue(events, track, part)
    # The body's end is a node too: what the thread does after the last collective is part of the turn.
    marks = np.append(track.steps.start[(track.steps.start > begin) & (track.steps.start < end)], end)
    time = np.concatenate([handed, blocked_to, marks])
    if len(time) == 0:
        return None
    stop = np.concatenate([handed, blocked_from, marks])
    kind = np.concatenate([np.zeros(len(handed)), np.ones(len(blocked_to)), np.zeros(len(marks))]).astype(np.bool_)
    target = np.concatenate([np.full(len(handed), NONE), blocked_on, np.full(len(marks), NONE)]).astype(np.int64)
    order = np.argsort(time, kind="stable")
    time, stop, kind, target = time[order], stop[order], kind[order], target[order]
    before = np.concatenate([[begin], time[:-1]])
    stop = np.maximum(stop, before)
    _attach(part, handed_from, np.flatnonzero(~kind & among(time, handed)))
    waiting = thread.input
    fetch = lengths_in_turn(waiting, before, stop)
    covered = lengths_in_turn(union(thread.busy, waiting), before, stop)
    gap = (stop - before).astype(np.float64)
    silence_of = silence(track, events, [track.steps.thread], gap - covered, (before, stop))
    host_rows = events.rows_of(EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON)
    host_rows = host_rows[events.thread[host_rows] == track.steps.thread]
    recorded = np.sort(events.end_ns[host_rows] + shift)
    edges = np.concatenate([[begin], time])
    # Negative where the collective's end was recorded late.
    delay = np.where(kind, time - part.end[np.maximum(target, 0)], 0.0) if len(part.end) else 0.0 * gap
    return Chain(
        trace=trace_index,
        time=time.astype(np.float64),
        busy=covered - fetch + silence_of.short,
        input=fetch,
        silent=silence_of.opening,
        stall=silence_of.elsewhere,
        slow=np.zeros(len(time)),
        allocating=np.zeros(len(time)),
        profiler=np.zeros(len(time)),
        events=np.diff(np.searchsorted(recorded, edges, side="right")).astype(np.int64),
        block=np.where(kind, Block.COLLECTIVE, Block.NOT).astype(np.uint8),
        block_part=np.where(kind, 0, NONE).astype(np.int64),
        block_op=target,
        block_delay=delay,
        row=np.full(len(time), NONE, np.int64),
        step=step_index(track, np.minimum(time, end - 1)),
    )


def _in_a_function(events: EventTable, track: DeviceTrack, part: TrackOps) -> _Enqueued:  # noqa: ARG001  # as of the other
    """TensorFlow's: from a collective's start to its end its process waits for it."""
    start, end = part.start.astype(np.int64), part.end.astype(np.int64)
    order = np.argsort(start, kind="stable")
    inside = order[end[order] < body_span(track)[1]]
    return start[order], start[order], start[inside], end[inside], inside.astype(np.int64)


def _beside_the_loop(events: EventTable, track: DeviceTrack, part: TrackOps) -> _Enqueued:
    """PyTorch's: the training thread hands collectives over by calls of its own, and pauses until they are done."""
    begin, end = body_span(track)
    shift = track.shift_ns
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == track.steps.thread]
    over = rows[events.role[rows] == Role.ENQUEUE]
    over_end = events.end_ns[over] + shift
    over = over[(over_end >= begin) & (over_end < end)]
    over = over[np.argsort(events.end_ns[over], kind="stable")]
    thread = track.threads.get(track.steps.thread)
    awaited = EMPTY if thread is None else thread.awaited
    blocked_from, blocked_to, blocked_on = _waits(
        events.start_ns[rows] + shift, events.end_ns[rows] + shift, track.steps.start, part, awaited
    )
    inside = (blocked_to >= begin) & (blocked_to < end)
    return (
        events.start_ns[over] + shift,
        events.end_ns[over] + shift,
        blocked_from[inside],
        blocked_to[inside],
        blocked_on[inside],
    )


def _waits(
    start: np.ndarray[tuple[int], np.dtype[np.int64]],
    end: np.ndarray[tuple[int], np.dtype[np.int64]],
    marks: np.ndarray[tuple[int], np.dtype[np.int64]],
    part: TrackOps,
    awaited: Intervals,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """(from, to, op) of each pause of the training thread that a collective ended: the one whose end is nearest to its.

    A collective's thread wakes the training thread and then records its own end, unless it loses its core in between:
    the end that a trace shows may lie milliseconds after the pause that it ended. In ms, of one step's last two
    collectives:

        gloo threads       ──── A ────┤118.8       ─────────── B ───────────┤170.1
        training thread    ┤119.3 ═══════════ pause ═══════════ 167.5├ copies gradients

    B ended it, not A. Were it A, the 49 ms of the pause would be no transfer's. Where no collective's end lies in the
    pause, it is that of one that lay in it for the most part.

    What the thread waits inside an operator (`awaited`) is a pause too. Where the collective ended in the first half of
    it, the thread waited until then and was elsewhere for the rest: no wake-up takes longer than what it ends.

    A pause over a step's mark is none: gradients are there before the update, and what comes after that is the loader.
    A collective may seem to end in it, when its thread lost its core before it could say that it was done.
    """
    busy = subtract(union(Intervals(start, end)), awaited)
    pause_from, pause_to = busy.end[:-1], busy.start[1:]
    over_mark = np.searchsorted(marks, pause_to) > np.searchsorted(marks, pause_from)
    long = (pause_to - pause_from >= WAITED_NS) & ~over_mark
    pause_from, pause_to = pause_from[long], pause_to[long]
    order = np.argsort(part.end, kind="stable")
    ends = part.end[order]
    ended = np.full(len(pause_to), NONE, np.int64)
    for pause, (begin, stop) in enumerate(zip(pause_from.tolist(), pause_to.tolist(), strict=True)):
        after = int(np.searchsorted(ends, stop, side="right"))
        under_way = after + np.flatnonzero(part.start[order[after : after + _MOST_BESIDE]] < stop)
        if after and ends[after - 1] > begin:
            ended[pause] = order[after - 1]
            if len(under_way) and ends[under_way[0]] - stop < stop - ends[after - 1]:
                ended[pause] = order[under_way[0]]
        elif len(under_way):
            first = order[under_way[0]]
            if stop - max(begin, part.start[first]) >= MOST * (part.end[first] - part.start[first]):
                ended[pause] = first
    waited = ended != NONE
    pause_from, pause_to, ended = pause_from[waited], pause_to[waited], ended[waited]
    until = part.end[ended].astype(np.int64)
    elsewhere = (pause_to - until >= PAUSE_NS) & (pause_to - until > MOST * (pause_to - pause_from))
    return pause_from, np.where(elsewhere, until, pause_to), ended


def _attach(
    part: TrackOps,
    handed_from: np.ndarray[tuple[int], np.dtype[np.int64]],
    nodes: np.ndarray[tuple[int], np.dtype[np.intp]],
) -> None:
    """Join collectives to the nodes that handed them over: first come, first served, each after its own hand-over.

    A worker thread begins as soon as it has the work, often long before the call that handed it over returns: on a busy
    processor the caller may lose its core to the very thread that it woke. So a call's start counts, not its end.
    """
    by_start = np.argsort(part.start, kind="stable")
    used = 0
    for op in by_start:
        limit = int(np.searchsorted(handed_from, part.start[op], side="right"))
        if used < limit:
            part.launch[op] = nodes[used]
            used += 1
