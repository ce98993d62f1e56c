"""The host chain of one process: its launches and its waits in order, and what it did in between."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    BESIDE,
    CLOCK_NS,
    COPY_BEHIND_NS,
    FULL_QUEUE_OPS,
    HELD_UP_FACTOR,
    HELD_UP_NS,
)
from gpudiag.analysis.diagnosis.simulation.chains.host_time import body_span, lengths_in_turn, silence, slow_calls
from gpudiag.analysis.diagnosis.simulation.chains.own_copies import own_copies
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block
from gpudiag.analysis.diagnosis.simulation.streams import Awaited, TrackOps, find_dependencies
from gpudiag.intervals import Intervals, among, distinct, intersect, length, median, union
from gpudiag.model.event import NO_CORRELATION, Direction, EventKind, EventTable, Role, Trace, any_of
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, HostThread, OpClass, Timeline
from gpudiag.units import NS_PER_US

#: Of calls held up by a full queue it is enough to keep one now and then: the device sets the pace between them too, as
#: the queue holds many times this much work. It makes the replay twice as fast where the host is ahead.
_ONE_HELD_UP_PER_NS = 2_000 * NS_PER_US


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Host nodes of one process as in `graph.HostNodes`; `block_part` and `block_op` name an op of one of its lanes."""

    trace: int
    time: NDArray[np.float64]
    busy: NDArray[np.float64]
    input: NDArray[np.float64]
    silent: NDArray[np.float64]
    stall: NDArray[np.float64]
    slow: NDArray[np.float64]
    allocating: NDArray[np.float64]
    profiler: NDArray[np.float64]
    events: NDArray[np.int64]
    block: NDArray[np.uint8]
    block_part: NDArray[np.int64]
    block_op: NDArray[np.int64]
    block_delay: NDArray[np.float64]
    row: NDArray[np.int64]
    step: NDArray[np.int64]


