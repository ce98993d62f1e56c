"""Build the host chain of a process with GPUs: its launches and waits in order, and its work in between."""

from __future__ import annotations

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
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, HostNodes, Index, Times
from gpudiag.analysis.diagnosis.simulation.host_time import (
    UntracedTime,
    analysed_span,
    blocking_copies,
    lengths_in_turn,
    present_threads,
    slow_calls,
    split_untraced,
)
from gpudiag.analysis.diagnosis.simulation.streams import AwaitedOps, TrackOps, find_dependencies
from gpudiag.intervals import Intervals, among, distinct, intersect, length, median, union
from gpudiag.model.event import NO_CORRELATION, Direction, EventKind, EventTable, Role, Trace, any_of
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import NS_PER_US

#: Minimum distance, in ns, of calls that are simulated as delayed by a full launch queue. The queue holds work for many
#: times this distance, so that the device sets the pace between these calls too. If the host runs ahead, the simulation
#: is twice as fast with fewer blocking calls.
_ONE_HELD_UP_PER_NS = 2_000 * NS_PER_US

#: The `HostBlock` of each call.
_CallKinds = NDArray[np.uint8]


class Chain(HostNodes, frozen=True, kw_only=True):
    """Host nodes of one process; `block_on` is an index into the ops of the process's track number `block_track`."""

    block_track: Index


