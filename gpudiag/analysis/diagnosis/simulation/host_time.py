"""Classify host time: untraced, before a step's first op, in single slow calls, or blocked by a copy.

Usually a blocking call waits for an op that ended during the call. But a call that copies from or to pageable memory
may return some microseconds before its own copy ends, and would seem to wait for nothing. The copy would count as host
work: 12 of 68 ms per step on a host that launches too slowly to keep its device busy. Therefore `blocking_copies` finds
the calls that wait for their own copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    BESIDE,
    COMPUTES_NS,
    ELSEWHERE_NS,
    EVENTS_ELSEWHERE,
    FEWEST_CALLS,
    MOST,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Times
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps
from gpudiag.intervals import EMPTY, Intervals, distinct, intersect, lengths_between, subtract, union
from gpudiag.model.event import EventKind, EventTable, Role, any_of
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, DeviceTrack, HostThread, OpClass

#: Maximum nesting depth of calls.
_DEEPEST_NESTING = 64


def analysed_span(track: DeviceTrack) -> tuple[int, int]:
    """Return (begin, end) of the analysed steps in ns, from the first mark to the mark after them, or to their end."""
    steps = track.steps
    first, last = np.searchsorted(steps.number, track.window_steps[[0, -1]]).tolist()
    return int(steps.start[first]), int(steps.start[last + 1]) if last + 1 < len(steps) else steps.end


def lengths_in_turn(spans: Intervals, begin: Index, end: Index) -> Times:
    """Return float64[n], ns: length of `spans` inside each of the consecutive intervals [begin, end)."""
    if len(spans) == 0:
        return np.zeros(len(begin))
    # Edges must ascend. If an interval overlaps the previous one, the common part counts for the previous one.
    edges = np.empty(2 * len(begin), np.int64)
    edges[0::2], edges[1::2] = begin, np.maximum(end, begin)
    return lengths_between(spans, np.maximum.accumulate(edges))[0::2].astype(np.float64)


class UntracedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Untraced time before each host node, in ns: float64[n] each.

    Attributes:
        before_first_op: time between a step's mark and its first op, in which the loop may wait for an unmarked loader.
        long: time in other stretches of `untraced_from_ns` or more, and in all garbage collection.
        short: time in all other stretches, which are Python between calls.
    """

    before_first_op: Times
    long: Times
    short: Times


def split_untraced(
    track: DeviceTrack, events: EventTable, threads: list[int], untraced: Times, between: tuple[Index, Index]
) -> UntracedTime:
    """Split untraced time by kind, in n consecutive spans of the host chain of these threads.

    `untraced` is float64[n], ns of untraced time in each span. `between` is (int64[n] begin, int64[n] end) of the
    spans, in ns on the common clock.
    """
    if not untraced.any():
        return UntracedTime(before_first_op=untraced, long=untraced, short=untraced)
    opening = np.minimum(lengths_in_turn(before_first_ops(track, events), *between), untraced)
    stretches = untraced_stretches(track, events, threads, int(between[0][0]), int(between[1][-1]))
    long = np.minimum(lengths_in_turn(stretches, *between), untraced - opening)
    return UntracedTime(before_first_op=opening, long=long, short=untraced - opening - long)


def before_first_ops(track: DeviceTrack, events: EventTable) -> Intervals:
    """Return the time between each step's mark and its first op, without marked fetching and garbage collection."""
    thread = track.threads.get(track.steps.thread)
    marked = (thread.input,) if thread is not None else ()
    return subtract(track.before_first_op, union(garbage_collection(track, events), *marked))


def untraced_stretches(track: DeviceTrack, events: EventTable, threads: list[int], begin: int, end: int) -> Intervals:
    """Return the stretches of [begin, end) in which these threads record nothing for longer than Python between calls.

    The time before a step's first op is left out; garbage collection is always included.
    """
    present = present_threads(track, threads)
    known = [spans for thread in present for spans in (thread.busy, thread.input, union(thread.blocked))]
    whole = Intervals(np.array([begin], np.int64), np.array([end], np.int64))
    spans = subtract(whole, union(*known, before_first_ops(track, events), backward_passes(track, threads)))
    long = spans.end - spans.start >= untraced_from_ns(track, events, threads)
    collecting = intersect(garbage_collection(track, events), spans)
    return union(Intervals(spans.start[long], spans.end[long]), collecting)


def untraced_time(track: DeviceTrack, events: EventTable) -> Intervals:
    """Return the untraced time of the training thread and of launching threads, without communication."""
    launching = [other for other in distinct(track.ops.launch_thread).tolist() if other in track.threads]
    stretches = untraced_stretches(track, events, list({track.steps.thread, *launching}), *analysed_span(track))
    return subtract(stretches, track.host_communication)


