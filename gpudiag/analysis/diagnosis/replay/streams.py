"""The device ops of one lane's analysed steps, stream by stream, and which ops of other streams they wait for."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.replay.graph import NONE
from gpudiag.model.timeline import UNKNOWN, Lane

#: Two ops of different streams that follow each other within this time, the second launched long before, are taken to
#: be one waiting for the other.
_AT_ONCE_NS = 10_000
#: How long before its start an op must have been launched for its launch not to explain the start.
_LONG_LAUNCHED_NS = 20_000


class Given(msgspec.Struct, frozen=True):
    """What a stream was given in the body and, as long again, before it; columns of equal length, in order.

    What the first steps of the body wait for may lie before it. As the body is replayed in a circle, the op that lies
    as far before the body's end stands for it: `op` is that op's index (of ops of the body their own).
    """

    end: NDArray[np.float64]
    launch_time: NDArray[np.int64]
    op: NDArray[np.int64]


@dataclass(slots=True)
class LaneOps:
    """Ops of one lane's body as columns of equal length m, each stream's together and in order; indices are in them.

    `launch_time` is the start of the launching call; `launch` (host node within the process's chain) is filled in once
    the chain is known. `before_end` is when the op before it in its stream ended (-inf for the first of a trace),
    `waited_end` when the last of those that it waits for had. `given` has what each stream was given, as `streams`.
    `order` is the op's index in the lane's `DeviceOps`.
    """

    lane: int
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


def body_ops(lane: Lane, index: int) -> LaneOps:
    """The ops launched in the analysed steps of a lane. `index` is the lane's index in the timeline."""
    ops = lane.ops
    first_step = int(np.searchsorted(lane.steps.number, lane.window_steps[0]))
    last_step = int(np.searchsorted(lane.steps.number, lane.window_steps[-1]))
    inside = (ops.step >= first_step) & (ops.step <= last_step)
    chosen: list[NDArray[np.intp]] = []
    before: list[NDArray[np.float64]] = []
    step: list[NDArray[np.int64]] = []
    given: list[Given] = []
    streams = []
    count = 0
    for stream in np.unique(ops.stream[inside]):
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
                end=ops.end[np.concatenate([earlier, mine[kept]])].astype(np.float64),
                launch_time=np.maximum.accumulate(launches),
                op=count + np.concatenate([np.arange(size - len(earlier), size), np.arange(size)]),
            )
        )
        streams.append((count, count + size))
        count += size
    order = np.concatenate(chosen) if chosen else np.empty(0, np.intp)
    none = np.full(count, NONE, np.int64)
    return LaneOps(
        lane=index,
        trace=lane.trace,
        start=ops.start[order].astype(np.float64),
        end=ops.end[order].astype(np.float64),
        op_class=ops.op_class[order],
        host_copy=np.zeros(count, np.bool_),
        row=ops.row[order],
        step=np.clip(np.concatenate(step) - first_step, 0, len(lane.window_steps) - 1) if step else none.copy(),
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


def find_waits(ops: LaneOps, wait_calls: NDArray[np.int64]) -> None:
    """Fill in which ops of other streams each op waits for.

    The trace names no events, so this is inferred. A stream-wait call makes the next launch wait for what another
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
            just_ended = ops.start[a:b] - given.end[safe] <= _AT_ONCE_NS
            stream_free = ops.before_end[a:b] <= given.end[safe] - _AT_ONCE_NS
            early = (ops.launch_time[a:b] != UNKNOWN) & (ops.launch_time[a:b] < ops.start[a:b] - _LONG_LAUNCHED_NS)
            before = given.launch_time[safe] < ops.launch_time[a:b]
            observed = (latest_ended >= 0) & just_ended & stream_free & early & before
            target = np.maximum(by_call, np.where(observed, latest_ended, -1))
            found = target >= 0
            waiting, waited = mine[found], given.op[target[found]]
            free = ops.wait_a[waiting] == NONE
            ops.wait_a[waiting[free]] = waited[free]
            ops.wait_b[waiting[~free]] = waited[~free]
            ops.waited_end[waiting] = np.maximum(ops.waited_end[waiting], given.end[target[found]])
