"""Collect the device ops of a track's analysed steps by stream, and find the ops of other streams that they await."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import AT_ONCE_NS, CLOCK_NS, QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Times
from gpudiag.intervals import distinct
from gpudiag.model.event import NO_NUMBER, Trace
from gpudiag.model.timeline import UNKNOWN, DeviceTrack


class StreamHistory(msgspec.Struct, frozen=True):
    """The ops of a stream in the analysed steps and at most as many ops before them, as columns in order; times in ns.

    The first analysed steps may wait for ops before these steps. Because the steps are simulated in a loop, an earlier
    op is represented by the op at the same distance before the end of the analysed steps. `op` is the index of the
    representative, or of the analysed op itself.
    """

    stream: int
    end: Times
    launch_time: Index
    op: Index


@dataclass(kw_only=True, eq=False)
class TrackOps:
    """Analysed ops of one track as columns of equal length m, the ops of each stream together and in order.

    Attributes:
        track, trace: indices of the track and its trace.
        start, end, op_class, host_copy, row, step: as in `graph.DeviceNodes`.
        launch_time, launch_thread: start of the launching call in ns, and its thread; `UNKNOWN` if not recorded.
        before_end: end of the previous op of the stream in ns; -inf for the stream's first op in the trace.
        streams: (first, after last) op of each stream.
        histories: the history of each stream.
        wait_a, wait_b: ops of this track that the op waits for, or `NONE`.
        waited_end: end of the last op that the op waits for, in ns; -inf without any.
        launch: host node within the process's chain, filled in once the chain is known.
    """

    track: int
    trace: int
    start: Times
    end: Times
    op_class: NDArray[np.uint8]
    row: Index
    step: Index
    launch_time: Index
    launch_thread: Index
    before_end: Times
    streams: list[tuple[int, int]]
    histories: list[StreamHistory] = field(default_factory=list)
    host_copy: NDArray[np.bool_] = field(init=False)
    wait_a: Index = field(init=False)
    wait_b: Index = field(init=False)
    waited_end: Times = field(init=False)
    launch: Index = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no copies, waits or launches known."""
        count = len(self.start)
        self.host_copy = np.zeros(count, np.bool_)
        self.wait_a, self.wait_b, self.launch = (np.full(count, NONE, np.int64) for _ in range(3))
        self.waited_end = np.full(count, -np.inf)


def analysed_ops(track: DeviceTrack, index: int) -> TrackOps:
    """Return the ops launched in the analysed steps of a track; `index` is its index in the timeline."""
    ops = track.ops
    first_step, last_step = np.searchsorted(track.steps.number, track.window_steps[[0, -1]]).tolist()
    inside = (ops.step >= first_step) & (ops.step <= last_step)
    chosen: list[NDArray[np.intp]] = [np.empty(0, np.intp)]
    before: list[Times] = [np.empty(0)]
    step: list[Index] = [np.empty(0, np.int64)]
    histories: list[StreamHistory] = []
    streams = []
    count = 0
    for stream in distinct(ops.stream[inside]):
        on_stream = np.flatnonzero(ops.stream == stream)
        previous_end = np.concatenate([[-np.inf], ops.end[on_stream].astype(np.float64)[:-1]])
        # Ops run in launch order, so a step's ops are together in their stream. Ops between these ops are included even
        # without a recorded launch, because they take device time.
        analysed = np.flatnonzero(inside[on_stream])
        between = ops.step[on_stream] == UNKNOWN
        between[: analysed[0]] = between[analysed[-1] :] = False
        kept = inside[on_stream] | between
        stream_ops = on_stream[kept]
        chosen.append(stream_ops)
        before.append(previous_end[kept])
        step.append(np.maximum.accumulate(ops.step[stream_ops].astype(np.int64)))  # `UNKNOWN` becomes the step before
        size = len(stream_ops)
        earlier = on_stream[max(int(analysed[0]) - size, 0) : analysed[0]]
        with_earlier = np.concatenate([earlier, stream_ops])
        histories.append(
            StreamHistory(
                stream=int(stream),
                end=ops.end[with_earlier].astype(np.float64),
                launch_time=np.maximum.accumulate(ops.launch_start[with_earlier]),
                op=count + np.concatenate([np.arange(size - len(earlier), size), np.arange(size)]),
            )
        )
        streams.append((count, count + size))
        count += size
    order = np.concatenate(chosen)
    return TrackOps(
        track=index,
        trace=track.trace,
        start=ops.start[order].astype(np.float64),
        end=ops.end[order].astype(np.float64),
        op_class=ops.op_class[order],
        row=ops.row[order],
        step=np.clip(np.concatenate(step) - first_step, 0, len(track.window_steps) - 1),
        launch_time=ops.launch_start[order],
        launch_thread=ops.launch_thread[order],
        before_end=np.concatenate(before),
        histories=histories,
        streams=streams,
    )


