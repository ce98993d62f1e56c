"""Estimate the contention-free durations of kernels beside collectives from matching kernels.

A collective's kernel slows the kernels beside it, because it occupies processors (SMs) and memory bandwidth, both while
it transfers and while it spins for a straggler. For example, ranks whose all-reduces spun for 40 ms computed for 31.2
instead of 28.3 ms, and matrix products of a GPT's backward pass took 103 µs beside an all-reduce and 55 µs alone. This
slowdown is called contention. A scenario that removes a collective removes the contention too.

Kernels match if they have the same name and do the same work. Matching kernels are at the same position of other steps
and on other ranks, and in other layers of the same step. Kernels of one name may have several sizes, which the names of
the kernels before and after usually distinguish. If these names do not distinguish the sizes, the durations of matching
kernels scatter and are not used. Example, with durations in µs:

    layer 11   gemm 55 | bias 4 | gemm 103          no collective yet
    layer 10   gemm 98 | bias 6 | gemm 160          beside an all-reduce: these match gemm, bias and gemm above

Matches on the same rank are preferred, because another rank's clocks may be faster.

The profiler delays hosts, so that the collectives of other ranks spin longer. If the profiler overhead is removed from
a simulation, collectives spin less, and their contention is reduced in proportion. Example: in a GPT whose rank 3 the
profiler delayed, simulated compute shrinks from 30.3 to 29.3 ms. In unprofiled steps, compute took 28.2 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    ALIKE_CONTENTION_FREE,
    ALIKE_DISTURBED,
    CONTENDED_POSITIONS,
    CONTENTION_FREE,
    CONTENTION_FREE_POSITIONS,
    MOST,
    MOST_SLOWED,
    TRANSFERRING,
)
from gpudiag.analysis.diagnosis.simulation.graph import Graph, Index, Times
from gpudiag.intervals import Intervals, distinct, lengths_inside, union
from gpudiag.model.timeline import UNKNOWN, OpClass, Timeline, TrackCollectives

#: Number of kernels before and after a kernel that identify it in a layer; the larger number is tried first.
_NEIGHBOURS = (2, 1)
#: Pairs of keys are numbered with a lookup table if it needs fewer entries per kernel than this, else by sorting.
_TABLE_ENTRIES_PER_KERNEL = 16


class Contention(msgspec.Struct, frozen=True, dict=True):
    """Estimated durations of a graph's m ops without the contention of the collectives that ran beside them.

    Attributes:
        free_ns: float64[m], from matches or else estimated; NaN for ops without contention, and if unknown.
        waiting_share: float64[m], 0 to 1: share of the time beside collectives in which the collectives waited.
    """

    free_ns: Times
    waiting_share: Times

    def removed_from(self, duration: Times) -> Times:
        """Return float64[m], ns: the durations without contention, never longer than `duration`."""
        op = self._slowed
        shorter = duration.copy()
        shorter[op] = np.fmin(duration[op], self.free_ns[op])
        return shorter

    def waiting_removed_from(self, duration: Times, share: Times | float = 1.0) -> Times:
        """Return durations without the `share` (0 to 1, for each op) of the contention that waiting collectives cause.

        Only the sum of the contention during waiting and during transferring is known. This sum is divided in
        proportion to time.
        """
        return self._share_removed_from(duration, share * self.waiting_share)

    def transfer_removed_from(self, duration: Times, share: Times | float = 1.0) -> Times:
        """Return durations without the `share` (0 to 1, for each op) of the contention that transfers cause."""
        return self._share_removed_from(duration, share * (1 - self.waiting_share))

    def _share_removed_from(self, duration: Times, share: Times) -> Times:
        op = self._slowed
        shorter = duration.copy()
        shorter[op] -= share[op] * (duration[op] - np.fmin(duration[op], self.free_ns[op]))
        return shorter

    @cached_property
    def _slowed(self) -> NDArray[np.intp]:
        """Return the indices of the ops whose contention-free duration is known."""
        return np.flatnonzero(~np.isnan(self.free_ns))


class _Kernels(msgspec.Struct, frozen=True):
    """The k compute ops of a graph as columns, durations in ns.

    Attributes:
        op, track, name: the op's index in the graph, its track, and a number for its name.
        duration: float64[k], as recorded.
        beside, waiting: float64[k], time beside collectives, and beside waiting collectives.
        held: float64[k], estimated time lost because collectives occupied processors and bandwidth.
    """

    op: NDArray[np.intp]
    track: Index
    name: Index
    duration: Times
    beside: Times
    waiting: Times
    held: Times

    @property
    def free(self) -> NDArray[np.bool_]:
        """Return bool[k]: kernels without contention."""
        return self.beside < CONTENTION_FREE * np.maximum(self.duration, 1.0)


def find_contention(graph: Graph, timeline: Timeline) -> Contention:
    """Estimate slowed compute ops' contention-free durations: by the surest match, else by `_estimate_unmatched`."""
    count = len(graph.device.start)
    free_ns, waiting_share = np.full(count, np.nan), np.zeros(count)
    kernels = _kernels(graph, timeline)
    slowed = np.flatnonzero(~kernels.free)
    if len(slowed) == 0:
        return Contention(free_ns, waiting_share)
    time = np.full(len(kernels.op), np.nan)
    for key, free_of_key in _matches(graph, kernels):
        unknown = slowed[np.isnan(time[slowed])]
        if len(unknown) == 0:
            break
        free = free_of_key[key[unknown]]
        # A kernel that takes many times as long as its match does other work.
        time[unknown] = np.where(kernels.duration[unknown] <= MOST_SLOWED * free, free, np.nan)
    _estimate_unmatched(kernels, time, slowed)
    free_ns[kernels.op[slowed]] = time[slowed]
    waiting_share[kernels.op[slowed]] = (kernels.waiting / np.maximum(kernels.beside, 1.0))[slowed]
    return Contention(free_ns, np.clip(waiting_share, 0.0, 1.0))