def backward_passes(track: DeviceTrack, threads: list[int]) -> Intervals:
    """Return the spans in which the training thread waits for another thread that launches for it.

    In PyTorch `loss.backward()` blocks until autograd's thread has launched the backward pass. The time from the first
    to the last call of autograd's thread within this wait is work, and not a pause of the training thread:

        training thread   forward ├──┤ backward() ·························· ├──┤ update
        autograd                          ├─┤  ├─┤          ├──┤ ├─┤
        backward pass                     ├──────────────────────┤

    A thread counts if it launches more than the share `BESIDE` of all compute. Threads of an executor (TensorFlow,
    XLA) do not count, because the training thread beside them launches nothing. Waiting for a collective in the
    backward pass is no work.
    """
    computes = track.ops.op_class == OpClass.COMPUTE
    launchers, counts = np.unique(track.ops.launch_thread[computes], return_counts=True)
    sharing = set(launchers[counts > BESIDE * counts.sum()].tolist()) & set(threads) & track.threads.keys()
    training = track.steps.thread
    if training not in sharing or len(sharing) == 1:
        return EMPTY
    main = track.threads[training]
    works = union(*(track.threads[thread].busy for thread in sharing if thread != training))
    works = subtract(works, union(main.busy, main.input, union(main.blocked)))
    # Calls within the same wait of the training thread belong to one backward pass.
    wait = main.busy.start.searchsorted(works.start, side="right")
    opens = np.flatnonzero(np.diff(wait, prepend=-1))
    closes = np.flatnonzero(np.diff(wait, append=-1))
    return subtract(Intervals(works.start[opens], works.end[closes]), track.host_communication)


def present_threads(track: DeviceTrack, threads: list[int]) -> list[HostThread]:
    """Return the host threads of the track among the given thread ids."""
    return [track.threads[thread] for thread in threads if thread in track.threads]


def untraced_from_ns(track: DeviceTrack, events: EventTable, threads: list[int]) -> float:
    """Return the shortest time without events, in ns, that counts as untraced time of these threads.

    On hosts with devices the time grows with the usual distance of events, because a slow host pauses longer between
    calls. It is at least `PAUSE_NS` and at most `ELSEWHERE_NS`.
    """
    if track.is_cpu:  # events of CPUs mostly compute, so their rate shows nothing
        return PAUSE_NS
    begin, end = analysed_span(track)
    analysed = slice(*events.start_ns.searchsorted([begin - track.shift_ns, end - track.shift_ns]))
    recorded = any_of(events.kind[analysed], EventKind.OPERATOR, EventKind.RUNTIME, EventKind.ANNOTATION)
    recorded &= any_of(events.thread[analysed], *threads)
    apart = np.diff(events.start_ns[analysed][np.flatnonzero(recorded)])
    apart = apart[apart < PAUSE_NS]  # without pauses
    usual = float(apart.mean()) if len(apart) else 0.0
    return min(max(PAUSE_NS, EVENTS_ELSEWHERE * usual), ELSEWHERE_NS)


def garbage_collection(track: DeviceTrack, events: EventTable) -> Intervals:
    """Return the marked times in which the process collected garbage."""
    rows = np.flatnonzero(any_of(events.role, Role.GARBAGE_COLLECTION))
    return union(Intervals(events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns))


class SlowCalls(msgspec.Struct, frozen=True):
    """Long intervals in which a thread inside a call recorded nothing; `row` has the event row of that call."""

    spans: Intervals
    row: Index


def slow_calls(track: DeviceTrack, events: EventTable, threads: list[int], begin: int, end: int) -> SlowCalls:
    """Find single calls in [begin, end) whose self time is longer than Python between calls.

    In a call that records nothing inside for so long (`untraced_from_ns`), a library chooses or compiles a kernel, or
    the operating system has taken the thread off its core. On a host with a GPU, an operator without runtime calls
    computes on the CPU, and counts if it is long or frequent.
    """
    rows = events.rows_on(threads, EventKind.OPERATOR, EventKind.RUNTIME)
    start, stop = events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns
    inside = np.flatnonzero((stop > begin) & (start < end))
    rows, start, stop = rows[inside], start[inside], stop[inside]
    edges = np.sort(np.concatenate([start, stop]), kind="stable")  # nothing is recorded between successive edges
    shortest = untraced_from_ns(track, events, threads)
    long = np.flatnonzero(np.diff(edges) >= (shortest if track.is_cpu else min(shortest, COMPUTES_NS)))
    present = present_threads(track, threads)
    blocked = union(*(thread.blocked for thread in present))
    quiet = subtract(Intervals(np.maximum(edges[long], begin), np.minimum(edges[long + 1], end)), blocked)
    around = np.full(len(quiet), NONE, np.int64)
    for stretch, upto in enumerate(start.searchsorted(quiet.start, side="right").tolist()):
        near = slice(max(0, upto - _DEEPEST_NESTING), upto)
        enclosing = rows[near][stop[near] >= quiet.end[stretch]]
        around[stretch] = enclosing[-1] if len(enclosing) else NONE
    # Long launches are excluded, because a full queue delays them; memory calls are a separate cause. Stretches outside
    # of any call are `NONE` already.
    around[any_of(events.role[around], Role.LAUNCH, Role.COPY, Role.ALLOCATION, Role.RELEASE)] = NONE
    other = union(track.host_communication, *(thread.input for thread in present))
    computing = lengths_in_turn(other, quiet.start, quiet.end) == 0  # without communication and fetching
    computing &= _computing_on_cpu(track, events, quiet, around)
    kept = (around != NONE) & (computing | (quiet.end - quiet.start >= shortest))
    return SlowCalls(Intervals(quiet.start[kept], quiet.end[kept]), around[kept])


