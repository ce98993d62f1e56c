"""From a timeline to the replay graph of its analysed steps."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.chains.cpu_chain import collective_ops, cpu_chain_of
from gpudiag.analysis.diagnosis.simulation.chains.host_chain import Chain, chain_of
from gpudiag.analysis.diagnosis.simulation.graph import NONE, DeviceNodes, Graph, HostNodes
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps, body_ops
from gpudiag.intervals import distinct, median
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline


def build_graph(timeline: Timeline) -> Graph | None:
    """The replay graph of the analysed steps, or None where the timeline has no whole steps to replay.

    Of a capture without a second step nothing says where the next begins, and so nothing can be replayed in a circle.
    """
    tracks = [track for track in timeline.tracks if len(track.window_steps)]
    if not tracks or any(len(track.steps) < 2 for track in tracks):
        return None
    by_trace: dict[int, list[DeviceTrack]] = defaultdict(list)
    for track in tracks:
        by_trace[track.trace].append(track)
    chains: list[Chain] = []
    parts: list[TrackOps] = []
    for trace_index, members in by_trace.items():
        ops = [
            collective_ops(track, timeline.tracks.index(track))
            if track.is_cpu
            else body_ops(track, timeline.tracks.index(track))
            for track in members
        ]
        chain = (cpu_chain_of if members[0].is_cpu else chain_of)(timeline, trace_index, members, ops)
        if chain is None:
            return None
        chains.append(chain)
        parts.extend(ops)
    return _assemble(timeline, tracks, chains, parts)


def _assemble(
    timeline: Timeline, tracks: list[DeviceTrack], chains: list[Chain], parts: list[TrackOps]
) -> Graph | None:
    chain_first = np.cumsum([0] + [len(chain.time) for chain in chains])
    part_first = np.cumsum([0] + [len(part.start) for part in parts])
    if part_first[-1] == 0 and chain_first[-1] == 0:
        return None
    chain_by_trace = {chain.trace: index for index, chain in enumerate(chains)}
    parts_by_trace: dict[int, list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        parts_by_trace[part.trace].append(index)
    host = _host(chains, parts_by_trace, part_first)
    launch = np.concatenate(
        [np.where(part.launch != NONE, part.launch + chain_first[chain_by_trace[part.trace]], NONE) for part in parts]
    )
    start = np.concatenate([part.start for part in parts])
    end = np.concatenate([part.end for part in parts])
    wait_a = _absolute([part.wait_a for part in parts], part_first)
    wait_b = _absolute([part.wait_b for part in parts], part_first)
    peers, transfer = _peers(timeline, parts, part_first, start, end)
    before = np.concatenate([part.before_end for part in parts])
    free = np.maximum(before, np.concatenate([part.waited_end for part in parts]))
    track = np.concatenate([np.full(len(part.start), part.track, np.int64) for part in parts])
    latency, gap = _bounds(host, launch, start, free, track)
    streams = tuple(
        (int(first + a), int(first + b))
        for part, first in zip(parts, part_first, strict=False)
        for a, b in part.streams
    )
    device = DeviceNodes(
        start=start,
        end=end,
        launch=launch,
        latency=latency,
        gap=gap,
        wait_a=wait_a,
        wait_b=wait_b,
        transfer=transfer,
        peers=peers,
        op_class=np.concatenate([part.op_class for part in parts]),
        host_copy=np.concatenate([part.host_copy for part in parts]),
        track=track,
        step=np.concatenate([part.step for part in parts]),
        row=np.concatenate([part.row for part in parts]),
    )
    steps = min(len(track.window_steps) for track in tracks)
    length = float(
        np.mean([(track.bounds[-1] - track.bounds[0]) * steps / len(track.window_steps) for track in tracks])
    )
    return Graph(
        host=host,
        device=device,
        chains=tuple((int(a), int(b)) for a, b in pairwise(chain_first)),
        streams=streams,
        steps=steps,
        length_ns=length,
        ranks={track.trace: track.rank for track in tracks},
    )


def _absolute(columns: list[NDArray[np.int64]], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Op indices within parts as op indices within the graph."""
    return np.concatenate(
        [np.where(column != NONE, column + offset, NONE) for column, offset in zip(columns, first, strict=False)]
    )


