"""What each kernel, collective and copy contributes to the buckets, so that contributions add up to them.

A bucket is time; ops overlap. Each instant that counts for a bucket is therefore shared equally by the ops of its kind
that run at that instant:

    stream 7   |--- gemm ---|
    stream 8          |-- relu --|
               0      4     6    9   µs

is 9 µs of compute, of which gemm has 4 + 2/2 = 5 and relu 2/2 + 3 = 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, among, length, lengths_between, subtract, union
from gpudiag.model.analysis import Portion
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.event import EventTable
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import milliseconds

Times = NDArray[np.int64]
Key = tuple[str, str, str, int | None]

#: A bucket has at most this many portions, the largest; no job has so many kernels, but a damaged file may.
MOST_PORTIONS = 1000


def summarise_portions(timeline: Timeline, attribution: Attribution) -> tuple[Portion, ...]:
    """The portions of all buckets, largest first within each kind of op; lanes in the order of the devices."""
    tracks = len(timeline.tracks)
    shares: dict[Key, NDArray[np.float64]] = defaultdict(lambda: np.zeros(tracks))
    counts: dict[Key, float] = defaultdict(float)
    for index, (track, cut) in enumerate(zip(timeline.tracks, attribution.tracks, strict=True)):
        steps = len(cut.step_ns)
        if not steps:
            continue
        for key, share_ns, begun in _portions_of(track, cut, timeline.traces[track.trace].events):
            shares[key][index] += milliseconds(share_ns / steps)
            counts[key] += begun / steps / tracks
    portions: dict[str, list[Portion]] = defaultdict(list)
    for key in sorted(shares, key=lambda one: (-float(shares[one].sum()), str(one))):
        bucket, name, group, size_bytes = key
        portions[bucket].append(
            Portion(
                bucket=bucket,
                name=name,
                group=group,
                size_bytes=size_bytes,
                per_step=counts[key],
                device_ms=tuple(shares[key].tolist()),
            )
        )
    return tuple(portion for group in portions.values() for portion in group[:MOST_PORTIONS])


def shared_out(ops: Intervals, part: Intervals) -> NDArray[np.float64]:
    """float64[n], ns: what each of n raw intervals gets of a normal set when each instant is shared equally.

    >>> from gpudiag.intervals import as_set
    >>> ops = Intervals(np.array([0, 4]), np.array([6, 9]))
    >>> shared_out(ops, as_set([(0, 9)])).tolist(), shared_out(ops, as_set([(5, 20)])).tolist()
    ([5.0, 4.0], [0.5, 3.5])
    """
    edges = np.concatenate([ops.start, ops.end, part.start, part.end])
    order = np.argsort(edges, kind="stable")  # four columns that are in order, or nearly
    opens = np.repeat([1, -1, 0, 0], [len(ops), len(ops), len(part), len(part)])[order]
    covers = np.repeat([0, 0, 1, -1], [len(ops), len(ops), len(part), len(part)])[order]
    running, inside = np.cumsum(opens)[:-1], np.cumsum(covers)[:-1]
    piece = np.where(running > 0, inside * np.diff(edges[order]) / np.maximum(running, 1), 0.0)
    done = np.zeros(len(edges))
    done[order[1:]] = np.cumsum(piece)
    shares: NDArray[np.float64] = done[len(ops) : 2 * len(ops)] - done[: len(ops)]
    return shares


def _portions_of(track: DeviceTrack, cut: TrackAttribution, events: EventTable) -> Iterator[tuple[Key, float, int]]:
    """(key, ns over all windows, how many began in them), keys more than once."""
    yield from _by_name("compute", OpClass.COMPUTE, track, cut, events)
    yield from _by_name("copy", OpClass.COPY, track, cut, events)
    yield from _communication(track, cut, events)
    for name, part in (("unmarked-input", cut.unmarked_input), ("queued", cut.queued)):
        if length(part):
            yield ("idle", name, "", None), float(lengths_between(part, cut.bounds).sum()), 0


def _by_name(
    bucket: str, op_class: OpClass, track: DeviceTrack, cut: TrackAttribution, events: EventTable
) -> Iterator[tuple[Key, float, int]]:
    ops = track.ops
    chosen = np.flatnonzero(ops.op_class == op_class)
    names = events.name[ops.row[chosen]]
    shares = shared_out(Intervals(ops.start[chosen], ops.end[chosen]), cut.parts[bucket])
    begun = _begin_inside(ops.start[chosen], cut.bounds)
    share_of = np.bincount(names, weights=shares, minlength=len(events.names))
    begun_of = np.bincount(names, weights=begun, minlength=len(events.names))
    # What ran beside something that counts first has no share, but is counted: it is there.
    for name in np.flatnonzero((share_of > 0) | (begun_of > 0)):
        yield (bucket, events.names[name], "", None), float(share_of[name]), int(begun_of[name])


def _communication(track: DeviceTrack, cut: TrackAttribution, events: EventTable) -> Iterator[tuple[Key, float, int]]:
    table = track.collectives
    joined = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
    waits = shared_out(Intervals(table.start, joined), cut.parts["communication_wait"])
    start, end = joined, table.end
    # Ops that exchange and are no collective (copies, calls that hand a collective over) go by their own names.
    handed = np.flatnonzero((track.ops.op_class == OpClass.COMMUNICATION) & ~among(track.ops.row, table.row))
    start, end = np.append(start, track.ops.start[handed]), np.append(end, track.ops.end[handed])
    transfers = shared_out(Intervals(start, end), cut.parts["communication_transfer"])
    begun = _begin_inside(table.start, cut.bounds)
    for index, (operation, group, _, size_bytes) in enumerate(table.kinds):
        mine = table.kind == index
        count = int(begun[mine].sum())
        own = transfers[: len(table)][mine].sum(), waits[mine].sum()
        for bucket, share in zip(("communication_transfer", "communication_wait"), own, strict=True):
            if share > 0 or count:
                yield (bucket, operation, group, size_bytes), float(share), count
    inside = _begin_inside(track.ops.start[handed], cut.bounds)
    rest = subtract(cut.parts["communication_transfer"], union(Intervals(start, end)))
    if length(rest):
        yield ("communication_transfer", "host", "", None), float(lengths_between(rest, cut.bounds).sum()), 0
    names = events.name[track.ops.row[handed]]
    share_of = np.bincount(names, weights=transfers[len(table) :], minlength=len(events.names))
    begun_of = np.bincount(names, weights=inside, minlength=len(events.names))
    for name in np.flatnonzero((share_of > 0) | (begun_of > 0)):
        yield ("communication_transfer", events.names[name], "", None), float(share_of[name]), int(begun_of[name])


def _begin_inside(start: Times, bounds: Times) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (start >= bounds[0]) & (start < bounds[-1])
    return inside