def _kernels(graph: Graph, timeline: Timeline) -> _Kernels:
    """Return the compute ops of a graph, with the time for which each ran beside collectives."""
    device = graph.device
    compute = np.flatnonzero(device.op_class == OpClass.COMPUTE)
    beside, waiting, held = np.zeros(len(compute)), np.zeros(len(compute)), np.zeros(len(compute))
    for track_index in distinct(device.track[compute]):
        table = timeline.tracks[track_index].collectives
        kernel = np.flatnonzero(device.track[compute] == track_index)
        start, end = device.start[compute[kernel]].astype(np.int64), device.end[compute[kernel]].astype(np.int64)
        beside[kernel] = lengths_inside(union(Intervals(table.start, table.end)), start, end)
        near = np.flatnonzero(beside[kernel])  # kernels without a collective beside them lose nothing
        kernel, start, end = kernel[near], start[near], end[near]
        matched = table.last_arrival != UNKNOWN
        waiting[kernel] = _spinning_ns(table, matched, start, end)
        shares = _processor_shares(timeline, int(track_index))
        for share in set(shares[shares > 0].tolist()):
            of_share = shares == share
            running = lengths_inside(union(Intervals(table.start[of_share], table.end[of_share])), start, end)
            spun = _spinning_ns(table, of_share & matched, start, end)
            held[kernel] += share * (spun + TRANSFERRING * np.maximum(running - spun, 0.0))
    return _Kernels(
        op=compute,
        track=device.track[compute],
        name=_names(graph, timeline)[compute],
        duration=(device.end - device.start)[compute],
        beside=beside,
        waiting=waiting,
        held=held,
    )


def _spinning_ns(table: TrackCollectives, chosen: NDArray[np.bool_], start: Index, end: Index) -> NDArray[np.int64]:
    """Return int64[k], ns for which the chosen collectives spun for a peer inside each [start, end)."""
    return lengths_inside(union(Intervals(table.start[chosen], table.last_arrival[chosen])), start, end)