def build_chain(timeline: Timeline, trace_index: int, tracks: list[DeviceTrack], ops: list[TrackOps]) -> Chain | None:
    """Return the chain of one process, and fill in launches, waits and host copies of its ops.

    A node is a runtime call that blocks the thread or launched an op of the process. A blocking copy has a second node,
    where the call begins. Nodes are sorted by the ends of the calls. The result is None if the analysed span has no
    node. Columns have a row per node (see `HostNodes`); times are int64[n], ns on the common clock.

    Args:
        timeline: the job.
        trace_index: index of the process's trace.
        tracks: the process's device tracks.
        ops: the analysed ops of each of these tracks.
    """
    track = tracks[0]
    trace = timeline.traces[trace_index]
    events = trace.events
    shift = track.shift_ns
    begin, end = analysed_span(track)
    threads = _chain_threads(track, all_launchers=trace.waits_in_collectives)
    rows = events.rows_on(threads, EventKind.RUNTIME)
    start, stop = events.start_ns[rows] + shift, events.end_ns[rows] + shift
    wait_calls = np.sort(start[events.role[rows] == Role.STREAM_WAIT], kind="stable")
    awaited = [
        find_dependencies(track_ops, trace, ops_track, wait_calls)
        for ops_track, track_ops in zip(tracks, ops, strict=True)
    ]
    _mark_host_copies(ops, events)
    present = present_threads(track, threads)
    blocking = among(start, np.concatenate([np.empty(0, np.int64), *(thread.blocked.start for thread in present)]))
    nodes = among(start, np.concatenate([process_track.ops.launch_start for process_track in tracks])) | blocking
    # The following columns are for the nodes without the begins of copies: when each node ends, when the node before it
    # ends, and why the node blocks.
    chosen = np.flatnonzero(nodes & (start >= begin) & (start < end))
    if len(chosen) == 0:
        return None
    chosen = chosen[np.argsort(stop[chosen], kind="stable")]
    call_start, time = start[chosen], stop[chosen]
    earlier = stop[nodes & (start < begin)]
    before = np.concatenate([[earlier.max() if len(earlier) else begin], time[:-1]])
    held = lengths_in_turn(track.overhead, before, time)
    queued = _queue_length(tracks, time)
    kinds = _block_kinds(events, rows[chosen], (call_start, time), blocking[chosen], held, queued)
    # Overhead ("Command Buffer Full") delays the call, but may be recorded before the call begins.
    waited_from = np.where(held > 0, before, np.maximum(call_start, before))
    # If other threads run the operators (TensorFlow, JAX), a thread that waits for a copy does not block the others.
    in_turn = not trace.waits_in_collectives
    copying = blocking[chosen] & (events.role[rows[chosen]] == Role.COPY) & in_turn
    copies = blocking_copies(ops, call_start, time, copying)
    # From here on, columns also have the nodes at which copies begin.
    chosen, call_start, began = (
        chosen[copies.call],
        call_start[copies.call],
        np.maximum(call_start, before)[copies.call],
    )
    time = np.where(copies.begins, began, time[copies.call])
    before = np.concatenate([before[:1], time[:-1]])
    kinds = np.where(copies.begins, HostBlock.NOT, kinds[copies.call]).astype(np.uint8)
    waited_from = np.maximum(waited_from[copies.call], before)
    # The op that each blocking call waits for.
    target_track, target_op, target_end = copies.or_else(
        *_block_targets(ops, call_start, time, waited_from, kinds, rows[chosen], awaited)
    )
    block = np.where(target_track != NONE, kinds, HostBlock.NOT).astype(np.uint8)
    # A blocking call did not wait, and its whole time is delay, if the device was idle, or if the op for which the call
    # waits is known from the trace and had ended.
    idle = (_pending_until(ops, call_start) <= began) & any_of(kinds, HostBlock.SYNC, HostBlock.RELEASE) & in_turn
    known = among(rows[chosen], np.concatenate([track_awaited.call for track_awaited in awaited]))
    at_once = (target_end <= began) & (idle | known)
    work_until = np.where((block != HostBlock.NOT) & ~at_once, began, time)
    busy, fetching, untraced = _time_before_nodes(track, events, threads, before, work_until)

    def busy_inside(spans: Intervals) -> Times:
        return np.minimum(lengths_in_turn(spans, before, work_until), busy)

    slow = busy_inside(slow_calls(track, events, threads, int(before[0]), end).spans)
    profiler = busy_inside(track.overhead)
    # "Command Buffer Full" overhead of a call that a full queue delayed is no work, because the device sets the pace.
    busy = busy - np.where(block == HostBlock.QUEUE, profiler, 0.0)
    profiler = np.where(block == HostBlock.QUEUE, 0.0, profiler)
    _attach_launches(ops, call_start, block != HostBlock.NOT)
    block = _thinned(block, time)
    delay = time - np.where(at_once, began, target_end)
    # A call may return some microseconds before its own copy ends.
    delay = np.where(block != HostBlock.NOT, np.maximum(delay, np.where(copies.returns, -np.inf, 0.0)), 0.0)
    recorded = np.diff(_recorded_by(trace, threads, np.concatenate([before[:1], time]) - shift))
    return Chain(
        process=np.full(len(time), trace_index, np.int64),
        time=time.astype(np.float64),
        busy=busy,
        input=fetching,
        before_first_op=untraced.before_first_op,
        untraced=untraced.long,
        slow=slow,
        allocating=busy_inside(_allocating(events, rows, shift)),
        profiler=profiler,
        events=copies.move_to_begin(recorded).astype(np.int64),
        block=block,
        block_track=np.where(block != HostBlock.NOT, target_track, NONE),
        block_on=target_op,
        block_delay=delay.astype(np.float64),
        row=rows[chosen].astype(np.int64),
        step=step_index(track, call_start),
    )


def _mark_host_copies(ops: list[TrackOps], events: EventTable) -> None:
    for track_ops in ops:
        direction = events.direction[track_ops.row]
        track_ops.host_copy = any_of(direction, Direction.HOST_TO_DEVICE, Direction.DEVICE_TO_HOST)
        track_ops.host_copy &= track_ops.op_class != OpClass.COMMUNICATION


