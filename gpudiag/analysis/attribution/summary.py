"""Summarise the timeline and attribution per device, wait, collective, kernel and operator.

The ops of a bucket may overlap. To make their portions add up to the bucket, each instant is divided equally among the
ops that run at that instant:

    stream 7   |--- gemm ---|
    stream 8          |-- relu --|
               0      4     6    9   µs

Of these 9 µs of compute, the portion of gemm is 4 + 2/2 = 5 µs, and the portion of relu is 2/2 + 3 = 4 µs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.launchers import equal_shares, operator_times
from gpudiag.intervals import Intervals, among, length, lengths_between, median, subtract, union
from gpudiag.model.analysis import (
    BUCKETS,
    UNTRUSTED_CODES,
    CollectiveSummary,
    Device,
    KernelSummary,
    OperatorSummary,
    Portion,
    RankClock,
    Steps,
    Wait,
)
from gpudiag.model.event import EventTable
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, OpClass, Timeline, TrackAttribution
from gpudiag.units import NS_PER_MS, NS_PER_US, bus_factor, gb_per_s, milliseconds

Times = NDArray[np.int64]

#: Waits shorter than this per step are left out, because ranks never begin a collective at exactly the same time.
_LEAST_WAIT_MS = 0.001
#: Maximum number of kernels, and of operators, in the summary.
_MOST_NAMES = 20

#: Bucket, name, group and size in bytes of a portion.
Key = tuple[str, str, str, int | None]

#: Maximum number of portions per bucket. No job has so many kernels, but a damaged file may.
MOST_PORTIONS = 1000


def summarise_steps(timeline: Timeline, attribution: Attribution) -> Steps:
    """Return the mean and median step time, averaged over tracks. If there are no tracks, use the steps of hosts."""
    tracks = [track.step_ns for track in attribution.tracks] or [np.diff(bounds) for bounds in timeline.unseen.values()]
    tracks = [step_ns for step_ns in tracks if len(step_ns)]
    means = [float(step_ns.mean()) for step_ns in tracks]
    medians = [median(step_ns) for step_ns in tracks]
    return Steps(
        analysed=min((len(step_ns) for step_ns in tracks), default=0),
        mean_ms=milliseconds(float(np.mean(means))) if means else 0.0,
        median_ms=milliseconds(float(np.mean(medians))) if medians else 0.0,
    )


def summarise_devices(timeline: Timeline, attribution: Attribution) -> tuple[Device, ...]:
    """Return one record per track, with each bucket as the mean over windows."""
    return tuple(
        Device(
            rank=track.rank,
            device=track.label,
            name=track.device_name,
            step_ms=milliseconds(attributed.step_ns.mean()) if len(attributed.step_ns) else 0.0,
            buckets_ms={
                bucket: milliseconds(attributed.buckets_ns[:, column].mean()) if len(attributed.buckets_ns) else 0.0
                for column, bucket in enumerate(BUCKETS)
            },
            hidden_communication_ms=milliseconds(attributed.hidden_ns.mean()) if len(attributed.hidden_ns) else 0.0,
            step_times_ms=tuple(milliseconds(step) for step in attributed.step_ns.tolist()),
        )
        for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True)
    )


def summarise_waits(timeline: Timeline, attribution: Attribution) -> tuple[Wait, ...]:
    """Return the waits per step between pairs of ranks, longest first; empty if the traces cannot be trusted."""
    if UNTRUSTED_CODES & {validity.code for validity in timeline.validity}:
        return ()
    waits = []
    whole_collectives = timeline.whole_collectives(timeline.tracks)
    for track, attributed, whole in zip(timeline.tracks, attribution.tracks, whole_collectives, strict=True):
        # Participants without a trace may have arrived later than the last known participant.
        incomplete = set(track.collectives.last_rank[~whole].tolist())
        waits += [
            Wait(rank=track.rank, on_rank=on_rank, ms_per_step=milliseconds(float(share.mean())))
            for on_rank, share in attributed.waits_ns.items()
            if on_rank not in incomplete
        ]
    return tuple(
        sorted(
            (wait for wait in waits if wait.ms_per_step >= _LEAST_WAIT_MS),
            key=lambda wait: (-wait.ms_per_step, wait.rank, wait.on_rank),
        )
    )


def summarise_clocks(timeline: Timeline) -> tuple[RankClock, ...]:
    """Return the alignment of each rank's clock, in order of ranks."""
    return tuple(
        RankClock(
            rank=clock.rank,
            offset_ms=clock.offset_ns / NS_PER_MS,
            residual_ms=milliseconds(clock.residual_ns),
            matched=clock.matched,
        )
        for clock in sorted(timeline.clocks, key=lambda clock: clock.rank)
    )


