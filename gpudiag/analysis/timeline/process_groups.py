"""Infer the process group and the peer of host-side communication whose events do not state them.

gloo's events have no arguments. Three facts replace them:

* Each process group of gloo has threads of its own, so that all collectives of one thread belong to one group.
* The members of a group leave a collective together, and other ranks do not. Median distance in ms from the ends on one
  thread of rank 0 to the nearest ends on the other ranks, in a job of two by two ranks:

      rank 1   0.05   (same tensor-parallel group)
      rank 2   3.5
      rank 3   3.7

* A stage of a pipeline sends activations to the next stage after a forward pass, and gradients to the stage before it
  after a backward pass. A stage receives activations before a forward pass, and gradients before a backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.parallelism.backward import backward_passes
from gpudiag.analysis.parallelism.roles import described_role
from gpudiag.analysis.timeline.calibration import AS_CLOSE, NOT_BY_CHANCE, SHORT_PASS, TWICE_AS_OFTEN
from gpudiag.analysis.timeline.collectives import TrackCalls
from gpudiag.intervals import Intervals, lengths_inside, union
from gpudiag.model.event import POINT_TO_POINT, CollectiveCall, EventKind, EventTable, ProcessGroup, Role, Trace


def with_groups_and_peers(tracks: Sequence[TrackCalls], traces: Sequence[Trace]) -> list[TrackCalls]:
    """Return the tracks with groups and peers that the traces do not state, where they can be inferred."""
    if len(tracks) < 2:
        return list(tracks)
    completed = _with_groups(tracks, traces)
    return _with_peers(completed, traces)


def _with_groups(tracks: Sequence[TrackCalls], traces: Sequence[Trace]) -> list[TrackCalls]:
    """Infer the group of each thread's collectives from the ranks that end collectives at the same times."""
    ends = {track.rank: _ends_by_operation(track) for track in tracks}
    completed = []
    for track in tracks:
        groups = {name: group for name, group in traces[track.trace].groups.items() if len(group.ranks) > 1}
        unknown = [
            index
            for index, call in enumerate(track.calls)
            if not call.group and not call.group_ranks and call.operation not in POINT_TO_POINT
        ]
        if len(groups) < 2 or not unknown:
            completed.append(track)
            continue
        calls = list(track.calls)
        threads = traces[track.trace].events.thread[track.row].tolist()
        for thread in {threads[index] for index in unknown}:
            chosen = [index for index in unknown if threads[index] == thread]
            # All collectives of one stream or thread belong to one group.
            known = {
                call.group for call, of_call in zip(calls, threads, strict=True) if of_call == thread and call.group
            }
            name = known.pop() if len(known) == 1 else _group_of_thread(track, chosen, groups, ends)
            for index in chosen if name in groups else ():
                calls[index] = msgspec.structs.replace(calls[index], group=name, group_ranks=groups[name].ranks)
        completed.append(msgspec.structs.replace(track, calls=tuple(calls)))
    return completed


def _ends_by_operation(track: TrackCalls) -> dict[str, NDArray[np.int64]]:
    ends = defaultdict(list)
    for call, end in zip(track.calls, track.end.tolist(), strict=True):
        ends[call.operation].append(end)
    return {operation: np.sort(np.array(times, np.int64)) for operation, times in ends.items()}


def _group_of_thread(
    track: TrackCalls,
    chosen: Sequence[int],
    groups: Mapping[str, ProcessGroup],
    ends: Mapping[int, Mapping[str, NDArray[np.int64]]],
) -> str:
    """Return the name of the group whose members' collectives end nearest to the chosen collectives; "" if unknown.

    If members of a group and of its subgroups all end nearer than by chance, the largest group is chosen. `groups` maps
    names to groups, and `ends` ranks to operations to sorted ends in ns.
    """
    distance: dict[str, float] = {}
    chance: dict[str, float] = {}
    for name, group in groups.items():
        others = [rank for rank in group.ranks if rank != track.rank and rank in ends]
        if track.rank in group.ranks and others:
            distance[name] = max(_median_distance(track, chosen, ends[rank]) for rank in others)
            chance[name] = min(_chance_distance(track, chosen, ends[rank]) for rank in others)
    if not distance:
        return ""
    nearest = min(distance.values())
    close = [name for name in distance if distance[name] <= max(AS_CLOSE * nearest, NOT_BY_CHANCE * chance[name])]
    return max(close, key=lambda name: len(groups[name].ranks))


def _median_distance(track: TrackCalls, chosen: Sequence[int], ends: Mapping[str, NDArray[np.int64]]) -> float:
    """Return the median distance in ns from the ends of the chosen calls to the nearest end of the same operation."""
    distances = []
    for index in chosen:
        others = ends.get(track.calls[index].operation)
        if others is None:
            return np.inf
        at = int(np.searchsorted(others, track.end[index]))
        distances.append(np.abs(others[max(at - 1, 0) : at + 1] - track.end[index]).min())
    return float(np.median(distances))


def _chance_distance(track: TrackCalls, chosen: Sequence[int], ends: Mapping[str, NDArray[np.int64]]) -> float:
    """Return the median distance in ns of a random time to the nearest end on a rank; 0 if there are too few ends."""
    distances = []
    for operation in {track.calls[index].operation for index in chosen}:
        others = ends.get(operation)
        if others is None or len(others) < 2:
            return 0.0
        # Of random times between two ends, half are nearer to one of them than a quarter of the ends' distance.
        distances.append(float(others[-1] - others[0]) / (len(others) - 1) / 4)
    return min(distances, default=0.0)