def _time_before_nodes(
    track: DeviceTrack, events: EventTable, threads: list[int], before: Index, until: Index
) -> tuple[Times, Times, UntracedTime]:
    """Return (work, waiting for input, untraced time): float64[n] each, ns from `before` to `until`.

    `before` is int64[n], the time of the previous node. `until` is the end of the node's call, or the begin of a call
    that blocks, because waiting is no work.
    """
    present = present_threads(track, threads)
    traced = union(*(thread.busy for thread in present))
    waiting = union(*(thread.input for thread in present))
    fetching = lengths_in_turn(waiting, before, until)
    covered = lengths_in_turn(union(traced, waiting), before, until)
    between = np.maximum(until - before, 0).astype(np.float64)
    untraced = split_untraced(track, events, threads, between - covered, (before, until))
    return covered - fetching + untraced.short, fetching, untraced


def _allocating(events: EventTable, rows: NDArray[np.intp], shift: int) -> Intervals:
    """Return the times of calls that allocate from the driver or return memory to it."""
    calls = rows[any_of(events.role[rows], Role.ALLOCATION, Role.RELEASE)]
    return union(Intervals(events.start_ns[calls] + shift, events.end_ns[calls] + shift))


def _recorded_by(trace: Trace, threads: list[int], time: Index) -> NDArray[np.intp]:
    """Return intp[k]: number of events that these threads recorded from the first of the k times until each time."""
    # Operators that were merged from another recording did not slow this recording.
    operators = () if trace.operators_merged else (EventKind.OPERATOR, EventKind.PYTHON)
    end = trace.events.end_ns[trace.events.rows_on(threads, EventKind.ANNOTATION, EventKind.RUNTIME, *operators)]
    end = end[np.flatnonzero((end > time[0]) & (end <= time[-1]))]
    return np.sort(end, kind="stable").searchsorted(time, side="right")  # ascending except for nested events


def step_index(track: DeviceTrack, time: Index) -> Index:
    """Return the index of the analysed step that contains each time, from 0; times outside get the nearest step."""
    begin, _ = analysed_span(track)
    first = int(np.searchsorted(track.steps.start, begin))
    index = np.searchsorted(track.steps.start, time, side="right") - 1 - first
    return np.clip(index, 0, max(len(track.window_steps) - 1, 0)).astype(np.int64)


def _chain_threads(track: DeviceTrack, *, all_launchers: bool) -> list[int]:
    """Return the training thread and launching threads: all if `all_launchers`, else those that take turns with it.

    If the training thread recorded nothing, all launching threads are returned without it.
    """
    main = track.steps.thread
    training = track.threads.get(main)
    launchers = [int(thread) for thread in distinct(track.ops.launch_thread) if thread not in {UNKNOWN, main}]
    if training is None:
        return launchers
    if all_launchers:
        return [main, *launchers]
    busy = {thread: track.threads[thread].busy for thread in launchers if thread in track.threads}
    turns = [
        thread
        for thread, spans in busy.items()
        if length(intersect(spans, training.busy)) <= BESIDE * max(length(spans), 1)
    ]
    return [main, *turns]


def _block_kinds(  # noqa: PLR0917  # columns of the calls
    events: EventTable,
    rows: NDArray[np.intp],
    span: tuple[Index, Index],
    blocking: NDArray[np.bool_],
    held: Times,
    queued: Index,
) -> _CallKinds:
    """Return uint8[n]: the `HostBlock` of each call.

    A call waited for a full launch queue if the queue held `FULL_QUEUE_OPS` ops or more, and if the call took long for
    its name or the profiler recorded overhead ("Command Buffer Full") meanwhile.

    Args:
        events, rows: the process's events, and the rows of the calls.
        span: (int64[n] begin, int64[n] end) of the calls in ns.
        blocking: bool[n], whether the trace shows that the call blocked.
        held: float64[n], ns by which overhead delayed the call.
        queued: int64[n], number of ops in the launch queue at the call's end.
    """
    start, end = span
    role, name, duration = events.role[rows], events.name[rows], end - start
    kinds = np.where(blocking, np.where(role == Role.COPY, HostBlock.PAGEABLE, HostBlock.SYNC), HostBlock.NOT)
    full = queued >= FULL_QUEUE_OPS
    long = ~blocking & full & (duration > HELD_UP_NS)
    for ident in distinct(name[long]):
        same_call = (name == ident) & ~blocking
        kinds[same_call & long & (duration > HELD_UP_FACTOR * median(duration[same_call]))] = HostBlock.QUEUE
    kinds = _with_copies(events, rows, kinds.astype(np.uint8), start, end)
    kinds[blocking & (role == Role.COMMUNICATION)] = HostBlock.COLLECTIVE
    kinds[blocking & (role == Role.RELEASE)] = HostBlock.RELEASE
    kinds[(kinds == HostBlock.NOT) & (held > HELD_UP_NS) & full] = HostBlock.QUEUE
    return kinds