def _processor_shares(timeline: Timeline, track_index: int) -> Times:
    """Return float64[collectives of the track]: share of the GPU's processors that each occupies; 0 if unknown."""
    track = timeline.tracks[track_index]
    known = {call.row: call.processor_share or 0.0 for call in timeline.traces[track.trace].collectives}
    return np.array([known.get(row, 0.0) for row in track.collectives.row.tolist()], np.float64)


def _names(graph: Graph, timeline: Timeline) -> Index:
    """Return int64[m]: a number for each op's name, the same in all traces."""
    device = graph.device
    known: dict[str, int] = {}
    name = np.zeros(len(device.start), np.int64)
    for track_index in distinct(device.track):
        events = timeline.traces[timeline.tracks[track_index].trace].events
        on_track = device.track == track_index
        table = np.array([known.setdefault(text, len(known)) for text in events.names], np.int64)
        name[on_track] = table[events.name[device.row[on_track]]]
    return name


def _matches(graph: Graph, kernels: _Kernels) -> Iterator[tuple[Index, Times]]:
    """Yield (int64[k] key of each kernel, float64[keys] contention-free duration, or NaN), the surest keys first.

    Kernels with equal keys match. Kernels at the same position of other steps do the same work. For kernels at other
    positions, `_of_repeated_layers` checks this by their durations.
    """
    position = _positions(graph, kernels)
    by_time = np.argsort(kernels.duration)
    free = by_time[kernels.free[by_time]]
    # Kernels that were beside collectives nearly all the time, so that their durations can be compared.
    slowed = by_time[(kernels.beside > (1 - CONTENTION_FREE) * kernels.duration)[by_time]]
    neighbourhoods = _neighbourhoods(graph, kernels)
    for track in (kernels.track, np.zeros_like(kernels.track)):  # on the same track, then on any track
        same_position = _joined(track, position)
        yield same_position, _DurationsByKey(same_position, kernels.duration, free).median()
        for neighbourhood in neighbourhoods:
            key = _joined(track, neighbourhood)
            free_durations = _DurationsByKey(key, kernels.duration, free)
            yield key, _of_repeated_layers(free_durations, _DurationsByKey(key, kernels.duration, slowed), position)


def _of_repeated_layers(free: _DurationsByKey, slowed: _DurationsByKey, position: Index) -> Times:
    """Return float64[keys], ns: contention-free duration of kernels that do the same work at several positions.

    The result is NaN for a key whose durations scatter, or whose kernels are at few positions (`position`, int64[k]).
    """
    alike = (free.spread() <= ALIKE_CONTENTION_FREE) & (slowed.spread() <= ALIKE_DISTURBED)
    repeated = (free.distinct(position) >= CONTENTION_FREE_POSITIONS) | (
        slowed.distinct(position) >= CONTENDED_POSITIONS
    )
    median = free.median()
    return np.where(alike & repeated & (slowed.median() <= MOST_SLOWED * median), median, np.nan)


class _DurationsByKey:
    """Durations of kernels grouped by key; figures of a key without kernels are NaN.

    Args:
        key: int64[n], key of each kernel, counted from 0.
        duration: float64[n], ns.
        chosen: intp[k], the kernels to use, in order of their durations.
    """

    def __init__(self, key: Index, duration: Times, chosen: NDArray[np.intp]) -> None:
        self._count = int(key.max(initial=-1)) + 1
        self._key, self._chosen = key[chosen], chosen
        self._duration = duration[chosen][_order_by_key(self._key)]
        self._size = np.bincount(self._key, minlength=self._count)
        self._first = np.cumsum(self._size) - self._size

    def median(self) -> Times:
        """Return the lower median of each key."""
        return self._quartile(2)

    def spread(self) -> Times:
        """Return the interquartile range of each key as a share of its median."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self._quartile(3) - self._quartile(1)) / self.median()

    def distinct(self, other: Index) -> NDArray[np.int64]:
        """Return the number of different values of `other` among the kernels of each key."""
        values = int(other.max(initial=0)) + 1
        pairs = distinct(self._key * values + other[self._chosen])
        return np.bincount(pairs // values, minlength=self._count)

    def _quartile(self, number: int) -> Times:
        quartile = np.full(self._count, np.nan)
        used = np.flatnonzero(self._size)
        quartile[used] = self._duration[self._first[used] + (self._size[used] - 1) * number // 4]
        return quartile


def _positions(graph: Graph, kernels: _Kernels) -> Index:
    """Return int64[k]: a key for each kernel's name and its ordinal among the kernels of this name in its step."""
    device = graph.device
    start, step = device.start[kernels.op], device.step[kernels.op]
    key = _joined(_joined(kernels.track, step), kernels.name)
    by_start = np.argsort(start, kind="stable")
    order = by_start[_order_by_key(key[by_start])]
    # Number the kernels of each key in order of their starts.
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return _joined(kernels.name, ordinal)