def _computing_on_cpu(track: DeviceTrack, events: EventTable, quiet: Intervals, around: Index) -> NDArray[np.bool_]:
    """Return bool[k]: stretches in operators that call no runtime and are long, or frequent in a step.

    `around` has the row of the call around each of the k `quiet` stretches, or `NONE`.
    """
    runtime = np.concatenate([[0], np.cumsum(events.kind == EventKind.RUNTIME)])
    called = runtime[events.start_ns.searchsorted(events.end_ns[around])] - runtime[around]
    computing: NDArray[np.bool_] = (around != NONE) & (events.kind[around] == EventKind.OPERATOR) & (called == 0)
    name = events.name[around]
    frequent = np.bincount(name[computing], minlength=len(events.names)) >= FEWEST_CALLS * len(track.window_steps)
    return computing & (frequent[name] | (quiet.end - quiet.start >= PAUSE_NS))


class BlockingCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of calls, as columns of length n. A call that waits for its own copy has a begin node and a return node.

    Attributes:
        call: index of the node's call.
        begins: whether the node is a begin node.
        track, op: at a return node, the position of the track and the index of the op of the copy; else `NONE`.
        end: at a return node, the end of the copy in ns; else -inf.
    """

    call: Index
    begins: NDArray[np.bool_]
    track: Index
    op: Index
    end: Times

    @property
    def returns(self) -> NDArray[np.bool_]:
        """Return bool[n]: whether the node is a return node."""
        returns: NDArray[np.bool_] = self.track != NONE
        return returns

    def or_else(self, track: Index, op: Index, end: Times) -> tuple[Index, Index, Times]:
        """Return (track, op, end) of the op that each node waits for: the call's own copy, or else the given op."""
        returns = self.returns
        return np.where(returns, self.track, track), np.where(returns, self.op, op), np.where(returns, self.end, end)

    def move_to_begin(self, events: Index) -> Index:
        """Move the event counts of return nodes to their begin nodes, because a call works before it waits."""
        moved = np.where(self.returns, 0, events)
        moved[:-1] += np.where(self.begins[:-1], events[1:], 0)
        return moved


def blocking_copies(
    ops: Sequence[TrackOps], call_start: Index, time: Index, copying: NDArray[np.bool_]
) -> BlockingCopies:
    """Return the nodes of these calls: two for a call that waits for its own copy, else one.

    A call that returned during the first half of its copy did not wait, because the driver had staged the copy.

    Args:
        ops: the ops of the process's tracks.
        call_start, time: int64[k], begin and return of each call, in order of their returns.
        copying: bool[k], whether the call copies and blocks the host.
    """
    track, op, end = np.full(len(time), NONE), np.full(len(time), NONE), np.full(len(time), -np.inf)
    calls = np.flatnonzero(copying)
    calls = calls[np.argsort(call_start[calls], kind="stable")]
    for position, track_ops in enumerate(ops if len(calls) else ()):
        slot = np.minimum(np.searchsorted(call_start[calls], track_ops.launch_time), len(calls) - 1)
        call = calls[slot]  # the call that launched each op, if the call copies
        awaited = track_ops.host_copy & (track_ops.launch_time != UNKNOWN) & (call_start[call] == track_ops.launch_time)
        awaited &= np.minimum(track_ops.end, time[call]) - track_ops.start > MOST * (track_ops.end - track_ops.start)
        awaited &= track_ops.end > end[call]  # of the copies of a call on several tracks, the last to end counts
        copies = np.flatnonzero(awaited)
        track[call[copies]], op[call[copies]], end[call[copies]] = position, copies, track_ops.end[copies]
    two_nodes = track != NONE
    call_of_node = np.repeat(np.arange(len(time)), np.where(two_nodes, 2, 1))
    begins = two_nodes[call_of_node]  # of two nodes of a call, the first is the begin node
    begins[:-1] &= call_of_node[1:] == call_of_node[:-1]
    begins[-1:] = False
    return BlockingCopies(
        call=call_of_node,
        begins=begins,
        track=np.where(begins, NONE, track[call_of_node]),
        op=np.where(begins, NONE, op[call_of_node]),
        end=np.where(begins, -np.inf, end[call_of_node]),
    )