def _thinned(block: _CallKinds, time: Index) -> _CallKinds:
    """Return block kinds in which fewer calls count as delayed by a full queue (`_ONE_HELD_UP_PER_NS`).

    `time` is int64[n], the end of each call in ns, in ascending order.
    """
    thinned = block.copy()
    last = -_ONE_HELD_UP_PER_NS
    held_up = np.flatnonzero(block == HostBlock.QUEUE)
    for node, reached in zip(held_up.tolist(), time[held_up].tolist(), strict=True):
        if reached - last < _ONE_HELD_UP_PER_NS:
            thinned[node] = HostBlock.NOT
        else:
            last = reached
    return thinned


def _with_copies(
    events: EventTable, rows: NDArray[np.intp], kinds: _CallKinds, call_start: Index, time: Index
) -> _CallKinds:
    """Return the kinds, with `PAGEABLE` for waits for a copy to the device, and `SYNC` for waits for a result.

    `rows`, `call_start` and `time` are the event rows, begins and ends of the calls, in order of the ends.

    `.to(device)` makes two calls: the copy and, unless it is non_blocking, a synchronization. Such a synchronization is
    part of the copy. A blocking copy to the host counts as a synchronization, because the program needs the result.
    """
    copies = events.rows_of(EventKind.COPY)
    copies = copies[events.correlation[copies] != NO_CORRELATION]
    to_device = events.direction[copies] == Direction.HOST_TO_DEVICE
    copies_to_device = among(events.correlation[rows], events.correlation[copies[to_device]])
    copies_elsewhere = among(events.correlation[rows], events.correlation[copies[~to_device]])
    behind = np.zeros(len(rows), np.bool_)
    same_thread = events.thread[rows[1:]] == events.thread[rows[:-1]]
    behind[1:] = copies_to_device[:-1] & same_thread & (call_start[1:] - time[:-1] <= COPY_BEHIND_NS)
    kinds = np.where(behind & (kinds == HostBlock.SYNC), HostBlock.PAGEABLE, kinds)
    return np.where(copies_elsewhere & (kinds == HostBlock.PAGEABLE), HostBlock.SYNC, kinds).astype(np.uint8)


def _queue_length(tracks: list[DeviceTrack], time: Index) -> Index:
    """Return the number of ops that were launched and had not ended at each time, over all devices of the process."""
    total = np.zeros(len(time), np.int64)
    for track in tracks:
        known = track.ops.launch_start != UNKNOWN
        total += np.searchsorted(np.sort(track.ops.launch_start[known], kind="stable"), time)
        total -= np.searchsorted(np.sort(track.ops.end[known], kind="stable"), time)
    return total


