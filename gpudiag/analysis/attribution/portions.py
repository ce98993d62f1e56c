"""Compute what each kernel, collective and copy contributes to the buckets, so that contributions add up to them.

A bucket is time, and ops overlap. Therefore each instant of a bucket is shared equally by the ops of its kind that run
at that instant:

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

from gpudiag.analysis.compute.shares import equal_shares
from gpudiag.intervals import Intervals, among, length, lengths_between, subtract, union
from gpudiag.model.analysis import Portion
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.event import EventTable
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import milliseconds

Times = NDArray[np.int64]
Key = tuple[str, str, str, int | None]

#: The largest portions kept of a bucket; no job has so many kernels, but a damaged file may.
MOST_PORTIONS = 1000


def summarise_portions(timeline: Timeline, attribution: Attribution) -> tuple[Portion, ...]:
    """Return the portions of all buckets, largest first within each bucket; tracks in the order of devices."""
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
    for key in sorted(shares, key=lambda key: (-float(shares[key].sum()), str(key))):
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
    return tuple(portion for largest in portions.values() for portion in largest[:MOST_PORTIONS])


def _portions_of(track: DeviceTrack, cut: TrackAttribution, events: EventTable) -> Iterator[tuple[Key, float, int]]:
    """Yield (key, ns over all windows, how many began in them); keys may repeat."""
    yield from _by_name("compute", OpClass.COMPUTE, track, cut, events)
    yield from _by_name("copy", OpClass.COPY, track, cut, events)
    yield from _communication(track, cut, events)
    for name, spans in (("unmarked-input", cut.unmarked_input), ("queued", cut.queued)):
        if length(spans):
            yield ("idle", name, "", None), float(lengths_between(spans, cut.bounds).sum()), 0


def _by_name(
    bucket: str, op_class: OpClass, track: DeviceTrack, cut: TrackAttribution, events: EventTable
) -> Iterator[tuple[Key, float, int]]:
    ops = np.flatnonzero(track.ops.op_class == op_class)
    start = track.ops.start[ops]
    shares = equal_shares(Intervals(start, track.ops.end[ops]), cut.parts[bucket])
    yield from _summed_by_name(bucket, events, track.ops.row[ops], shares, _begin_inside(start, cut.bounds))


def _summed_by_name(
    bucket: str, events: EventTable, rows: NDArray[np.int64], shares: NDArray[np.float64], begun: NDArray[np.bool_]
) -> Iterator[tuple[Key, float, int]]:
    names = events.name[rows]
    share_by_name = np.bincount(names, weights=shares, minlength=len(events.names))
    begun_by_name = np.bincount(names, weights=begun, minlength=len(events.names))
    # An op beside something that counts first has no share, but is counted.
    for name in np.flatnonzero((share_by_name > 0) | (begun_by_name > 0)):
        yield (bucket, events.names[name], "", None), float(share_by_name[name]), int(begun_by_name[name])


def _communication(track: DeviceTrack, cut: TrackAttribution, events: EventTable) -> Iterator[tuple[Key, float, int]]:
    table, ops = track.collectives, track.ops
    joined = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
    waits = equal_shares(Intervals(table.start, joined), cut.parts["communication_wait"])
    # Communication that is no collective (copies, calls that enqueue a collective) is listed by its op's name.
    other = np.flatnonzero((ops.op_class == OpClass.COMMUNICATION) & ~among(ops.row, table.row))
    spans = Intervals(np.append(joined, ops.start[other]), np.append(table.end, ops.end[other]))
    transfers = equal_shares(spans, cut.parts["communication_transfer"])
    begun = _begin_inside(table.start, cut.bounds)
    for index, (operation, group, _, size_bytes) in enumerate(table.kinds):
        of_kind = table.kind == index
        count = int(begun[of_kind].sum())
        transfer, wait = transfers[: len(table)][of_kind].sum(), waits[of_kind].sum()
        for bucket, share in (("communication_transfer", transfer), ("communication_wait", wait)):
            if share > 0 or count:
                yield (bucket, operation, group, size_bytes), float(share), count
    rest = subtract(cut.parts["communication_transfer"], union(spans))
    if length(rest):
        yield ("communication_transfer", "host", "", None), float(lengths_between(rest, cut.bounds).sum()), 0
    begun = _begin_inside(ops.start[other], cut.bounds)
    yield from _summed_by_name("communication_transfer", events, ops.row[other], transfers[len(table) :], begun)


def _begin_inside(start: Times, bounds: Times) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (start >= bounds[0]) & (start < bounds[-1])
    return inside