def _order_by_key(key: Index) -> NDArray[np.intp]:
    """Return the indices that sort stably by key; NumPy sorts keys from 0 that fit into 16 bits in linear time."""
    return np.argsort(key.astype(np.min_scalar_type(key.max(initial=0))), kind="stable")


def _neighbourhoods(graph: Graph, kernels: _Kernels) -> list[Index]:
    """Return for each n of `_NEIGHBOURS` int64[k]: a key for the names of a kernel and of n kernels on either side."""
    stream = np.zeros(len(graph.device.start), np.int64)
    for index, (first, after) in enumerate(graph.streams):
        stream[first:after] = index
    stream, key = stream[kernels.op], kernels.name
    by_distance = {}
    for distance in range(1, max(_NEIGHBOURS) + 1):
        for shift in (-distance, distance):
            same_stream = np.roll(stream, shift) == stream
            # `roll` joins both ends of the column, although the kernels there are not neighbours.
            same_stream[:distance] &= shift < 0
            same_stream[-distance:] &= shift > 0
            key = _joined(key, np.where(same_stream, np.roll(kernels.name, shift), -1))
        by_distance[distance] = key
    return [by_distance[distance] for distance in _NEIGHBOURS]


def _joined(a: Index, b: Index) -> Index:
    """Return int64[k]: one key, counted from 0, for each different pair (a[i], b[i]); only `b` may be negative."""
    low = b.min(initial=0)
    pairs = a * (b.max(initial=0) - low + 1) + b - low
    if pairs.max(initial=0) < _TABLE_ENTRIES_PER_KERNEL * len(pairs):
        number = np.cumsum(np.bincount(pairs) > 0) - 1
        return np.asarray(number[pairs], np.int64)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _estimate_unmatched(kernels: _Kernels, time: Times, slowed: NDArray[np.intp]) -> None:
    """Fill in `time`, float64[k] in ns: the contention-free duration of slowed kernels without a match.

    `slowed` has the indices of all slowed kernels; `time` is NaN for those without a match, and stays NaN if unknown.
    If the kernels with a match have most of a track's time beside collectives, each kernel without a match loses the
    same share of its time beside collectives. Otherwise a kernel loses the share of the processors that the collective
    occupies, and more while the collective transfers (`_Kernels.held`).
    """
    for track in distinct(kernels.track[slowed]):
        on_track = slowed[kernels.track[slowed] == track]
        known, unknown = on_track[~np.isnan(time[on_track])], on_track[np.isnan(time[on_track])]
        beside = float(kernels.beside[known].sum())
        lost = kernels.held[unknown]
        if beside > 0 and beside >= MOST * kernels.beside[on_track].sum():
            lost_by_known = float(np.maximum(kernels.duration[known] - time[known], 0.0).sum())
            lost = kernels.beside[unknown] * min(lost_by_known / beside, 1.0)
        shorter = kernels.duration[unknown] - np.minimum(lost, kernels.duration[unknown])
        time[unknown] = np.where(lost > 0, shorter, np.nan)
