"""How long a kernel that ran beside a collective takes undisturbed, as its counterparts that ran beside none tell.

A collective's kernel takes processors and memory bandwidth from the kernels beside it, while it transfers as much as
while it spins for a late rank: 31.2 against 28.3 ms of compute were measured on ranks whose all-reduces spun for 40 ms,
and single matrix products of a GPT's backward pass took 103 µs beside an all-reduce that took 55 alone. When the
collective goes away, so does that.

Counterparts of a kernel are kernels of the same name that do the same work: those at the same place of the step in
other steps and on other ranks, and those of the step's other layers. Of the latter a name may stand for several sizes;
what ran before and after tells them apart, and where it does not, their times differ and they say nothing:

    layer 11   gemm 55 | bias 4 | gemm 103          no collective yet
    layer 10   gemm 98 | bias 6 | gemm 160          beside the first bucket: counterparts of gemm, bias and gemm above

A rank's own counterparts come first: another rank's clocks may be faster.

The profiler makes hosts late that would not be, and so makes their peers' collectives spin: with its cost taken out,
what kernels took longer because of that goes in proportion (30.3 to 29.3 ms for a GPT whose rank 3 the profiler made
late; 28.2 ms were measured unprofiled).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    ALIKE_CALM,
    ALIKE_DISTURBED,
    CALM_PLACES,
    DISTURBED_PLACES,
    MOST,
    MOST_SLOWED,
    TRANSFERRING,
    UNDISTURBED,
)
from gpudiag.analysis.diagnosis.simulation.graph import Graph
from gpudiag.intervals import Intervals, distinct, lengths_inside, union
from gpudiag.model.timeline import UNKNOWN, OpClass, Timeline

Times = NDArray[np.float64]
Keys = NDArray[np.int64]

#: How many kernels before and after tell which of a layer's a kernel is; at first more, then fewer.
_AROUND = (2, 1)
#: Pairs of keys are numbered by a table where it has at most so many entries a kernel: that is faster than sorting.
_FEW_PER_KERNEL = 16


class UndisturbedBaseline(msgspec.Struct, frozen=True, dict=True):
    """How long disturbed ops take undisturbed.

    Attributes:
        undisturbed_ns: float64[m], the median time of an op's undisturbed counterparts where it was disturbed itself
            and has any; NaN elsewhere.
        waiting_share: float64[m], how much of what ran beside it was a collective that waited, and not one that
            transferred: 0 to 1.
    """

    undisturbed_ns: Times
    waiting_share: Times

    def relieved(self, duration: Times) -> Times:
        """Durations without the disturbance; never longer than given."""
        op = self._disturbed
        relieved = duration.copy()
        relieved[op] = np.fmin(duration[op], self.undisturbed_ns[op])
        return relieved

    def relieved_of_waiting(self, duration: Times, share: Times | float = 1.0) -> Times:
        """Durations when this share (of each op, 0 to 1) of the waiting is gone; never longer than given.

        What the waiting and what the transferring took of an op is not known apart; each is given its share by time.
        """
        return self._relieved_of(share * self.waiting_share, duration)

    def relieved_of_transfer(self, duration: Times, share: Times | float = 1.0) -> Times:
        """The same when this share of the transferring is gone."""
        return self._relieved_of(share * (1 - self.waiting_share), duration)

    def _relieved_of(self, share: Times, duration: Times) -> Times:
        op = self._disturbed
        relieved = duration.copy()
        relieved[op] -= share[op] * (duration[op] - np.fmin(duration[op], self.undisturbed_ns[op]))
        return relieved

    @cached_property
    def _disturbed(self) -> NDArray[np.intp]:
        """The ops whose undisturbed time is known: few, those beside a collective."""
        return np.flatnonzero(~np.isnan(self.undisturbed_ns))


class _Kernels(msgspec.Struct, frozen=True):
    """The compute ops of a graph as columns: their indices, lane and name, how long each ran beside collectives and
    beside such as waited, and how much longer it took by the processors and the bandwidth that those held."""

    op: NDArray[np.intp]
    track: Keys
    name: Keys
    duration: Times
    beside: Times
    waiting: Times
    held: Times

    @property
    def calm(self) -> NDArray[np.bool_]:
        return self.beside < UNDISTURBED * np.maximum(self.duration, 1.0)


def find_baseline(graph: Graph, timeline: Timeline) -> UndisturbedBaseline:
    """Find each disturbed compute op's counterparts, the nearest kin first, and what they took."""
    count = len(graph.device.start)
    undisturbed, waiting_share = np.full(count, np.nan), np.zeros(count)
    kernels = _kernels(graph, timeline)
    calm = kernels.calm
    wanted = np.flatnonzero(~calm)
    if len(wanted) == 0:
        return UndisturbedBaseline(undisturbed, waiting_share)
    time = np.full(len(kernels.op), np.nan)
    for kin, undisturbed_of in _kin(graph, kernels):
        unknown = wanted[np.isnan(time[wanted])]
        if len(unknown) == 0:
            break
        found = undisturbed_of[kin[unknown]]
        time[unknown] = np.where(kernels.duration[unknown] <= MOST_SLOWED * found, found, np.nan)
    _as_the_known(kernels, time, wanted)
    undisturbed[kernels.op[wanted]] = time[wanted]
    waiting_share[kernels.op[wanted]] = (kernels.waiting / np.maximum(kernels.beside, 1.0))[wanted]
    return UndisturbedBaseline(undisturbed, np.clip(waiting_share, 0.0, 1.0))