def _with_peers(tracks: Sequence[TrackCalls], traces: Sequence[Trace]) -> list[TrackCalls]:
    """Infer the peer of each message from the pass (forward or backward) before a send or after a receive.

    Tracks without a pipeline's group stay unchanged.
    """
    lacking = [[index for index, call in enumerate(track.calls) if _lacks_peer(call)] for track in tracks]
    sends: dict[int, int] = {}
    for track, indices in zip(tracks, lacking, strict=True):
        sends[track.rank] = sum(track.calls[index].operation == "send" for index in indices)
    messages = {track.rank for track, indices in zip(tracks, lacking, strict=True) if indices}
    completed = []
    for track, indices in zip(tracks, lacking, strict=True):
        name, group = _pipeline_group(traces[track.trace], messages)
        if not indices or group is None or track.rank not in group.ranks:
            completed.append(track)
            continue
        next_rank, previous_rank = _neighbours(track.rank, group.ranks, sends)
        calls = list(track.calls)
        backward = _in_backward(track, traces[track.trace].events, indices)
        for index, of_backward in zip(indices, backward, strict=True):
            # Activations are sent to, and gradients received from, the next stage. The first and the last stage of a
            # pipeline have one neighbour only.
            with_next = of_backward != (calls[index].operation == "send")
            peer = next_rank if with_next else previous_rank
            known = next(rank for rank in (peer, next_rank, previous_rank) if rank is not None)
            calls[index] = msgspec.structs.replace(calls[index], peer=known, group=name, group_ranks=group.ranks)
        start = _from_enqueue(track, traces[track.trace].events, indices)
        completed.append(msgspec.structs.replace(track, calls=tuple(calls), start=start))
    return completed


def _from_enqueue(track: TrackCalls, events: EventTable, chosen: Sequence[int]) -> NDArray[np.int64]:
    """Return the starts of all calls; a chosen call starts when the operator that enqueued it starts.

    gloo begins to send within the operator `c10d::send`, before its own record of the send begins.
    """
    start = track.start.copy()
    if not chosen:
        return start
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.role[rows] == Role.ENQUEUE]
    shift = int(track.start[0]) - int(events.start_ns[track.row[0]])  # from the trace's clock to the track's
    enqueued = events.start_ns[rows] + shift
    for index in chosen:
        at = int(np.searchsorted(enqueued, start[index], side="right")) - 1
        if at >= 0 and start[index] <= events.end_ns[rows[at]] + shift:
            start[index] = enqueued[at]
    return start


def _lacks_peer(call: CollectiveCall) -> bool:
    return call.operation in {"send", "recv"} and call.peer is None


def _pipeline_group(trace: Trace, messages: set[int]) -> tuple[str, ProcessGroup | None]:
    """Return the smallest group whose description states a pipeline, else the smallest group of unknown role.

    All ranks of the group must send or receive messages.
    """
    groups = {
        name: group for name, group in trace.groups.items() if len(group.ranks) > 1 and messages.issuperset(group.ranks)
    }
    role = {name: described_role(group.description) for name, group in groups.items()}
    candidates = [name for name in groups if role[name] == "pipeline"] or [name for name in groups if not role[name]]
    if not candidates:
        return "", None
    name = min(candidates, key=lambda name: len(groups[name].ranks))
    return name, groups[name]


def _neighbours(rank: int, ranks: Sequence[int], sends: Mapping[int, int]) -> tuple[int | None, int | None]:
    """Return (next stage's rank, previous stage's rank); None beyond an end of a pipeline that is not interleaved.

    `ranks` are the stages in order; `sends` has the number of sends of each rank.
    """
    stage = ranks.index(rank)
    middle = [sends[other] for other in ranks[1:-1]]
    # In an interleaved pipeline, the last stage also sends to the first, so that all stages send about equally often.
    is_ring = bool(middle) and TWICE_AS_OFTEN * sends[ranks[0]] > max(middle)
    following = ranks[(stage + 1) % len(ranks)] if is_ring or stage + 1 < len(ranks) else None
    before = ranks[stage - 1] if is_ring or stage else None
    return following, before


def _in_backward(track: TrackCalls, events: EventTable, chosen: Sequence[int]) -> list[bool]:
    """Return, for each chosen call, whether the pass before the send or after the receive is a backward pass."""
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.role[rows] != Role.ENQUEUE]
    shift = int(track.start[0]) - int(events.start_ns[track.row[0]])  # from the trace's clock to the track's
    start, end = events.start_ns[rows] + shift, events.end_ns[rows] + shift
    passes = backward_passes(events, shift)
    work = union(Intervals(start, end))
    begins = track.start[list(chosen)]
    # Between consecutive calls there is one pass, or nothing. Segment k ends at the k-th chosen call.
    edges = np.concatenate([[int(start.min(initial=0))], begins, [int(end.max(initial=0))]])
    segments = np.maximum(np.diff(edges), 0)
    in_work = lengths_inside(work, edges[:-1], edges[:-1] + segments)
    in_backward = 2 * lengths_inside(passes, edges[:-1], edges[:-1] + segments) > in_work
    computes = in_work >= SHORT_PASS * np.max(in_work, initial=1)
    result = []
    for position, index in enumerate(chosen):
        if track.calls[index].operation == "send":
            near = next((at for at in range(position, -1, -1) if computes[at]), position)
        else:
            near = next((at for at in range(position + 1, len(segments)) if computes[at]), position)
        result.append(bool(in_backward[near]))
    return result