def summarise_collectives(timeline: Timeline) -> tuple[CollectiveSummary, ...]:
    """Return the collectives in the analysed windows by kind, most time first; empty if traces are of several runs."""
    if any(validity.code == "mixed-runs" for validity in timeline.validity):
        return ()
    # Operation, group, its number of ranks, and size in bytes → (transfers, waits) of each track in ns.
    times: dict[tuple[str, str, int, int | None], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    steps = 0
    for track in timeline.tracks:
        steps += len(track.window_steps)
        table = track.collectives
        inside = (table.start >= track.bounds[0]) & (table.start < track.bounds[-1])
        arrival = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
        for index, kind in enumerate(table.kinds):
            of_kind = inside & (table.kind == index)
            if of_kind.any():
                times[kind].append((table.end[of_kind] - arrival[of_kind], arrival[of_kind] - table.start[of_kind]))
    summaries = []
    for (operation, group, group_size, size), by_track in times.items():
        transfer, wait = (np.concatenate(columns) for columns in zip(*by_track, strict=True))
        ranks = group_size or timeline.world_size  # an unknown group counts as all ranks
        transfer_ns = median(transfer)
        factor = bus_factor(operation, ranks)
        busbw = gb_per_s(size, transfer_ns) * factor if size and factor and transfer_ns > 0 else None
        summaries.append(
            CollectiveSummary(
                operation=operation,
                group=group,
                ranks=ranks,
                size_bytes=size,
                per_step=len(transfer) / steps,
                transfer_us=transfer_ns / NS_PER_US,
                wait_us=median(wait) / NS_PER_US,
                busbw_gb_per_s=busbw,
            )
        )
    return tuple(sorted(summaries, key=lambda kind: -kind.per_step * (kind.transfer_us + kind.wait_us)))


def summarise_kernels(timeline: Timeline) -> tuple[KernelSummary, ...]:
    """Return the kernels (on CPU tracks: top-level operators) with the most time per step, averaged over tracks.

    Overlapping kernels count in full.
    """
    return tuple(
        KernelSummary(name=name, ms_per_step=milliseconds(ns), per_step=count)
        for name, ns, count in _longest(timeline, _kernels)
    )


def _kernels(track: DeviceTrack, _: EventTable) -> Iterator[tuple[Times, Times]]:
    """Yield (rows, durations in ns) of the compute ops in the analysed windows."""
    ops = track.ops
    inside = (ops.op_class == OpClass.COMPUTE) & (ops.start >= track.bounds[0]) & (ops.start < track.bounds[-1])
    yield ops.row[inside], (ops.end - ops.start)[inside]


def summarise_operators(timeline: Timeline) -> tuple[OperatorSummary, ...]:
    """Return the operators with the most self time per analysed host step, averaged over tracks."""
    return tuple(
        OperatorSummary(name=name, own_ms_per_step=milliseconds(ns), per_step=count)
        for name, ns, count in _longest(timeline, operator_times)
    )


def _longest(
    timeline: Timeline, work_of: Callable[[DeviceTrack, EventTable], Iterable[tuple[NDArray[np.integer], Times]]]
) -> list[tuple[str, float, float]]:
    """Return (name, ns, calls) per step of the names with most time. `work_of` yields (rows, ns) for a track."""
    time_ns: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for track in timeline.tracks:
        events = timeline.traces[track.trace].events
        divisor = len(timeline.tracks) * len(track.window_steps)
        for rows, duration in work_of(track, events):
            total_ns = np.bincount(events.name[rows], weights=duration)
            count = np.bincount(events.name[rows])
            for index in np.flatnonzero(count).tolist():
                time_ns[events.names[index]] += float(total_ns[index]) / divisor
                calls[events.names[index]] += int(count[index]) / divisor
    longest = sorted(time_ns.items(), key=lambda item: (-item[1], item[0]))[:_MOST_NAMES]
    return [(name, ns, calls[name]) for name, ns in longest]


def summarise_portions(timeline: Timeline, attribution: Attribution) -> tuple[Portion, ...]:
    """Return the portions of all buckets in ms per step of each track, largest first within each bucket."""
    tracks = len(timeline.tracks)
    shares: dict[Key, NDArray[np.float64]] = defaultdict(lambda: np.zeros(tracks))
    counts: dict[Key, float] = defaultdict(float)
    for index, (track, attributed) in enumerate(zip(timeline.tracks, attribution.tracks, strict=True)):
        steps = len(attributed.step_ns)
        if not steps:
            continue
        for key, share_ns, begun in _portions_of(track, attributed, timeline.traces[track.trace].events):
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


def _portions_of(
    track: DeviceTrack, attributed: TrackAttribution, events: EventTable
) -> Iterator[tuple[Key, float, int]]:
    """Yield (key, ns over all windows, number of ops that began in the windows). Keys may repeat."""
    yield from _op_portions("compute", OpClass.COMPUTE, track, attributed, events)
    yield from _op_portions("copy", OpClass.COPY, track, attributed, events)
    yield from _communication_portions(track, attributed, events)
    for name, spans in (("unmarked-input", attributed.unmarked_input), ("queued", attributed.queued)):
        if length(spans):
            yield ("idle", name, "", None), float(lengths_between(spans, attributed.bounds).sum()), 0


def _op_portions(
    bucket: str, op_class: OpClass, track: DeviceTrack, attributed: TrackAttribution, events: EventTable
) -> Iterator[tuple[Key, float, int]]:
    """Yield the portions of a bucket, one per name of the ops of class `op_class`."""
    ops = np.flatnonzero(track.ops.op_class == op_class)
    start = track.ops.start[ops]
    shares = equal_shares(Intervals(start, track.ops.end[ops]), attributed.parts[bucket])
    yield from _summed_by_name(bucket, events, track.ops.row[ops], shares, _begin_inside(start, attributed.bounds))


def _summed_by_name(
    bucket: str, events: EventTable, rows: NDArray[np.int64], shares: NDArray[np.float64], begun: NDArray[np.bool_]
) -> Iterator[tuple[Key, float, int]]:
    """Yield one portion per op name. `rows`, `shares` (ns) and `begun` have one element per op."""
    names = events.name[rows]
    share_by_name = np.bincount(names, weights=shares, minlength=len(events.names))
    begun_by_name = np.bincount(names, weights=begun, minlength=len(events.names))
    # An op whose time is all in other buckets has no share, but is counted.
    for name in np.flatnonzero((share_by_name > 0) | (begun_by_name > 0)):
        yield (bucket, events.names[name], "", None), float(share_by_name[name]), int(begun_by_name[name])


def _communication_portions(
    track: DeviceTrack, attributed: TrackAttribution, events: EventTable
) -> Iterator[tuple[Key, float, int]]:
    """Yield the portions of waits and transfers: per kind of collective, per name of other ops, and for the host.

    An unknown last arrival counts as the start, so that the collective has no wait.
    """
    table, ops = track.collectives, track.ops
    transfer_start = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
    waits = equal_shares(Intervals(table.start, transfer_start), attributed.parts["communication_wait"])
    # Communication other than collectives: copies, and calls that enqueue a collective.
    other = np.flatnonzero((ops.op_class == OpClass.COMMUNICATION) & ~among(ops.row, table.row))
    spans = Intervals(np.append(transfer_start, ops.start[other]), np.append(table.end, ops.end[other]))
    transfers = equal_shares(spans, attributed.parts["communication_transfer"])
    begun = _begin_inside(table.start, attributed.bounds)
    for index, (operation, group, _, size_bytes) in enumerate(table.kinds):
        of_kind = table.kind == index
        count = int(begun[of_kind].sum())
        # `transfers` has the collectives first, then the other communication.
        transfer, wait = transfers[: len(table)][of_kind].sum(), waits[of_kind].sum()
        for bucket, share in (("communication_transfer", transfer), ("communication_wait", wait)):
            if share > 0 or count:
                yield (bucket, operation, group, size_bytes), float(share), count
    on_host = subtract(attributed.parts["communication_transfer"], union(spans))
    if length(on_host):
        yield ("communication_transfer", "host", "", None), float(lengths_between(on_host, attributed.bounds).sum()), 0
    begun = _begin_inside(ops.start[other], attributed.bounds)
    yield from _summed_by_name("communication_transfer", events, ops.row[other], transfers[len(table) :], begun)


def _begin_inside(start: Times, bounds: Times) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (start >= bounds[0]) & (start < bounds[-1])
    return inside
