"""The device ops of one lane's analysed steps, stream by stream, and which ops of other streams they wait for."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import AT_ONCE_NS, CLOCK_NS, QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.intervals import distinct
from gpudiag.model.event import NO_NUMBER, Trace
from gpudiag.model.timeline import UNKNOWN, DeviceTrack


class Given(msgspec.Struct, frozen=True):
    """What a stream was given in the body and, as long again, before it; columns of equal length, in order. `stream` is
    its number.

    What the first steps of the body wait for may lie before it. As the body is replayed in a circle, the op that lies
    as far before the body's end stands for it: `op` is that op's index (of ops of the body their own).
    """

    stream: int
    end: NDArray[np.float64]
    launch_time: NDArray[np.int64]
    op: NDArray[np.int64]


class TrackOps(msgspec.Struct):
    """Ops of one lane's body as columns of equal length m, each stream's together and in order; indices are in them.

    `launch_time` is the start of the launching call; `launch` (host node within the process's chain) is filled in once
    the chain is known. `before_end` is when the op before it in its stream ended (-inf for the first of a trace),
    `waited_end` when the last of those that it waits for had. `given` has what each stream was given, as `streams`.
    `order` is the op's index in the lane's `DeviceOps`.
    """

    track: int
    trace: int
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    op_class: NDArray[np.uint8]
    host_copy: NDArray[np.bool_]
    row: NDArray[np.int64]
    step: NDArray[np.int64]
    order: NDArray[np.int64]
    launch_time: NDArray[np.int64]
    launch_thread: NDArray[np.int64]
    before_end: NDArray[np.float64]
    wait_a: NDArray[np.int64]
    wait_b: NDArray[np.int64]
    waited_end: NDArray[np.float64]
    given: list[Given]
    streams: list[tuple[int, int]]
    launch: NDArray[np.int64]


def body_ops(track: DeviceTrack, index: int) -> TrackOps:
    """The ops launched in the analysed steps of a lane. `index` is the lane's index in the timeline."""
    ops = track.ops
    first_step = int(np.searchsorted(track.steps.number, track.window_steps[0]))
    last_step = int(np.searchsorted(track.steps.number, track.window_steps[-1]))
    inside = (ops.step >= first_step) & (ops.step <= last_step)
    chosen: list[NDArray[np.intp]] = []
    before: list[NDArray[np.float64]] = []
    step: list[NDArray[np.int64]] = []
    given: list[Given] = []
    streams = []
    count = 0
    for stream in distinct(ops.stream[inside]):
        mine = np.flatnonzero(ops.stream == stream)
        previous = np.concatenate([[-np.inf], ops.end[mine].astype(np.float64)[:-1]])
        # Ops run in the order of their launch; a step's ops are together in their stream. What lies between them
        # without a captured launch took its time there too.
        body = np.flatnonzero(inside[mine])
        between = ops.step[mine] == UNKNOWN
        between[: body[0]] = between[body[-1] :] = False
        kept = inside[mine] | between
        chosen.append(mine[kept])
        before.append(previous[kept])
        step.append(np.maximum.accumulate(ops.step[mine[kept]].astype(np.int64)))
        size = int(kept.sum())
        earlier = mine[max(int(body[0]) - size, 0) : body[0]]
        launches = ops.launch_start[np.concatenate([earlier, mine[kept]])]
        given.append(
            Given(
                stream=int(stream),
                end=ops.end[np.concatenate([earlier, mine[kept]])].astype(np.float64),
                launch_time=np.maximum.accumulate(launches),
                op=count + np.concatenate([np.arange(size - len(earlier), size), np.arange(size)]),
            )
        )
        streams.append((count, count + size))
        count += size
    order = np.concatenate(chosen) if chosen else np.empty(0, np.intp)
    none = np.full(count, NONE, np.int64)
    return TrackOps(
        track=index,
        trace=track.trace,
        start=ops.start[order].astype(np.float64),
        end=ops.end[order].astype(np.float64),
        op_class=ops.op_class[order],
        host_copy=np.zeros(count, np.bool_),
        row=ops.row[order],
        step=np.clip(np.concatenate(step) - first_step, 0, len(track.window_steps) - 1) if step else none.copy(),
        order=order.astype(np.int64),
        launch_time=ops.launch_start[order],
        launch_thread=ops.launch_thread[order],
        before_end=np.concatenate(before) if before else np.empty(0),
        wait_a=none.copy(),
        wait_b=none.copy(),
        waited_end=np.full(count, -np.inf),
        given=given,
        streams=streams,
        launch=none.copy(),
    )


def find_dependencies(ops: TrackOps, trace: Trace, track: DeviceTrack, wait_calls: NDArray[np.int64]) -> Awaited:
    """Fill in which ops of other streams each op waits for; returns what the host is told to have waited for.

    What the trace tells is taken, and where it tells nothing, guessed.

    Args:
        ops: the ops of the lane.
        trace: its trace.
        lane: the lane.
        wait_calls: int64, starts of the chain's stream-wait calls, sorted, on the common clock.
    """
    waits = known_waits(trace, track)
    if waits is None:
        find_waits(ops, wait_calls)
        nothing = np.empty(0, np.int64)
        return Awaited(nothing, nothing, nothing, nothing)
    awaited = awaited_by(ops, waits)
    find_known_waits(ops, waits, awaited)
    by_host = (waits.stream[awaited.wait] == UNKNOWN) & (waits.recorded[awaited.wait] != UNKNOWN)
    return Awaited(*(column[by_host] for column in msgspec.structs.astuple(awaited)))


def find_waits(ops: TrackOps, wait_calls: NDArray[np.int64]) -> None:
    """Fill in which ops of other streams each op waits for.

    The trace tells of no events, so this is inferred. A stream-wait call makes the next launch wait for what another
    stream was given before the call: the latest op launched there before it, or, as that may not be the one meant, the
    latest of those that had ended when the waiting op started. An op that started right at the end of another stream's
    op, though launched long before, is taken to have waited for it too.

    Args:
        ops: the ops of one lane.
        wait_calls: int64, starts of the host's stream-wait calls, sorted, on the common clock.
    """
    if len(ops.streams) < 2:
        return
    launched = ops.launch_time != UNKNOWN
    by_launch = np.flatnonzero(launched)[np.argsort(ops.launch_time[launched], kind="stable")]
    times = ops.launch_time[by_launch]
    # The op launched next after each wait call.
    position = np.searchsorted(times, wait_calls, side="left")
    told = by_launch[position[position < len(by_launch)]]
    called = np.full(len(ops.start), UNKNOWN, np.int64)
    called[told] = wait_calls[position < len(by_launch)]
    for a, b in ops.streams:
        for (c, _), given in zip(ops.streams, ops.given, strict=True):
            if a == c:
                continue
            mine = np.arange(a, b)
            latest_ended = np.searchsorted(given.end, ops.start[a:b], side="right") - 1
            latest_launched = np.searchsorted(given.launch_time, called[a:b], side="left") - 1
            by_call = np.where(called[a:b] != UNKNOWN, np.minimum(latest_ended, latest_launched), -1)
            safe = np.maximum(latest_ended, 0)
            just_ended = ops.start[a:b] - given.end[safe] <= AT_ONCE_NS
            stream_free = ops.before_end[a:b] <= given.end[safe] - AT_ONCE_NS
            early = (ops.launch_time[a:b] != UNKNOWN) & (ops.launch_time[a:b] < ops.start[a:b] - QUEUED_NS)
            before = given.launch_time[safe] < ops.launch_time[a:b]
            observed = (latest_ended >= 0) & just_ended & stream_free & early & before
            target = np.maximum(by_call, np.where(observed, latest_ended, -1))
            found = target >= 0
            waiting, waited = mine[found], given.op[target[found]]
            free = ops.wait_a[waiting] == NONE
            ops.wait_a[waiting[free]] = waited[free]
            ops.wait_b[waiting[~free]] = waited[~free]
            ops.waited_end[waiting] = np.maximum(ops.waited_end[waiting], given.end[target[found]])


class KnownWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace tells of the waits of one lane's streams, and of the host, for CUDA events: columns, by call.

    Attributes:
        call: int64[k], row of the call that makes a stream, or the host itself, wait.
        called: int64[k], when it was called, on the common clock.
        stream: int64[k], the stream that waits; `UNKNOWN` where the host does.
        recorded: int64[k], when the event was recorded; `UNKNOWN` where that is not told.
        recorded_stream: int64[k], where it was recorded; `UNKNOWN` where that is neither told nor can be derived.
    """

    call: NDArray[np.int64]
    called: NDArray[np.int64]
    stream: NDArray[np.int64]
    recorded: NDArray[np.int64]
    recorded_stream: NDArray[np.int64]


class Awaited(msgspec.Struct, frozen=True):
    """What known waits wait for, as columns: wait `wait[i]` waits for op `index[i]` of `LaneOps.given[given[i]]`.

    What an event recorded in a stream follows is the op launched there last and, where that stream was since made to
    wait itself, what it waits for. `call` is the row of the call that waits.
    """

    wait: NDArray[np.int64]
    call: NDArray[np.int64]
    given: NDArray[np.int64]
    index: NDArray[np.int64]


def known_waits(trace: Trace, track: DeviceTrack) -> KnownWaits | None:
    """What the trace tells of the lane's waits; None where it tells of no waits at all.

    Where a record is told without its stream, it is taken to be that of the op which the recording thread had launched
    last, but not the stream that waits: a program records where it works, or at what it has just given another stream.
    """
    told, events, ops = trace.event_waits, trace.events, track.ops
    if not len(told):
        return None
    mine = (told.device == track.device) | (told.stream == NO_NUMBER)
    call, record, stream = told.call[mine], told.record[mine], told.stream[mine]
    recorded = np.where(record == NO_NUMBER, UNKNOWN, events.start_ns[record] + track.shift_ns)
    recorded_stream = told.recorded_stream[mine].copy()
    derived = (recorded_stream == NO_NUMBER) & (record != NO_NUMBER)
    for wait in np.flatnonzero(derived).tolist():
        launched = (ops.launch_thread == events.thread[record[wait]]) & (ops.stream != stream[wait])
        launched &= (ops.launch_start < recorded[wait]) & (ops.launch_start != UNKNOWN)
        if launched.any():
            recorded_stream[wait] = ops.stream[launched][np.argmax(ops.launch_start[launched])]
    return KnownWaits(
        call=call,
        called=events.start_ns[call] + track.shift_ns,
        stream=stream,
        recorded=recorded,
        recorded_stream=recorded_stream,
    )


class _Recorded:
    """What events of a lane's streams follow, by position in `LaneOps.given` the index of an op there."""

    def __init__(self, ops: TrackOps) -> None:
        self.launches = [given.launch_time.tolist() for given in ops.given]
        self.place = {given.stream: position for position, given in enumerate(ops.given)}
        #: For each stream when it was made to wait, and for what, since its last op before that.
        self.made: dict[int, tuple[list[int], list[dict[int, int]]]] = defaultdict(lambda: ([], []))

    def before(self, time: int) -> dict[int, int]:
        """An event that follows all that was launched before a time, whichever stream it was recorded in."""
        return {position: bisect_left(times, time) - 1 for position, times in enumerate(self.launches)}

    def in_stream(self, stream: int, time: int) -> dict[int, int]:
        """An event that was recorded in a stream at a time."""
        position = self.place.get(stream, UNKNOWN)
        index = bisect_left(self.launches[position], time) - 1 if position != UNKNOWN else UNKNOWN
        last = self.launches[position][index] if index >= 0 else UNKNOWN
        called, waited = self.made[stream]
        latest = bisect_left(called, time) - 1
        follows = dict(waited[latest]) if latest >= 0 and called[latest] > last else {}
        return follows | {position: max(index, follows.get(position, UNKNOWN))} if index >= 0 else follows

    def wait(self, stream: int, called: int, follows: dict[int, int]) -> None:
        """From this call on the stream waits for an event."""
        times, waited = self.made[stream]
        standing = self.in_stream(stream, called)
        standing.pop(self.place.get(stream, UNKNOWN), None)
        times.append(called)
        waited.append(standing | {at: max(index, standing.get(at, UNKNOWN)) for at, index in follows.items()})


def awaited_by(ops: TrackOps, waits: KnownWaits) -> Awaited:
    """What each wait waits for: what its event follows where that is known, else all that was launched before.

    Without a record, "before" is before the call.
    """
    events = _Recorded(ops)
    found: list[tuple[int, int, int]] = []
    columns = (waits.called, waits.stream, waits.recorded, waits.recorded_stream)
    for wait, (called, stream, recorded, recorded_stream) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        until = called if recorded == UNKNOWN else recorded
        follows = events.before(until) if recorded_stream == UNKNOWN else events.in_stream(recorded_stream, until)
        others = {at: index for at, index in follows.items() if index >= 0 and at != events.place.get(stream)}
        if stream != UNKNOWN:
            events.wait(stream, called, others)
        found += [(wait, at, index) for at, index in others.items()]
    wait_of, given, index_of = np.array(found, np.int64).reshape(-1, 3).T
    return Awaited(wait_of, waits.call[wait_of], given, index_of)


def find_known_waits(ops: TrackOps, waits: KnownWaits, awaited: Awaited) -> None:
    """Fill in which ops of other streams each op waits for, where the trace tells which streams wait.

    What a stream is made to wait for, the op waits for that is launched into it next, by whichever thread; but for no
    op that had not ended when it began, as where the record is not told, the one meant is the latest that had. Of more
    than two ops those count that ended last.
    """
    waiting = np.full(len(awaited.wait), NONE, np.int64)
    for (a, b), given in zip(ops.streams, ops.given, strict=True):
        mine = np.flatnonzero(waits.stream[awaited.wait] == given.stream)
        next_op = np.searchsorted(given.launch_time, waits.called[awaited.wait[mine]]) - (len(given.op) - (b - a))
        inside = (next_op >= 0) & (next_op < b - a)
        waiting[mine[inside]] = a + next_op[inside]
    target = np.full(len(waiting), NONE, np.int64)
    end = np.full(len(waiting), -np.inf)
    told = waits.recorded[awaited.wait] != UNKNOWN
    for position, given in enumerate(ops.given):
        mine = np.flatnonzero((awaited.given == position) & (waiting != NONE))
        began = ops.start[waiting[mine]] + np.where(told[mine], CLOCK_NS, 0)
        index = np.minimum(awaited.index[mine], np.searchsorted(given.end, began, side="right") - 1)
        mine, index = mine[index >= 0], index[index >= 0]
        target[mine], end[mine] = given.op[index], given.end[index]
    # Of each stream the latest, then of each op the two that ended last.
    order = np.lexsort((-end, awaited.given, waiting))
    order = order[target[order] != NONE]
    order = order[_first_of_each(waiting[order], awaited.given[order])]
    order = order[np.lexsort((-end[order], waiting[order]))]
    first = _first_of_each(waiting[order])
    second = np.append(False, first[:-1]) & ~first if len(first) else first
    ops.wait_a[waiting[order[first]]] = target[order[first]]
    ops.wait_b[waiting[order[second]]] = target[order[second]]
    ops.waited_end[waiting[order[first]]] = end[order[first]]


def _first_of_each(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a row differs from the one before it."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first