def _kernels(graph: Graph, timeline: Timeline) -> _Kernels:
    device = graph.device
    compute = np.flatnonzero(device.op_class == OpClass.COMPUTE)
    beside, waiting, held = np.zeros(len(compute)), np.zeros(len(compute)), np.zeros(len(compute))
    for track_index in distinct(device.track[compute]):
        table = timeline.tracks[track_index].collectives
        mine = np.flatnonzero(device.track[compute] == track_index)
        start, end = device.start[compute[mine]].astype(np.int64), device.end[compute[mine]].astype(np.int64)
        beside[mine] = lengths_inside(union(Intervals(table.start, table.end)), start, end)
        near = np.flatnonzero(beside[mine])
        mine, start, end = mine[near], start[near], end[near]
        matched = table.last_arrival != UNKNOWN
        spinning = union(Intervals(table.start[matched], table.last_arrival[matched]))
        waiting[mine] = lengths_inside(spinning, start, end)
        shares = _processor_shares(timeline, int(track_index))
        for share in set(shares[shares > 0].tolist()):
            of_share = shares == share
            there = lengths_inside(union(Intervals(table.start[of_share], table.end[of_share])), start, end)
            spins = of_share & matched
            spun = lengths_inside(union(Intervals(table.start[spins], table.last_arrival[spins])), start, end)
            held[mine] += share * (spun + TRANSFERRING * np.maximum(there - spun, 0.0))
    return _Kernels(
        op=compute,
        track=device.track[compute],
        name=_names(graph, timeline)[compute],
        duration=(device.end - device.start)[compute],
        beside=beside,
        waiting=waiting,
        held=held,
    )


def _processor_shares(timeline: Timeline, track_index: int) -> Times:
    """Of each collective of a lane the share of the device's processors that its kernel holds; 0 where unknown."""
    track = timeline.tracks[track_index]
    told = {call.row: call.processor_share or 0.0 for call in timeline.traces[track.trace].collectives}
    return np.array([told.get(row, 0.0) for row in track.collectives.row.tolist()], np.float64)


def _names(graph: Graph, timeline: Timeline) -> Keys:
    """int64[m]: the same number for the same name, over all traces."""
    device = graph.device
    known: dict[str, int] = {}
    name = np.zeros(len(device.start), np.int64)
    for track_index in distinct(device.track):
        events = timeline.traces[timeline.tracks[track_index].trace].events
        mine = device.track == track_index
        table = np.array([known.setdefault(text, len(known)) for text in events.names], np.int64)
        name[mine] = table[events.name[device.row[mine]]]
    return name


def _kin(graph: Graph, kernels: _Kernels) -> Iterator[tuple[Keys, Times]]:
    """The surest first: keys that kernels of the same work share, and what each key's take undisturbed (NaN: unknown).

    Kernels at the same place of other steps do the same work; those of other places must be seen to.
    """
    place = _places(graph, kernels)
    by_time = np.argsort(kernels.duration)
    calm = by_time[kernels.calm[by_time]]
    disturbed = by_time[(kernels.beside > (1 - UNDISTURBED) * kernels.duration)[by_time]]
    around = _surroundings(graph, kernels)
    for of_track in (kernels.track, np.zeros_like(kernels.track)):
        same_place = _joined(of_track, place)
        yield same_place, _Groups(same_place, kernels.duration, calm).median()
        for key in around:
            kin = _joined(of_track, key)
            undisturbed = _Groups(kin, kernels.duration, calm)
            yield kin, _of_repeated_layers(undisturbed, _Groups(kin, kernels.duration, disturbed), place)


