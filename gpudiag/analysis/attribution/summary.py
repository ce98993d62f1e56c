"""Summarise the timeline and attribution per device, wait, collective, kernel and operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import among, distinct, median, own_lengths
from gpudiag.model.analysis import (
    BUCKETS,
    UNTRUSTED_CODES,
    CollectiveSummary,
    Device,
    KernelSummary,
    OperatorSummary,
    RankClock,
    Steps,
    Wait,
)
from gpudiag.model.attribution import Attribution
from gpudiag.model.event import EventKind
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import NS_PER_MS, NS_PER_US, bus_factor, gb_per_s, milliseconds

Times = NDArray[np.int64]

#: Shortest wait per step in the summary; shorter ones are normal differences in the begins of collectives.
_LEAST_WAIT_MS = 0.001


def summarise_steps(timeline: Timeline, attribution: Attribution) -> Steps:
    """Return the means over tracks of the mean and the median step time; over hosts without any track."""
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
    for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True):
        # A participant without a trace may have arrived later.
        incomplete = set(track.collectives.last_rank[~timeline.whole_collectives(track)].tolist())
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
    """Return the collectives in the analysed windows by operation, group and size, most time first.

    The result is empty if the traces are of different runs.
    """
    if any(validity.code == "mixed-runs" for validity in timeline.validity):
        return ()
    rows: dict[tuple[str, str, int, int | None], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    steps = 0
    for track in timeline.tracks:
        steps += len(track.window_steps)
        table = track.collectives
        inside = (table.start >= track.bounds[0]) & (table.start < track.bounds[-1])
        arrival = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
        for index, kind in enumerate(table.kinds):
            chosen = inside & (table.kind == index)
            if chosen.any():
                rows[kind].append((table.end[chosen] - arrival[chosen], arrival[chosen] - table.start[chosen]))
    summaries = []
    for (operation, group, group_size, size), by_track in rows.items():
        transfer, wait = (np.concatenate(columns) for columns in zip(*by_track, strict=True))
        ranks = group_size or timeline.world_size
        typical = median(transfer)
        factor = bus_factor(operation, ranks)
        busbw = gb_per_s(size, typical) * factor if size and factor and typical > 0 else None
        summaries.append(
            CollectiveSummary(
                operation=operation,
                group=group,
                ranks=ranks,
                size_bytes=size,
                per_step=len(transfer) / steps,
                transfer_us=typical / NS_PER_US,
                wait_us=median(wait) / NS_PER_US,
                busbw_gb_per_s=busbw,
            )
        )
    return tuple(sorted(summaries, key=lambda kind: -kind.per_step * (kind.transfer_us + kind.wait_us)))


def summarise_kernels(timeline: Timeline, most: int = 20) -> tuple[KernelSummary, ...]:
    """Return the kernels (CPU tracks: top-level operators) with the most time in the analysed windows, per track."""
    time: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for track in timeline.tracks:
        ops, events = track.ops, timeline.traces[track.trace].events
        share = len(timeline.tracks) * len(track.window_steps)
        inside = (ops.op_class == OpClass.COMPUTE) & (ops.start >= track.bounds[0]) & (ops.start < track.bounds[-1])
        names = events.name[ops.row[inside]]
        duration = (ops.end - ops.start)[inside]
        _add_up(time, count, share, events.names, names, duration)
    return tuple(
        KernelSummary(name=name, ms_per_step=milliseconds(ns), per_step=count[name])
        for name, ns in _longest(time, most)
    )


def summarise_operators(timeline: Timeline, most: int = 20) -> tuple[OperatorSummary, ...]:
    """Return the operators with the most own time in the host steps of the analysed windows, per track."""
    time: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for track in timeline.tracks:
        events = timeline.traces[track.trace].events
        share = len(timeline.tracks) * len(track.window_steps)
        for thread in {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}:
            rows = events.rows_on([thread], EventKind.OPERATOR)
            start, end = events.start_ns[rows], events.end_ns[rows]
            inside = np.flatnonzero(in_analysed_steps(track, start + track.shift_ns))
            if not len(inside):
                continue
            # Operators nested in those of these steps begin before the last of them ends.
            nested = slice(inside[0], start.searchsorted(end[inside].max(), side="right"))
            own = own_lengths(start[nested], end[nested])[inside - inside[0]]
            _add_up(time, count, share, events.names, events.name[rows[inside]], own)
    return tuple(
        OperatorSummary(name=name, own_ms_per_step=milliseconds(ns), per_step=count[name])
        for name, ns in _longest(time, most)
    )


def _add_up(  # noqa: PLR0917  # two sums by name, and the added values
    time: dict[str, float],
    count: dict[str, float],
    share: int,
    known: Sequence[str],
    names: NDArray[np.int32],
    duration: NDArray[np.int64],
) -> None:
    """Add durations and counts of these events, divided by `share`, to the sums of their names.

    Each entry of `names` is an index into `known`.
    """
    total = np.bincount(names, weights=duration, minlength=len(known))
    times = np.bincount(names, minlength=len(known))
    for index in np.flatnonzero(times).tolist():
        time[known[index]] += float(total[index]) / share
        count[known[index]] += int(times[index]) / share


def _longest(time: dict[str, float], most: int) -> list[tuple[str, float]]:
    return sorted(time.items(), key=lambda item: (-item[1], item[0]))[:most]


def in_analysed_steps(track: DeviceTrack, start: Times) -> NDArray[np.bool_]:
    """Return bool[n]: whether each time, on the common clock, is in a host step of the track's windows."""
    step = np.searchsorted(track.steps.start, start, side="right") - 1
    return (step >= 0) & among(track.steps.number, track.window_steps)[step]