class AwaitedOps(msgspec.Struct, frozen=True):
    """Ops that traced waits wait for: row `wait[i]` of `TracedWaits` waits for op `index[i]` of history `history[i]`.

    A CUDA event recorded in a stream follows the last op that was launched into this stream. If the stream has been
    made to wait after this launch, the event also follows the awaited ops. `history[i]` is an index into
    `TrackOps.histories`. `call` is the event row of the waiting call.
    """

    wait: Index
    call: Index
    history: Index
    index: Index


def find_dependencies(ops: TrackOps, trace: Trace, track: DeviceTrack, wait_calls: Index) -> AwaitedOps:
    """Fill in the ops of other streams that each op waits for, and return the known waits of the host.

    Waits are read from the trace if the trace has any, and inferred otherwise.

    Args:
        ops: the ops of the track.
        trace: its trace.
        track: the track.
        wait_calls: int64, starts of the chain's stream-wait calls, sorted, on the common clock.
    """
    waits = traced_waits(trace, track)
    if waits is None:
        infer_waits(ops, wait_calls)
        return AwaitedOps(*(np.empty(0, np.int64) for _ in range(4)))
    awaited = awaited_by(ops, waits)
    apply_traced_waits(ops, waits, awaited)
    infer_waits(ops, np.empty(0, np.int64), within_graphs=True)
    by_host = (waits.stream[awaited.wait] == UNKNOWN) & (waits.recorded[awaited.wait] != UNKNOWN)
    return AwaitedOps(*(column[by_host] for column in msgspec.structs.astuple(awaited)))


def infer_waits(ops: TrackOps, wait_calls: Index, *, within_graphs: bool = False) -> None:
    """Infer the ops of other streams that each op waits for, where the trace has no events.

    A stream-wait call makes the next launch wait for the latest op launched in another stream before the call. If this
    op ended after the waiting op started, the latest op that had ended by then is used instead. An op that was launched
    long before and starts right at the end of another stream's op is assumed to have waited for this op too.

    Args:
        ops: the ops of one track.
        wait_calls: int64, starts of the host's stream-wait calls, sorted, on the common clock.
        within_graphs: infer only waits between ops of the same CUDA graph launch, which have no calls of their own.
    """
    if len(ops.streams) < 2:
        return
    launched = ops.launch_time != UNKNOWN
    by_launch = np.flatnonzero(launched)[np.argsort(ops.launch_time[launched], kind="stable")]
    # The op launched next after each wait call.
    position = np.searchsorted(ops.launch_time[by_launch], wait_calls, side="left")
    followed = position < len(by_launch)
    called = np.full(len(ops.start), UNKNOWN, np.int64)
    called[by_launch[position[followed]]] = wait_calls[followed]
    for first, after in ops.streams:
        for (other_first, _), history in zip(ops.streams, ops.histories, strict=True):
            if first == other_first:
                continue
            stream = slice(first, after)
            launch_time, start = ops.launch_time[stream], ops.start[stream]
            latest_ended = np.searchsorted(history.end, start, side="right") - 1
            latest_launched = np.searchsorted(history.launch_time, called[stream], side="left") - 1
            by_call = np.where(called[stream] != UNKNOWN, np.minimum(latest_ended, latest_launched), -1)
            ended = np.maximum(latest_ended, 0)
            # Without a call, an op has waited if it was queued, its stream was free, and it started as the other ended.
            just_ended = start - history.end[ended] <= AT_ONCE_NS
            stream_free = ops.before_end[stream] <= history.end[ended] - AT_ONCE_NS
            early = (launch_time != UNKNOWN) & (launch_time < start - QUEUED_NS)
            awaited_launch = history.launch_time[ended]
            before = awaited_launch == launch_time if within_graphs else awaited_launch <= launch_time
            observed = (latest_ended >= 0) & just_ended & stream_free & early & before
            target = np.maximum(by_call, np.where(observed, latest_ended, -1))
            waits = target >= 0
            waiting, awaited = np.arange(first, after)[waits], history.op[target[waits]]
            # Of more than two awaited streams, the first and the last one count.
            unset = ops.wait_a[waiting] == NONE
            ops.wait_a[waiting[unset]] = awaited[unset]
            ops.wait_b[waiting[~unset]] = awaited[~unset]
            ops.waited_end[waiting] = np.maximum(ops.waited_end[waiting], history.end[target[waits]])


class TracedWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Traced waits of a track's streams, and of the host, for CUDA events, as columns in order of the calls.

    Attributes:
        call: int64[k], row of the call that makes a stream, or the host itself, wait.
        called: int64[k], start of the call, in ns on the common clock.
        stream: int64[k], the stream that waits; `UNKNOWN` if the host waits.
        recorded: int64[k], time of the event's record, in ns on the common clock; `UNKNOWN` if not traced.
        recorded_stream: int64[k], stream of the event's record; `UNKNOWN` if neither traced nor derivable.
    """

    call: Index
    called: Index
    stream: Index
    recorded: Index
    recorded_stream: Index


def traced_waits(trace: Trace, track: DeviceTrack) -> TracedWaits | None:
    """Return the track's waits, or None if the trace has none.

    A record without a stream is assigned to the stream, other than the waiting stream, into which the recording thread
    launched last, because a program records an event right after the work that other streams need.
    """
    waits, events, ops = trace.event_waits, trace.events, track.ops
    if not len(waits):
        return None
    on_track = (waits.device == track.device) | (waits.stream == NO_NUMBER)  # without a stream, the host waits
    call, record, stream = waits.call[on_track], waits.record[on_track], waits.stream[on_track]
    recorded = np.where(record == NO_NUMBER, UNKNOWN, events.start_ns[record] + track.shift_ns)
    recorded_stream = waits.recorded_stream[on_track].copy()
    derived = (recorded_stream == NO_NUMBER) & (record != NO_NUMBER)
    for wait in np.flatnonzero(derived).tolist():
        launched = (ops.launch_thread == events.thread[record[wait]]) & (ops.stream != stream[wait])
        launched &= (ops.launch_start < recorded[wait]) & (ops.launch_start != UNKNOWN)
        if launched.any():
            recorded_stream[wait] = ops.stream[launched][np.argmax(ops.launch_start[launched])]
    return TracedWaits(
        call=call,
        called=events.start_ns[call] + track.shift_ns,
        stream=stream,
        recorded=recorded,
        recorded_stream=recorded_stream,
    )


class _RecordedEvents:
    """Find the ops that a CUDA event follows, as position in `TrackOps.histories` → index of the op in the history."""

    def __init__(self, ops: TrackOps) -> None:
        self.launches = [history.launch_time.tolist() for history in ops.histories]
        self.position = {history.stream: position for position, history in enumerate(ops.histories)}
        #: Stream → (times of its waits in ns, ops that it waits for from each time on).
        self.waits: dict[int, tuple[list[int], list[dict[int, int]]]] = defaultdict(lambda: ([], []))

    def before(self, time: int) -> dict[int, int]:
        """Return the ops that an event recorded in an unknown stream follows: the last op launched in each stream."""
        return {position: bisect_left(times, time) - 1 for position, times in enumerate(self.launches)}

    def in_stream(self, stream: int, time: int) -> dict[int, int]:
        """Return the ops that an event recorded in `stream` at `time` follows.

        These are the last op launched in the stream before `time`, and the ops for which the stream waited since then.
        """
        position = self.position.get(stream, UNKNOWN)
        index = bisect_left(self.launches[position], time) - 1 if position != UNKNOWN else UNKNOWN
        last_launch = self.launches[position][index] if index >= 0 else UNKNOWN
        called, awaited = self.waits[stream]
        latest = bisect_left(called, time) - 1
        follows = dict(awaited[latest]) if latest >= 0 and called[latest] > last_launch else {}
        return follows | {position: max(index, follows.get(position, UNKNOWN))} if index >= 0 else follows

    def add_wait(self, stream: int, called: int, follows: dict[int, int]) -> None:
        """Let the stream wait for the ops `follows` from the time `called` on."""
        times, awaited = self.waits[stream]
        # The next op also waits for what the stream waited for before. The stream's own ops precede the next op anyway.
        pending = self.in_stream(stream, called)
        pending.pop(self.position.get(stream, UNKNOWN), None)
        times.append(called)
        awaited.append(pending | {at: max(index, pending.get(at, UNKNOWN)) for at, index in follows.items()})


def awaited_by(ops: TrackOps, waits: TracedWaits) -> AwaitedOps:
    """Return the ops that each wait waits for: the ops that the wait's event follows.

    If an event's stream is unknown, the event follows all ops launched before its record. If its record is missing too,
    the event follows all ops launched before the waiting call.
    """
    events = _RecordedEvents(ops)
    pairs: list[tuple[int, int, int]] = []
    columns = (waits.called, waits.stream, waits.recorded, waits.recorded_stream)
    for wait, (called, stream, recorded, recorded_stream) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        until = called if recorded == UNKNOWN else recorded
        follows = events.before(until) if recorded_stream == UNKNOWN else events.in_stream(recorded_stream, until)
        others = {at: index for at, index in follows.items() if index >= 0 and at != events.position.get(stream)}
        if stream != UNKNOWN:
            events.add_wait(stream, called, others)
        pairs += [(wait, at, index) for at, index in others.items()]
    wait_index, history, op_index = np.array(pairs, np.int64).reshape(-1, 3).T
    return AwaitedOps(wait_index, waits.call[wait_index], history, op_index)


def apply_traced_waits(ops: TrackOps, waits: TracedWaits, awaited: AwaitedOps) -> None:
    """Fill in the ops of other streams that each op waits for, from traced waits.

    The next op that any thread launches into the waiting stream waits. If an awaited op ended after the waiting op
    began, the latest op that had ended by then is used instead, because records may be missing. Of more than two
    awaited ops, the two that ended last count.
    """
    waiting = np.full(len(awaited.wait), NONE, np.int64)
    for (first, after), history in zip(ops.streams, ops.histories, strict=True):
        of_stream = np.flatnonzero(waits.stream[awaited.wait] == history.stream)
        size = after - first
        called = waits.called[awaited.wait[of_stream]]
        # A history begins with ops before the analysed steps, for which no wait is needed.
        next_op = np.searchsorted(history.launch_time, called) - (len(history.op) - size)
        inside = (next_op >= 0) & (next_op < size)
        waiting[of_stream[inside]] = first + next_op[inside]
    target = np.full(len(waiting), NONE, np.int64)
    end = np.full(len(waiting), -np.inf)
    is_traced = waits.recorded[awaited.wait] != UNKNOWN
    for position, history in enumerate(ops.histories):
        pair = np.flatnonzero((awaited.history == position) & (waiting != NONE))
        # The end of a traced op may be recorded `CLOCK_NS` late.
        began = ops.start[waiting[pair]] + np.where(is_traced[pair], CLOCK_NS, 0)
        index = np.minimum(awaited.index[pair], np.searchsorted(history.end, began, side="right") - 1)
        pair, index = pair[index >= 0], index[index >= 0]
        target[pair], end[pair] = history.op[index], history.end[index]
    # For each waiting op, keep the latest awaited op of each stream, and of these the two that ended last.
    order = np.lexsort((-end, awaited.history, waiting))
    order = order[target[order] != NONE]
    order = order[_first_of_each(waiting[order], awaited.history[order])]
    order = order[np.lexsort((-end[order], waiting[order]))]
    first_wait = _first_of_each(waiting[order])
    # The row after an op's first row is the op's second row, unless that row is the first of another op.
    second_wait = np.append(False, first_wait[:-1]) & ~first_wait if len(first_wait) else first_wait
    ops.wait_a[waiting[order[first_wait]]] = target[order[first_wait]]
    ops.wait_b[waiting[order[second_wait]]] = target[order[second_wait]]
    ops.waited_end[waiting[order[first_wait]]] = end[order[first_wait]]


def _first_of_each(*columns: Index) -> NDArray[np.bool_]:
    """Return bool[k]: whether each row differs from the previous row; True for the first row."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first