def _of_repeated_layers(calm: _Groups, disturbed: _Groups, place: Keys) -> Times:
    """What each key's kernels take undisturbed, where they are seen to do the same work at several places of a step."""
    alike = (calm.spread() <= ALIKE_CALM) & (disturbed.spread() <= ALIKE_DISTURBED)
    repeated = (calm.distinct(place) >= CALM_PLACES) | (disturbed.distinct(place) >= DISTURBED_PLACES)
    undisturbed = calm.median()
    same_work = alike & repeated & (disturbed.median() <= MOST_SLOWED * undisturbed)
    return np.where(same_work, undisturbed, np.nan)


class _Groups:
    """Times of kernels by key. What is worked out of a key without any is NaN.

    Args:
        key: int64[n], from 0.
        time: float64[n].
        chosen: intp[k], which to take, in order of their times.
    """

    def __init__(self, key: Keys, time: Times, chosen: NDArray[np.intp]) -> None:
        self._count = int(key.max(initial=-1)) + 1
        self._key, self._chosen = key[chosen], chosen
        self._time = time[chosen][_in_order(self._key)]
        sizes = np.bincount(self._key, minlength=self._count)
        self._size, self._first = sizes, np.cumsum(sizes) - sizes

    def median(self) -> Times:
        """The lower median of each key's times."""
        return self._quartile(2)

    def spread(self) -> Times:
        """The middle half of each key's times as a share of their median."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self._quartile(3) - self._quartile(1)) / self.median()

    def distinct(self, other: Keys) -> NDArray[np.int64]:
        """How many different values of `other` each key's kernels have."""
        values = int(other.max(initial=0)) + 1
        pairs = distinct(self._key * values + other[self._chosen])
        return np.bincount(pairs // values, minlength=self._count)

    def _quartile(self, which: int) -> Times:
        found = np.full(self._count, np.nan)
        some = np.flatnonzero(self._size)
        found[some] = self._time[self._first[some] + (self._size[some] - 1) * which // 4]
        return found


def _places(graph: Graph, kernels: _Kernels) -> Keys:
    """The how-manieth of its name in its step a kernel is, with the name, as one key."""
    device = graph.device
    start, step = device.start[kernels.op], device.step[kernels.op]
    key = _joined(_joined(kernels.track, step), kernels.name)
    by_start = np.argsort(start, kind="stable")
    order = by_start[_in_order(key[by_start])]
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return _joined(kernels.name, place)


def _in_order(key: Keys) -> NDArray[np.intp]:
    """Rows by key, those of one key as they were; keys from 0 that fit into 16 bits are sorted in linear time."""
    return np.argsort(key.astype(np.min_scalar_type(key.max(initial=0))), kind="stable")


def _surroundings(graph: Graph, kernels: _Kernels) -> list[Keys]:
    """For each of `_AROUND`: a kernel's name with those of so many compute ops before and after it, as one key."""
    stream = np.zeros(len(graph.device.start), np.int64)
    for index, (first, after) in enumerate(graph.streams):
        stream[first:after] = index
    stream, key = stream[kernels.op], kernels.name
    by_reach = {}
    for distance in range(1, max(_AROUND) + 1):
        for shift in (-distance, distance):
            other = np.roll(kernels.name, shift)
            there = np.roll(stream, shift) == stream
            # The ends of a body meet in `roll`; no kernel there is anyone's neighbour.
            there[:distance] &= shift < 0
            there[-distance:] &= shift > 0
            key = _joined(key, np.where(there, other, -1))
        by_reach[distance] = key
    return [by_reach[reach] for reach in _AROUND]


def _joined(a: Keys, b: Keys) -> Keys:
    """One key for each pair of keys."""
    low = b.min(initial=0)
    pairs = a * (b.max(initial=0) - low + 1) + b - low
    if pairs.max(initial=0) < _FEW_PER_KERNEL * len(pairs):
        number = np.cumsum(np.bincount(pairs) > 0) - 1
        return np.asarray(number[pairs], np.int64)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _as_the_known(kernels: _Kernels, time: Times, wanted: NDArray[np.intp]) -> None:
    """Fill in the disturbed kernels without counterparts.

    Where most have counterparts, the rest is taken to be slowed as they are. Where few have, a kernel loses the share
    of the processors that the collective holds, and more where that also transfers.
    """
    for track in distinct(kernels.track[wanted]):
        mine = wanted[kernels.track[wanted] == track]
        known = mine[~np.isnan(time[mine])]
        rest = mine[np.isnan(time[mine])]
        beside = float(kernels.beside[known].sum())
        lost = kernels.held[rest]
        if beside > 0 and beside >= MOST * kernels.beside[mine].sum():
            of_known = float(np.maximum(kernels.duration[known] - time[known], 0.0).sum())
            lost = kernels.beside[rest] * min(of_known / beside, 1.0)
        time[rest] = np.where(lost > 0, kernels.duration[rest] - np.minimum(lost, kernels.duration[rest]), np.nan)