def chain_of(timeline: Timeline, trace_index: int, tracks: list[DeviceTrack], parts: list[TrackOps]) -> Chain | None:
    """The chain of one process, and in `parts` the launches and waits of its ops.

    Args:
        timeline: the job.
        trace_index: which trace the process is.
        lanes: its lanes.
        parts: the ops of each of these lanes; `launch`, `wait_a`, `wait_b` and `host_copy` are filled in.
    """
    track = tracks[0]
    trace = timeline.traces[trace_index]
    events = trace.events
    shift = track.shift_ns
    begin, end = body_span(track)
    threads = _chain_threads(track, anyone=trace.waits_in_collectives)
    rows = events.rows_on(threads, EventKind.RUNTIME)
    start, stop = events.start_ns[rows] + shift, events.end_ns[rows] + shift
    wait_calls = np.sort(start[events.role[rows] == Role.STREAM_WAIT], kind="stable")
    told = [find_dependencies(part, trace, own, wait_calls) for own, part in zip(tracks, parts, strict=True)]
    for part in parts:
        part.host_copy = any_of(events.direction[part.row], Direction.HOST_TO_DEVICE, Direction.DEVICE_TO_HOST)
        part.host_copy &= part.op_class != OpClass.COMMUNICATION
    launching = np.concatenate([track.ops.launch_start for track in tracks])
    blocked_starts = np.concatenate(
        [track.threads[t].blocked.start for t in threads if t in track.threads] or [np.empty(0, np.int64)]
    )
    blocking = among(start, blocked_starts)
    nodes = among(start, launching) | blocking
    chosen = np.flatnonzero(nodes & (start >= begin) & (start < end))
    if len(chosen) == 0:
        return None
    chosen = chosen[np.argsort(stop[chosen], kind="stable")]
    call_start, time = start[chosen], stop[chosen]
    before = np.concatenate([[_node_before(start, stop, nodes, begin)], time[:-1]])
    held = lengths_in_turn(track.overhead, before, time)
    kinds = _kinds(events, rows[chosen], (call_start, time), blocking[chosen], held, _queue_length(tracks, time))
    waited_from = np.where(held > 0, before, np.maximum(call_start, before))
    # Of an executor's threads, which work side by side, one that waits holds up no other.
    alone = not trace.waits_in_collectives
    own = own_copies(parts, call_start, time, blocking[chosen] & (events.role[rows[chosen]] == Role.COPY) & alone)
    chosen, call_start, began = chosen[own.call], call_start[own.call], np.maximum(call_start, before)[own.call]
    time = np.where(own.begins, began, time[own.call])
    before = np.concatenate([before[:1], time[:-1]])
    kinds = np.where(own.begins, Block.NOT, kinds[own.call]).astype(np.uint8)
    target_part, target_op, target_end = own.instead_of(
        *_block_targets(parts, call_start, time, np.maximum(waited_from[own.call], before), kinds, rows[chosen], told)
    )
    block = np.where(target_part != NONE, kinds, Block.NOT).astype(np.uint8)
    # What a call waited for may have ended long before: then its time was work, and is all its delay.
    idle = (_pending_until(parts, call_start) <= began) & any_of(kinds, Block.SYNC, Block.RELEASE) & alone
    at_once = (target_end <= began) & (idle | among(rows[chosen], np.concatenate([one.call for one in told])))
    work_until = np.where((block != Block.NOT) & ~at_once, began, time)
    busy, waited, silent = _work(track.threads, threads, before, work_until)
    silence_of = silence(track, events, threads, silent, (before, work_until))
    busy = busy + silence_of.short
    calls = slow_calls(track, events, threads, int(before[0]), end)
    slow = np.minimum(lengths_in_turn(calls.spans, before, work_until), busy)
    profiler = np.minimum(lengths_in_turn(track.overhead, before, work_until), busy)
    # Held up by a full queue, as "Command Buffer Full" shows: the device sets the pace, and the time is no work.
    busy = busy - np.where(block == Block.QUEUE, profiler, 0.0)
    profiler = np.where(block == Block.QUEUE, 0.0, profiler)
    _attach_launches(parts, call_start, block != Block.NOT)
    block = _thinned(block, time)
    target_part = np.where(block != Block.NOT, target_part, NONE)
    delay = time - np.where(at_once, began, target_end)
    # A call may return within microseconds before its own copy ends.
    delay = np.where(block != Block.NOT, np.maximum(delay, np.where(own.returns, -np.inf, 0.0)), 0.0)
    recorded = own.as_begun(np.diff(_recorded_by(trace, threads, np.concatenate([before[:1], time]) - shift)))
    return Chain(
        trace=trace_index,
        time=time.astype(np.float64),
        busy=busy,
        input=waited,
        silent=silence_of.opening,
        stall=silence_of.elsewhere,
        slow=slow,
        allocating=np.minimum(lengths_in_turn(_allocating(events, rows, shift), before, work_until), busy),
        profiler=profiler,
        events=recorded.astype(np.int64),
        block=block,
        block_part=target_part,
        block_op=target_op,
        block_delay=delay.astype(np.float64),
        row=rows[chosen].astype(np.int64),
        step=step_index(track, call_start),
    )


def _allocating(events: EventTable, rows: NDArray[np.intp], shift: int) -> Intervals:
    """When calls take memory from the driver, or give it back."""
    calls = rows[any_of(events.role[rows], Role.ALLOCATION, Role.RELEASE)]
    return union(Intervals(events.start_ns[calls] + shift, events.end_ns[calls] + shift))


def _recorded_by(trace: Trace, threads: list[int], time: NDArray[np.int64]) -> NDArray[np.intp]:
    """How many events of these threads were recorded after the first of these times, by each; on the trace's clock."""
    operators = () if trace.operators_merged else (EventKind.OPERATOR, EventKind.PYTHON)
    end = trace.events.end_ns[trace.events.rows_on(threads, EventKind.ANNOTATION, EventKind.RUNTIME, *operators)]
    end = end[np.flatnonzero((end > time[0]) & (end <= time[-1]))]
    return np.sort(end, kind="stable").searchsorted(time, side="right")  # in order but for what is nested


