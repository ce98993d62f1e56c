"""Find the host ranges in which device ops were launched, and the self times of operators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, Times, among, distinct, lengths_inside, own_lengths
from gpudiag.model.event import EventKind, EventTable, ModuleWork, Role
from gpudiag.model.timeline import UNKNOWN, DeviceTrack


def launching_operators(events: EventTable, track: DeviceTrack) -> NDArray[np.int64]:
    """Return int64[n]: the row of the innermost operator that launched each op of the track, or `UNKNOWN`."""
    return launching_rows(events, track, events.rows_of(EventKind.OPERATOR))


def launched_in_updates(events: EventTable, track: DeviceTrack) -> NDArray[np.bool_]:
    """Return bool[n]: whether each op of the track was launched within an optimizer's update.

    An optimizer's step with a closure (Lightning, L-BFGS) includes the forward and backward pass. In such a step, the
    update begins after the last module's range and after the last launch of autograd's thread.
    """
    row = launching_rows(events, track, np.flatnonzero(events.role == Role.OPTIMIZER))
    ops = track.ops
    modules = events.rows_of(EventKind.MODULE)
    launched: NDArray[np.bool_] = row != UNKNOWN
    for step in distinct(row[launched]).tolist():
        begin, end, thread = events.start_ns[step], events.end_ns[step], events.thread[step]
        inside = modules[(events.thread[modules] == thread) & (events.start_ns[modules] > begin)]
        forward = events.end_ns[inside[events.end_ns[inside] <= end]] + track.shift_ns
        elsewhere = (ops.launch_thread != thread) & (ops.launch_thread != UNKNOWN)
        elsewhere &= (ops.launch_start > begin + track.shift_ns) & (ops.launch_end < end + track.shift_ns)
        # Without a module's range or a launch of another thread, the update begins with the step.
        closure_ns = max(forward.max(initial=begin + track.shift_ns), ops.launch_end[elsewhere].max(initial=0))
        launched[(row == step) & (ops.launch_start < closure_ns)] = False
    return launched


def launching_rows(events: EventTable, track: DeviceTrack, around: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return int64[n]: for each op of the track, the innermost row of `around` at the op's launch, or `UNKNOWN`.

    `around` has rows of host ranges, sorted by start. Only ranges on the launching thread count.
    """
    ops = track.ops
    launched = np.full(len(ops), UNKNOWN, np.int64)
    if not len(around):
        return launched
    known = ops.launch_start != UNKNOWN
    for thread in distinct(ops.launch_thread[known]).tolist():
        chosen = known & (ops.launch_thread == thread)
        rows = around[events.thread[around] == thread]
        launched[chosen] = innermost_rows(events, rows, ops.launch_start[chosen] - track.shift_ns)
    return launched


def innermost_rows(events: EventTable, rows: NDArray[np.intp], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the innermost row that contains each time, or `UNKNOWN`.

    Usually the innermost row is the row that began last. For times at which that row has ended, the rows of each depth
    are searched, because rows of one depth do not overlap. The depth of a row is the number of rows that are open at
    its begin.

    Args:
        events: one process's events.
        rows: rows of one thread, by start.
        time: int64[n], ns, on the events' own clock.
    """
    innermost = np.full(len(time), UNKNOWN, np.int64)
    if not len(rows):
        return innermost
    start, end = events.start_ns[rows], events.end_ns[rows]
    last = np.searchsorted(start, time, side="right") - 1
    holds = (last >= 0) & (end[last] > time)
    innermost[holds] = rows[last[holds]]
    others = np.flatnonzero(~holds)
    left = np.sort(time[others])
    used = np.searchsorted(left, start) < np.searchsorted(left, end)  # rows that contain a time of `left`
    rows, start, end = rows[used], start[used], end[used]
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, side="right")
    for row_depth in range(int(depth.max(initial=-1)) + 1):
        at_depth = np.flatnonzero(depth == row_depth)
        if len(at_depth):
            last = np.searchsorted(start[at_depth], time[others], side="right") - 1
            holds = (last >= 0) & (end[at_depth][last] > time[others])
            innermost[others[holds]] = rows[at_depth[last[holds]]]
    return innermost


def modules_of(work: ModuleWork, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: index of the module for which each row worked, or `UNKNOWN`."""
    position = np.minimum(np.searchsorted(work.row, rows), max(len(work.row) - 1, 0))
    return np.where(work.row[position] == rows, work.module[position], UNKNOWN) if len(work.row) else rows * 0 + UNKNOWN


def equal_shares(ops: Intervals, spans: Intervals) -> NDArray[np.float64]:
    """Return float64[n], ns: each op's share of `spans` (sorted, disjoint) if ops divide each instant equally.

    >>> from gpudiag.intervals import as_set
    >>> ops = Intervals(np.array([0, 4]), np.array([6, 9]))
    >>> equal_shares(ops, as_set([(0, 9)])).tolist(), equal_shares(ops, as_set([(5, 20)])).tolist()
    ([5.0, 4.0], [0.5, 3.5])
    """
    if (ops.start[1:] >= ops.end[:-1]).all():  # ops that do not overlap share nothing
        return lengths_inside(spans, ops.start, ops.end).astype(np.float64)
    # Cut time at all begins and ends. In a piece inside `spans`, each of the running ops gets piece / running. An op's
    # share is the sum of these quotients from its begin to its end.
    edges = np.concatenate([ops.start, ops.end, spans.start, spans.end])
    order = np.argsort(edges, kind="stable")  # fast, because each of the four columns is sorted or nearly sorted
    opens = np.repeat([1, -1, 0, 0], [len(ops), len(ops), len(spans), len(spans)])[order]
    covers = np.repeat([0, 0, 1, -1], [len(ops), len(ops), len(spans), len(spans)])[order]
    running, inside = np.cumsum(opens)[:-1], np.cumsum(covers)[:-1]
    piece = np.where(running > 0, inside * np.diff(edges[order]) / np.maximum(running, 1), 0.0)
    done = np.zeros(len(edges))
    done[order[1:]] = np.cumsum(piece)
    shares: NDArray[np.float64] = done[len(ops) : 2 * len(ops)] - done[: len(ops)]
    return shares


def operator_times(track: DeviceTrack, events: EventTable) -> Iterator[tuple[NDArray[np.intp], Times]]:
    """Yield for each thread (rows, self times in ns) of its operators in the analysed host steps."""
    for thread in {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}:
        rows = events.rows_on([thread], EventKind.OPERATOR)
        start, end = events.start_ns[rows], events.end_ns[rows]
        inside = np.flatnonzero(in_analysed_steps(track, start + track.shift_ns))
        if len(inside):
            # The slice extends to the latest end of the analysed operators, so that it includes nested operators.
            nested = slice(inside[0], start.searchsorted(end[inside].max(), side="right"))
            yield rows[inside], own_lengths(start[nested], end[nested])[inside - inside[0]]


def in_analysed_steps(track: DeviceTrack, start: Times) -> NDArray[np.bool_]:
    """Return bool[n]: whether each time, on the common clock, is in an analysed host step of the track."""
    step = np.searchsorted(track.steps.start, start, side="right") - 1
    return (step >= 0) & among(track.steps.number, track.window_steps)[step]