def _block_targets(  # noqa: PLR0917  # columns of the calls, in the order in which they are computed
    ops: list[TrackOps],
    call_start: Index,
    time: Index,
    waited_from: Index,
    kinds: _CallKinds,
    rows: NDArray[np.intp],
    awaited: list[AwaitedOps],
) -> tuple[Index, Index, Times]:
    """Find the op that each blocking call waited for: of ops launched earlier, the last to end before the call's end.

    If the trace shows the event for which a call waited (`awaited`, for each track), the op is the last op that was
    launched before the event was recorded. The other columns are of the calls: begin, end, and the time from which the
    call may have waited (`waited_from`), each in ns, the `HostBlock`, and the event row.

    A synchronization, collective or memory release waits for its op even if the op ended before the call: a faster host
    would call earlier and wait. A blocking copy, or a launch that a full queue delayed, waits only if an op ended after
    `waited_from`.

    Returns:
        The position of the op's track, the op's index in this track, and the op's end in ns; `NONE`, `NONE` and -inf
        for a call that waited for no op.
    """
    target_track = np.full(len(time), NONE, np.int64)
    target_op = np.full(len(time), NONE, np.int64)
    latest = np.full(len(time), -np.inf)
    calls = np.flatnonzero(kinds != HostBlock.NOT)
    known = among(rows[calls], np.concatenate([track_awaited.call for track_awaited in awaited]))
    returned = time[calls] + np.where(known, CLOCK_NS, 0)  # the end of a known op may be recorded this much late
    even_if_ended = any_of(kinds[calls], HostBlock.SYNC, HostBlock.COLLECTIVE, HostBlock.RELEASE)
    for position, (track_ops, track_awaited) in enumerate(zip(ops, awaited, strict=True)):
        for at, history in enumerate(track_ops.histories):
            ended = np.searchsorted(history.end, returned, side="right") - 1
            launched = np.searchsorted(history.launch_time, call_start[calls], side="left") - 1
            if known.any():
                launched = np.where(known, _awaited_index(rows[calls], track_awaited, at), launched)
            index = np.minimum(ended, launched)
            valid = index >= 0
            ends = np.where(valid, history.end[np.maximum(index, 0)], -np.inf)
            binds = ends > waited_from[calls]
            counts = valid & (binds | even_if_ended) & (ends > latest[calls])
            chosen = calls[counts]
            latest[chosen] = ends[counts]
            target_track[chosen] = position
            target_op[chosen] = history.op[index[counts]]
    return target_track, target_op, latest


def _pending_until(ops: list[TrackOps], call_start: Index) -> Times:
    """Return float64[n], ns: the time at which all ops launched before each call had ended; -inf without such ops."""
    until = np.full(len(call_start), -np.inf)
    for track_ops in ops:
        for history in track_ops.histories:
            last = np.searchsorted(history.launch_time, call_start, side="left") - 1
            until = np.maximum(until, np.where(last >= 0, history.end[np.maximum(last, 0)], -np.inf))
    return until


def _awaited_index(rows: NDArray[np.intp], awaited: AwaitedOps, at: int) -> Index:
    """Return for each call the index of its known awaited op in history `at`, or `NONE`."""
    index = np.full(len(rows), NONE, np.int64)
    in_history = awaited.history == at
    if in_history.any():
        calls = awaited.call[in_history]  # sorted, because waits are sorted by call
        slot = np.minimum(np.searchsorted(calls, rows), len(calls) - 1)
        index = np.where(calls[slot] == rows, awaited.index[in_history][slot], NONE)
    return index


def _attach_launches(ops: list[TrackOps], call_start: Index, blocks: NDArray[np.bool_]) -> None:
    """Match ops with the nodes of their launching calls.

    The node of a call that `blocks` is the end of its wait. The call's own op starts before, so that the op is
    matched with the previous node.
    """
    order = np.argsort(call_start, kind="stable")
    starts = call_start[order]
    for track_ops in ops:
        slot = np.minimum(np.searchsorted(starts, track_ops.launch_time), len(starts) - 1)
        launched = (track_ops.launch_time != UNKNOWN) & (starts[slot] == track_ops.launch_time)
        node = np.where(blocks[order[slot]], np.maximum(order[slot] - 1, 0), order[slot])
        track_ops.launch = np.where(launched, node, NONE)