def step_index(track: DeviceTrack, time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of the body's steps each time lies in, from 0."""
    begin, _ = body_span(track)
    first = int(np.searchsorted(track.steps.start, begin))
    index = np.searchsorted(track.steps.start, time, side="right") - 1 - first
    return np.clip(index, 0, max(len(track.window_steps) - 1, 0)).astype(np.int64)


def _chain_threads(track: DeviceTrack, *, anyone: bool) -> list[int]:
    """The training thread and the launching threads that take turns with it: all, where an executor's work for it."""
    main = track.steps.thread
    training = track.threads.get(main)
    launchers = [int(t) for t in distinct(track.ops.launch_thread) if t not in {UNKNOWN, main}]
    if training is None:
        return launchers
    if anyone:
        return [main, *launchers]
    turns = [
        t
        for t in launchers
        if t in track.threads
        and length(intersect(track.threads[t].busy, training.busy)) <= BESIDE * max(length(track.threads[t].busy), 1)
    ]
    return [main, *turns]


def _kinds(  # noqa: PLR0917  # as below
    events: EventTable,
    rows: NDArray[np.intp],
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    blocking: NDArray[np.bool_],
    held: NDArray[np.float64],
    queued: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """The `Block` of each call, by when it began and ended, whether it blocks, and how long the profiler held it."""
    start, end = span
    kinds = _with_copies(events, rows, _block_kinds(events, rows, end - start, blocking, queued), start, end)
    kinds[blocking & (events.role[rows] == Role.COMMUNICATION)] = Block.COLLECTIVE
    kinds[blocking & (events.role[rows] == Role.RELEASE)] = Block.RELEASE
    kinds[(kinds == Block.NOT) & (held > HELD_UP_NS) & (queued >= FULL_QUEUE_OPS)] = Block.QUEUE
    return kinds


def _block_kinds(
    events: EventTable,
    rows: NDArray[np.intp],
    duration: NDArray[np.int64],
    blocking: NDArray[np.bool_],
    queued: NDArray[np.int64],
) -> NDArray[np.uint8]:
    is_copy = events.role[rows] == Role.COPY
    kinds = np.where(blocking, np.where(is_copy, Block.PAGEABLE, Block.SYNC), Block.NOT)
    name = events.name[rows]
    long = ~blocking & (queued >= FULL_QUEUE_OPS) & (duration > HELD_UP_NS)
    for ident in distinct(name[long]):
        mine = (name == ident) & ~blocking
        kinds[mine & long & (duration > HELD_UP_FACTOR * median(duration[mine]))] = Block.QUEUE
    return kinds.astype(np.uint8)


def _thinned(block: NDArray[np.uint8], time: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Block kinds with fewer calls that were held up by a full queue."""
    thinned = block.copy()
    last = -_ONE_HELD_UP_PER_NS
    held_up = np.flatnonzero(block == Block.QUEUE)
    for node, reached in zip(held_up.tolist(), time[held_up].tolist(), strict=True):
        if reached - last < _ONE_HELD_UP_PER_NS:
            thinned[node] = Block.NOT
        else:
            last = reached
    return thinned


def _with_copies(
    events: EventTable,
    rows: NDArray[np.intp],
    kinds: NDArray[np.uint8],
    call_start: NDArray[np.int64],
    time: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Kinds with what belongs to a copy told apart from what waits for a result.

    `.to(device)` makes two calls: the copy and, unless told non_blocking, a synchronization right behind it, which goes
    when the copy goes. A blocking copy to the host is the other way round: the program wants the result now.
    """
    copies = events.rows_of(EventKind.COPY)
    copies = copies[events.correlation[copies] != NO_CORRELATION]
    to_device = events.direction[copies] == Direction.HOST_TO_DEVICE
    is_to = among(events.correlation[rows], events.correlation[copies[to_device]])
    is_from = among(events.correlation[rows], events.correlation[copies[~to_device]])
    behind = np.zeros(len(rows), np.bool_)
    same_thread = events.thread[rows[1:]] == events.thread[rows[:-1]]
    behind[1:] = is_to[:-1] & same_thread & (call_start[1:] - time[:-1] <= COPY_BEHIND_NS)
    kinds = np.where(behind & (kinds == Block.SYNC), Block.PAGEABLE, kinds)
    return np.where(is_from & (kinds == Block.PAGEABLE), Block.SYNC, kinds).astype(np.uint8)


def _queue_length(tracks: list[DeviceTrack], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many ops had been launched but had not ended, over all devices of the process, at each time."""
    total = np.zeros(len(time), np.int64)
    for track in tracks:
        known = track.ops.launch_start != UNKNOWN
        launched = np.searchsorted(np.sort(track.ops.launch_start[known], kind="stable"), time)
        ended = np.searchsorted(np.sort(track.ops.end[known], kind="stable"), time)
        total += launched - ended
    return total


def _node_before(start: NDArray[np.int64], stop: NDArray[np.int64], nodes: NDArray[np.bool_], begin: int) -> int:
    """When the last node before the body was reached; the body's begin where there is none."""
    earlier = stop[nodes & (start < begin)]
    return int(earlier.max()) if len(earlier) else begin


def _block_targets(  # noqa: PLR0917  # columns of the calls, in the order in which they come about
    parts: list[TrackOps],
    call_start: NDArray[np.int64],
    time: NDArray[np.int64],
    waited_from: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    rows: NDArray[np.intp],
    told: list[Awaited],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """For each blocking call the op that it waited for: of those launched before, the last to end before it returned.

    Where the trace tells the event that a call waited for (`told`, for each part), that is the op before its record.

    Returns its part, its index there, and when it ended.

    A synchronization waits for such an op even when that had ended before the call: were the host faster, it would have
    to wait. A held-up launch counts only where an op did end while it was held up.
    """
    target_part = np.full(len(time), NONE, np.int64)
    target_op = np.full(len(time), NONE, np.int64)
    latest = np.full(len(time), -np.inf)
    wanted = np.flatnonzero(kinds != Block.NOT)
    known = among(rows[wanted], np.concatenate([awaited.call for awaited in told]))
    returned = time[wanted] + np.where(known, CLOCK_NS, 0)
    even_if_over = any_of(kinds[wanted], Block.SYNC, Block.COLLECTIVE, Block.RELEASE)
    for position, (part, awaited) in enumerate(zip(parts, told, strict=True)):
        for at, given in enumerate(part.given):
            ended = np.searchsorted(given.end, returned, side="right") - 1
            launched = np.searchsorted(given.launch_time, call_start[wanted], side="left") - 1
            if known.any():
                launched = np.where(known, _index_of(rows[wanted], awaited, at), launched)
            index = np.minimum(ended, launched)
            valid = index >= 0
            ends = np.where(valid, given.end[np.maximum(index, 0)], -np.inf)
            binding = ends > waited_from[wanted]
            counts = valid & (binding | even_if_over) & (ends > latest[wanted])
            chosen = wanted[counts]
            latest[chosen] = ends[counts]
            target_part[chosen] = position
            target_op[chosen] = given.op[index[counts]]
    return target_part, target_op, latest


def _pending_until(parts: list[TrackOps], call_start: NDArray[np.int64]) -> NDArray[np.float64]:
    """When the last of all ops that were launched before each call ended; -inf where none was."""
    until = np.full(len(call_start), -np.inf)
    for part in parts:
        for given in part.given:
            last = np.searchsorted(given.launch_time, call_start, side="left") - 1
            until = np.maximum(until, np.where(last >= 0, given.end[np.maximum(last, 0)], -np.inf))
    return until


def _index_of(rows: NDArray[np.intp], awaited: Awaited, at: int) -> NDArray[np.int64]:
    """For each call the index of the op in the stream `at` that it is told to wait for, or `NONE`."""
    index = np.full(len(rows), NONE, np.int64)
    mine = awaited.given == at
    if mine.any():
        calls = awaited.call[mine]  # in order, as waits are
        slot = np.minimum(np.searchsorted(calls, rows), len(calls) - 1)
        index = np.where(calls[slot] == rows, awaited.index[mine][slot], NONE)
    return index


def _work(
    by_thread: dict[int, HostThread],
    threads: list[int],
    before: NDArray[np.int64],
    stop: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(busy, input, silent) work of each node: what lies between the node before and `stop`.

    That is the node's call, included unless it blocks: for then how long it took is no work.
    """
    present = [by_thread[t] for t in threads if t in by_thread]
    busy = union(*(thread.busy for thread in present))
    waiting = union(*(thread.input for thread in present))
    gap = np.maximum(stop - before, 0).astype(np.float64)
    fetch = lengths_in_turn(waiting, before, stop)
    covered = lengths_in_turn(union(busy, waiting), before, stop)
    return covered - fetch, fetch, gap - covered


def _attach_launches(parts: list[TrackOps], call_start: NDArray[np.int64], blocks: NDArray[np.bool_]) -> None:
    """Join ops to nodes. An op that started before its own blocking call returned hangs on the node before."""
    order = np.argsort(call_start, kind="stable")
    starts = call_start[order]
    for part in parts:
        slot = np.minimum(np.searchsorted(starts, part.launch_time), len(starts) - 1)
        found = (part.launch_time != UNKNOWN) & (starts[slot] == part.launch_time)
        node = order[slot]
        node = np.where(blocks[node], np.maximum(node - 1, 0), node)
        part.launch = np.where(found, node, NONE)
