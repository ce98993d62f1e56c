"""Build the simulation graph of a timeline's analysed steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.graph import NONE, DeviceNodes, Graph, HostNodes, Index, Times
from gpudiag.analysis.diagnosis.simulation.host_chain import Chain, build_chain
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps, analysed_ops
from gpudiag.intervals import distinct, median
from gpudiag.model.timeline import SAME_CLOCK_NS, UNKNOWN, DeviceTrack, OpClass, Timeline


def build_graph(timeline: Timeline) -> Graph | None:
    """Return the graph, or None if the timeline has no whole steps to simulate.

    A trace without a second step does not show where the next step begins, so it cannot be simulated in a loop.
    """
    tracks = [track for track in timeline.tracks if len(track.window_steps)]
    if not tracks or any(len(track.steps) < 2 for track in tracks):
        return None
    by_trace: dict[int, list[DeviceTrack]] = defaultdict(list)
    for track in tracks:
        by_trace[track.trace].append(track)
    chains: list[Chain] = []
    ops: list[TrackOps] = []
    for trace_index, members in by_trace.items():
        chain, process_ops = _build_process(timeline, trace_index, members)
        if chain is None:
            return None
        chains.append(chain)
        ops.extend(process_ops)
    return _assemble(timeline, tracks, chains, ops)


def _build_process(
    timeline: Timeline, trace_index: int, tracks: list[DeviceTrack]
) -> tuple[Chain | None, list[TrackOps]]:
    """Return (host chain of one process, or None if the chain has no nodes; ops of each of the process's tracks)."""
    to_ops, to_chain = analysed_ops, build_chain
    if tracks[0].is_cpu:
        from gpudiag.analysis.diagnosis.simulation.cpu_chain import build_cpu_chain, collective_ops  # noqa: PLC0415

        to_ops, to_chain = collective_ops, build_cpu_chain
    ops = [to_ops(track, timeline.tracks.index(track)) for track in tracks]
    return to_chain(timeline, trace_index, tracks, ops), ops


def _assemble(timeline: Timeline, tracks: list[DeviceTrack], chains: list[Chain], ops: list[TrackOps]) -> Graph:
    """Join the chains of all processes and the ops of all tracks into one graph."""
    # Index of each chain's first node, and of each track's first op; the last entry is the number of all nodes or ops.
    chain_first = np.cumsum([0] + [len(chain.time) for chain in chains])
    op_first = np.cumsum([0] + [len(track_ops.start) for track_ops in ops])
    host = _host_nodes(chains, ops, op_first)
    launch_offset = {int(chain.process[0]): int(first) for chain, first in zip(chains, chain_first, strict=False)}
    # Tracks may have different numbers of analysed steps; the length is the mean over tracks for `steps` of them.
    steps = min(len(track.window_steps) for track in tracks)
    lengths = [(track.bounds[-1] - track.bounds[0]) * steps / len(track.window_steps) for track in tracks]
    return Graph(
        host=host,
        device=_device_nodes(timeline, host, ops, op_first, launch_offset),
        chains=tuple(pairwise(chain_first.tolist())),
        streams=tuple(
            (int(first + begin), int(first + after))
            for track_ops, first in zip(ops, op_first, strict=False)
            for begin, after in track_ops.streams
        ),
        steps=steps,
        length_ns=float(np.mean(lengths)),
        ranks={track.trace: track.rank for track in tracks},
        stages=_stages(timeline),
    )


def _stages(timeline: Timeline) -> dict[int, int]:
    if not timeline.divides_work:
        return {}
    from gpudiag.analysis.parallelism.rank_grid import stages_by_process  # noqa: PLC0415  # most jobs have one stage

    return stages_by_process(timeline)


def _host_nodes(chains: Sequence[Chain], ops: Sequence[TrackOps], op_first: Index) -> HostNodes:
    """Return the nodes of all chains; their `block_on` is an index into the ops of all tracks, not of one track."""
    block_on = []
    for chain in chains:
        # A chain identifies ops by the position of the track within its process, and of the op within the track.
        first = op_first[[index for index, track_ops in enumerate(ops) if track_ops.trace == chain.process[0]]]
        op = first[np.maximum(chain.block_track, 0)] + chain.block_on
        block_on.append(np.where(chain.block_track != NONE, op, NONE))
    names = [name for name in HostNodes.__struct_fields__ if name != "block_on"]
    return HostNodes(block_on=np.concatenate(block_on), **_columns(chains, names))


def _device_nodes(
    timeline: Timeline, host: HostNodes, ops: Sequence[TrackOps], op_first: Index, launch_offset: dict[int, int]
) -> DeviceNodes:
    """Return the ops of all tracks; `op_first` has each track's first op, `launch_offset` trace → first host node."""
    columns = _columns(ops, ["start", "end", "op_class", "host_copy", "step", "row"])
    bounded = _columns(ops, ["before_end", "waited_end"])
    launch = _shifted((track_ops.launch for track_ops in ops), (launch_offset[track_ops.trace] for track_ops in ops))
    track = np.concatenate([np.full(len(track_ops.start), track_ops.track, np.int64) for track_ops in ops])
    free = np.maximum(bounded["before_end"], bounded["waited_end"])
    latency, gap = _latency_and_gap(host, launch, columns["start"], free, track)
    peers, transfer = _peers(timeline, ops, op_first, columns["start"], columns["end"])
    return DeviceNodes(
        launch=launch,
        latency=latency,
        gap=gap,
        wait_a=_shifted((track_ops.wait_a for track_ops in ops), op_first),
        wait_b=_shifted((track_ops.wait_b for track_ops in ops), op_first),
        transfer=transfer,
        peers=peers,
        track=track,
        **columns,
    )


def _shifted(columns: Iterable[Index], offsets: Iterable[int]) -> Index:
    """Return indices within a track's ops or a chain as indices within the graph; `NONE` stays `NONE`."""
    pairs = zip(columns, offsets, strict=False)
    return np.concatenate([np.where(column != NONE, column + offset, NONE) for column, offset in pairs])


def _columns(parts: Sequence[Chain] | Sequence[TrackOps], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}


def _peers(
    timeline: Timeline, ops: Sequence[TrackOps], op_first: Index, start: Times, end: Times
) -> tuple[dict[int, Index], Times]:
    """Return (`DeviceNodes.peers`, `DeviceNodes.transfer`); `op_first` has the index of each track's first op."""
    transfer = np.full(len(start), np.nan)
    members: dict[int, list[int]] = defaultdict(list)
    for track_ops, first in zip(ops, op_first, strict=False):
        table = timeline.tracks[track_ops.track].collectives
        instance_of_row = dict(zip(table.row.tolist(), table.instance.tolist(), strict=True))
        for op in np.flatnonzero(track_ops.op_class == OpClass.COMMUNICATION).tolist():
            instance = instance_of_row.get(int(track_ops.row[op]), UNKNOWN)
            if instance != UNKNOWN:
                members[instance].append(int(first + op))
    peers: dict[int, Index] = {}
    for participants in members.values():
        for member in participants:
            # An op does not wait for participants that start after its end, because a broadcast's root goes on alone.
            # Clocks agree to `SAME_CLOCK_NS` at best. Within this tolerance, the transfer may seem negative.
            until = end[member] + SAME_CLOCK_NS
            peers[member] = np.array([peer for peer in participants if start[peer] <= until], np.int64)
            transfer[member] = end[member] - start[peers[member]].max()
    return peers, transfer


def _latency_and_gap(host: HostNodes, launch: Index, start: Times, free: Times, track: Index) -> tuple[Times, Times]:
    """Return (latency after the launch, gap after the previous work), each float64[m] in ns.

    `free` is the time at which the previous op of the stream and all awaited ops had ended, or -inf without any such
    op. The previous and the awaited ops may lie before the analysed steps. If the launch was later than `free`, the
    latency is the time from the launch to the start, and the gap is the usual gap. Otherwise the gap is the time from
    `free` to the start, and the latency is the usual latency. A usual gap or latency is limited to the time that
    remains before the start.
    """
    reached = np.where(launch != NONE, host.time[np.maximum(launch, 0)], -np.inf)
    by_launch = (launch != NONE) & (reached >= free)
    by_work = ~by_launch & np.isfinite(free)
    latency, gap = np.zeros(len(start)), np.zeros(len(start))
    latency[by_launch] = (start - reached)[by_launch]
    gap[by_work] = (start - free)[by_work]
    for index in distinct(track):
        ops = track == index
        # Usual are the latency of an op that found the device idle, and the gap before an op that was queued.
        usual_latency = median(latency[ops & by_launch & (start - free > QUEUED_NS)])
        usual_gap = median(gap[ops & by_work & (start - reached > QUEUED_NS)])
        hidden = ops & by_work & (launch != NONE)
        latency[hidden] = np.minimum(start[hidden] - reached[hidden], usual_latency)
        hidden = ops & by_launch & np.isfinite(free)
        gap[hidden] = np.minimum(start[hidden] - free[hidden], usual_gap)
    return latency, gap