def _host(chains: list[Chain], parts_by_trace: dict[int, list[int]], part_first: NDArray[np.int64]) -> HostNodes:
    block_on = []
    for chain in chains:
        # A chain names ops by (position of the part within its process, op within the part).
        mine = np.array([part_first[index] for index in parts_by_trace[chain.trace]], np.int64)
        blocked = chain.block_part != NONE
        absolute = np.where(blocked, mine[np.maximum(chain.block_part, 0)] + chain.block_op, NONE)
        block_on.append(absolute)
    return HostNodes(
        time=np.concatenate([chain.time for chain in chains]),
        busy=np.concatenate([chain.busy for chain in chains]),
        input=np.concatenate([chain.input for chain in chains]),
        silent=np.concatenate([chain.silent for chain in chains]),
        stall=np.concatenate([chain.stall for chain in chains]),
        slow=np.concatenate([chain.slow for chain in chains]),
        allocating=np.concatenate([chain.allocating for chain in chains]),
        profiler=np.concatenate([chain.profiler for chain in chains]),
        events=np.concatenate([chain.events for chain in chains]),
        block=np.concatenate([chain.block for chain in chains]),
        block_on=np.concatenate(block_on),
        block_delay=np.concatenate([chain.block_delay for chain in chains]),
        row=np.concatenate([chain.row for chain in chains]),
        process=np.concatenate([np.full(len(chain.time), chain.trace, np.int64) for chain in chains]),
        step=np.concatenate([chain.step for chain in chains]),
    )


def _peers(
    timeline: Timeline,
    parts: list[TrackOps],
    part_first: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.float64]]:
    """Of each matched collective, the ops whose start it waits for, and its time from the last of them to its end."""
    transfer = np.full(len(start), np.nan)
    members: dict[int, list[int]] = defaultdict(list)
    for part, first in zip(parts, part_first, strict=False):
        table = timeline.tracks[part.track].collectives
        order = np.argsort(table.row)
        rows = table.row[order]
        slot = np.searchsorted(rows, part.row)
        slot = np.minimum(slot, max(len(rows) - 1, 0))
        for op in np.flatnonzero(part.op_class == OpClass.COMMUNICATION):
            if len(rows) and rows[slot[op]] == part.row[op]:
                instance = int(table.instance[order[slot[op]]])
                if instance != UNKNOWN:
                    members[instance].append(int(first + op))
    peers: dict[int, NDArray[np.int64]] = {}
    for ops in members.values():
        for member in ops:
            # Who came only after this op had ended was not waited for (a broadcast's root goes on alone).
            waited = np.array([p for p in ops if start[p] <= end[member]], np.int64)
            peers[member] = waited
            transfer[member] = end[member] - start[waited].max()
    return peers, transfer


def _bounds(
    host: HostNodes,
    launch: NDArray[np.int64],
    start: NDArray[np.float64],
    free: NDArray[np.float64],
    track: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(latency after the launch, gap after the work before).

    `free` is when the op before it in its stream, and the ops that it waits for, had ended (-inf where there is none):
    for the first ops of the body those are ops before the body. The later of launch and `free` bound the op, and is
    given all of the time to its start; the other is given the usual, or less where that would have been too late.
    """
    reached = np.where(launch != NONE, host.time[np.maximum(launch, 0)], -np.inf)
    by_launch = (launch != NONE) & (reached >= free)
    by_work = ~by_launch & np.isfinite(free)
    latency, gap = np.zeros(len(start)), np.zeros(len(start))
    latency[by_launch] = (start - reached)[by_launch]
    gap[by_work] = (start - free)[by_work]
    for one in distinct(track):
        mine = track == one
        usual_latency = median(latency[mine & by_launch & (start - free > QUEUED_NS)])
        usual_gap = median(gap[mine & by_work & (start - reached > QUEUED_NS)])
        hidden = mine & by_work & (launch != NONE)
        latency[hidden] = np.minimum(start[hidden] - reached[hidden], usual_latency)
        hidden = mine & by_launch & np.isfinite(free)
        gap[hidden] = np.minimum(start[hidden] - free[hidden], usual_gap)
    return latency, gap
