"""From columns to the figures of an analysis: per device, per wait, per collective, per kernel."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpudiag.model.analysis import (
    BUCKETS,
    UNTRUSTED_CODES,
    CollectiveSummary,
    Device,
    KernelSummary,
    Steps,
    Wait,
)
from gpudiag.model.attribution import Attribution
from gpudiag.model.timeline import UNKNOWN, OpClass, Timeline
from gpudiag.units import NS_PER_US, bus_factor, gb_per_s, milliseconds

#: Waits shorter than this per step are how unevenly collectives begin, not a finding.
_LEAST_WAIT_MS = 0.001


def summarise_steps(timeline: Timeline, attribution: Attribution) -> Steps:
    """Step times over all lanes: the mean of the lanes' means, the median over all windows; else the hosts'."""
    lanes = [lane.step_ns for lane in attribution.lanes] or [np.diff(bounds) for bounds in timeline.unseen.values()]
    lanes = [step_ns for step_ns in lanes if len(step_ns)]
    means = [float(step_ns.mean()) for step_ns in lanes]
    medians = [float(np.median(step_ns)) for step_ns in lanes]
    return Steps(
        analysed=min((len(step_ns) for step_ns in lanes), default=0),
        mean_ms=milliseconds(float(np.mean(means))) if means else 0.0,
        median_ms=milliseconds(float(np.mean(medians))) if medians else 0.0,
    )


def summarise_devices(timeline: Timeline, attribution: Attribution) -> tuple[Device, ...]:
    """One record per lane, each bucket as its mean over the windows."""
    return tuple(
        Device(
            rank=lane.rank,
            device=lane.label,
            name=lane.device_name,
            step_ms=milliseconds(cut.step_ns.mean()) if len(cut.step_ns) else 0.0,
            buckets_ms={
                bucket: milliseconds(cut.buckets_ns[:, i].mean()) if len(cut.buckets_ns) else 0.0
                for i, bucket in enumerate(BUCKETS)
            },
            hidden_communication_ms=milliseconds(cut.hidden_ns.mean()) if len(cut.hidden_ns) else 0.0,
            step_times_ms=tuple(milliseconds(step) for step in cut.step_ns.tolist()),
        )
        for lane, cut in zip(timeline.lanes, attribution.lanes, strict=True)
    )


def summarise_waits(timeline: Timeline, attribution: Attribution) -> tuple[Wait, ...]:
    """Who waited how long for whom, per step, longest first; nothing where that cannot be known."""
    if UNTRUSTED_CODES & {validity.code for validity in timeline.validity}:
        return ()
    waits = []
    for lane, cut in zip(timeline.lanes, attribution.lanes, strict=True):
        # Where another rank took part whose trace is not here, that one may have come later still.
        partly = set(lane.collectives.last_rank[~timeline.whole_collectives(lane)].tolist())
        waits += [
            Wait(rank=lane.rank, on_rank=on_rank, ms_per_step=milliseconds(float(share.mean())))
            for on_rank, share in cut.waits_ns.items()
            if on_rank not in partly
        ]
    return tuple(
        sorted((w for w in waits if w.ms_per_step >= _LEAST_WAIT_MS), key=lambda w: (-w.ms_per_step, w.rank, w.on_rank))
    )


def summarise_collectives(timeline: Timeline) -> tuple[CollectiveSummary, ...]:
    """Collectives in the analysed windows by operation, group and size; most time first. Of mixed runs nothing."""
    if any(validity.code == "mixed-runs" for validity in timeline.validity):
        return ()
    rows: dict[tuple[str, str, int, int | None], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    steps = 0
    for lane in timeline.lanes:
        steps += len(lane.window_steps)
        table = lane.collectives
        inside = (table.start >= lane.bounds[0]) & (table.start < lane.bounds[-1])
        joined = np.where(table.last_arrival == UNKNOWN, table.start, table.last_arrival)
        for index, kind in enumerate(table.kinds):
            mine = inside & (table.kind == index)
            if mine.any():
                rows[kind].append((table.end[mine] - joined[mine], joined[mine] - table.start[mine]))
    summaries = []
    for (operation, group, group_size, size), parts in rows.items():
        transfer = np.concatenate([part[0] for part in parts])
        wait = np.concatenate([part[1] for part in parts])
        ranks = group_size or timeline.world_size
        typical = float(np.median(transfer))
        factor = bus_factor(operation, ranks)
        busbw = gb_per_s(size, typical) * factor if size and factor and typical > 0 else None
        summaries.append(
            CollectiveSummary(
                operation=operation,
                group=group,
                ranks=ranks,
                size_bytes=size,
                per_step=len(transfer) / max(steps, 1),
                transfer_us=typical / NS_PER_US,
                wait_us=float(np.median(wait)) / NS_PER_US,
                busbw_gb_per_s=busbw,
            )
        )
    return tuple(sorted(summaries, key=lambda s: -s.per_step * (s.transfer_us + s.wait_us)))


def summarise_kernels(timeline: Timeline, most: int = 20) -> tuple[KernelSummary, ...]:
    """The kernels (CPU lanes: top-level operators) with the most time in the analysed windows, averaged over lanes."""
    time: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for lane in timeline.lanes:
        ops, events = lane.ops, timeline.traces[lane.trace].events
        share = len(timeline.lanes) * max(len(lane.window_steps), 1)
        inside = (ops.op_class == OpClass.COMPUTE) & (ops.start >= lane.bounds[0]) & (ops.start < lane.bounds[-1])
        names = events.name[ops.row[inside]]
        duration = (ops.end - ops.start)[inside]
        total = np.bincount(names, weights=duration, minlength=len(events.names))
        times = np.bincount(names, minlength=len(events.names))
        for index in np.flatnonzero(times):
            time[events.names[index]] += float(total[index]) / share
            count[events.names[index]] += int(times[index]) / share
    longest = sorted(time, key=lambda name: (-time[name], name))[:most]
    return tuple(
        KernelSummary(name=name, ms_per_step=milliseconds(time[name]), per_step=count[name]) for name in longest
    )
