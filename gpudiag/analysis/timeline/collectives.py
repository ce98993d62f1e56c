"""Collectives of all lanes, matched: who came last to each, and when."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.alignment import Alignment, Sequence, align
from gpudiag.analysis.timeline.calibration import SAME_CLOCK_NS
from gpudiag.intervals import distinct
from gpudiag.model.event import CollectiveCall, EventTable
from gpudiag.model.timeline import UNKNOWN, ClockAlignment, Collectives

Times = NDArray[np.int64]

#: Operations whose participants all leave together. The others (rooted, point to point) may leave early.
SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
#: Operations between two ranks, matched by neither order nor end.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

GroupKey = tuple[str, tuple[int, ...]]
"""Name of the process group and its global ranks (empty where unknown)."""

_FAR_PAST = np.iinfo(np.int64).min


class LaneCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one lane before matching: columns of equal length m by start, on the trace's absolute clock.

    Lanes of one process share its clock: `trace` tells which.
    """

    rank: int
    trace: int
    clock_known: bool
    start: Times
    end: Times
    row: NDArray[np.int64]
    calls: tuple[CollectiveCall, ...]


def lane_calls(
    events: EventTable,
    calls: tuple[CollectiveCall, ...],
    *,
    rank: int,
    trace: int,
    devices: tuple[int, ...],
    origin_ns: int,
    clock_known: bool,
) -> LaneCalls:
    """The communication of these devices (UNKNOWN: of the host), by start."""
    chosen = [call for call in calls if int(events.device[call.row]) in devices]
    rows = np.array([call.row for call in chosen], np.int64)
    order = np.argsort(events.start_ns[rows], kind="stable")
    rows = rows[order]
    return LaneCalls(
        rank=rank,
        trace=trace,
        clock_known=clock_known,
        start=events.start_ns[rows] + origin_ns,
        end=events.end_ns[rows] + origin_ns,
        row=rows,
        calls=tuple(chosen[i] for i in order),
    )


class Matching(msgspec.Struct, frozen=True):
    """What matching all lanes gave: per lane its collectives and the correction of its clock; and what was in doubt."""

    collectives: list[Collectives]
    offsets: list[int]
    clocks: list[ClockAlignment]
    missing_ranks: set[int]
    ambiguous: bool


def match_collectives(lanes: list[LaneCalls], ranks_present: set[int]) -> Matching:
    """Match the collectives of all lanes, align the clocks, and find each one's last arrival."""
    groups = _group(lanes)
    pairs = _align_groups(lanes, groups)
    offsets, clocks = _clock_offsets(lanes, pairs)
    instance, arrival, last = _instances(lanes, groups, pairs, offsets)
    collectives = []
    for index, lane in enumerate(lanes):
        kinds: dict[tuple[str, str, int, int | None], int] = {}
        kind = [
            kinds.setdefault((call.operation, call.group, len(call.group_ranks), call.size_bytes), len(kinds))
            for call in lane.calls
        ]
        collectives.append(
            Collectives(
                start=lane.start + offsets[index],
                end=lane.end + offsets[index],
                row=lane.row,
                instance=instance[index],
                last_arrival=arrival[index],
                last_rank=last[index],
                kind=np.array(kind, np.int32),
                kinds=tuple(kinds),
            )
        )
    missing = {rank for lane in lanes for call in lane.calls for rank in call.group_ranks} - ranks_present
    return Matching(collectives, offsets, clocks, missing, any(pair.found.ambiguous for pair in pairs))


class _Pair(msgspec.Struct, frozen=True):
    group: GroupKey
    a: int
    b: int
    found: Alignment


def _group(lanes: list[LaneCalls]) -> dict[GroupKey, dict[int, NDArray[np.intp]]]:
    """Group → lane → indices of that lane's collectives in it, by start."""
    members: dict[GroupKey, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for lane_index, lane in enumerate(lanes):
        for index, call in enumerate(lane.calls):
            if call.operation not in POINT_TO_POINT:
                members[call.group, call.group_ranks][lane_index].append(index)
    return {
        group: {lane: np.array(indices, np.intp) for lane, indices in by_lane.items()}
        for group, by_lane in members.items()
    }


def _align_groups(lanes: list[LaneCalls], groups: dict[GroupKey, dict[int, NDArray[np.intp]]]) -> list[_Pair]:
    pairs = []
    signatures: dict[tuple[str, int | None], int] = {}

    def sequence(lane: LaneCalls, indices: NDArray[np.intp]) -> Sequence:
        calls = [lane.calls[i] for i in indices]
        return Sequence(
            start=lane.start[indices],
            end=lane.end[indices],
            signature=np.array(
                [signatures.setdefault((c.operation, c.size_bytes), len(signatures)) for c in calls], np.int64
            ),
            symmetric=np.array([c.operation in SYMMETRIC for c in calls], np.bool_),
        )

    for group, by_lane in groups.items():
        # The lane with the most collectives saw the longest capture: the others fit inside it.
        reference = max(by_lane, key=lambda lane: (len(by_lane[lane]), -lane))
        base = sequence(lanes[reference], by_lane[reference])
        for lane, indices in by_lane.items():
            if lane != reference:
                comparable = lanes[reference].clock_known and lanes[lane].clock_known
                found = align(base, sequence(lanes[lane], indices), clocks_comparable=comparable)
                pairs.append(_Pair(group, reference, lane, found))
    return pairs


def _clock_offsets(lanes: list[LaneCalls], pairs: list[_Pair]) -> tuple[list[int], list[ClockAlignment]]:
    """Offset to add to each lane's times, walking from clock to clock along the pairs with the most matches.

    Processes that no collective joins to the first (a pipeline's stages, say) are still joined among themselves: the
    first of each such island keeps its clock.
    """
    links = [
        (lanes[pair.a].trace, lanes[pair.b].trace, pair.found)
        for pair in sorted(pairs, key=lambda pair: -len(pair.found.a))
        if len(pair.found.a) and lanes[pair.a].trace != lanes[pair.b].trace
    ]
    rank_of = {lane.trace: lane.rank for lane in lanes}
    calls_of = {
        clock: sum(call.operation not in POINT_TO_POINT for lane in lanes if lane.trace == clock for call in lane.calls)
        for clock in rank_of
    }
    offsets: dict[int, int] = {}
    clocks: list[ClockAlignment] = []
    for island in rank_of:
        if island in offsets:
            continue
        offsets[island] = 0
        while True:
            link = next(((a, b, found) for a, b, found in links if (a in offsets) != (b in offsets)), None)
            if link is None:
                break
            a, b, found = link
            measured = found.offset_ns if abs(found.offset_ns) > SAME_CLOCK_NS else 0
            known, new, sign = (a, b, -1) if a in offsets else (b, a, 1)
            offsets[new] = offsets[known] + sign * measured
            matched = _matched(lanes, pairs, new)
            clocks.append(
                ClockAlignment(
                    rank=rank_of[new],
                    offset_ns=offsets[new],
                    # An offset too small to be corrected is residual too.
                    residual_ns=max(found.residual_ns, abs(found.offset_ns - measured)),
                    matched=matched,
                    unmatched=calls_of[new] - matched,
                )
            )
    return [offsets[lane.trace] for lane in lanes], clocks


def _matched(lanes: list[LaneCalls], pairs: list[_Pair], clock: int) -> int:
    """How many of one process's collectives have a partner."""
    found: dict[tuple[GroupKey, int], list[NDArray[np.intp]]] = defaultdict(list)
    for pair in pairs:
        for lane, indices in ((pair.a, pair.found.a), (pair.b, pair.found.b)):
            if lanes[lane].trace == clock:
                found[pair.group, lane].append(indices)
    return sum(len(distinct(np.concatenate(indices))) for indices in found.values())


def _instances(
    lanes: list[LaneCalls],
    groups: dict[GroupKey, dict[int, NDArray[np.intp]]],
    pairs: list[_Pair],
    offsets: list[int],
) -> tuple[list[NDArray[np.int64]], list[Times], list[NDArray[np.int64]]]:
    instance = [np.full(len(lane.calls), UNKNOWN, np.int64) for lane in lanes]
    arrival = [np.full(len(lane.calls), UNKNOWN, np.int64) for lane in lanes]
    last = [np.full(len(lane.calls), UNKNOWN, np.int64) for lane in lanes]
    next_instance = 0
    for group, by_lane in groups.items():
        reference = max(by_lane, key=lambda lane: (len(by_lane[lane]), -lane))
        count = len(by_lane[reference])
        order = [reference, *(lane for lane in by_lane if lane != reference)]
        start = np.full((count, len(order)), _FAR_PAST, np.int64)
        end = np.full((count, len(order)), _FAR_PAST, np.int64)
        at = {reference: (np.arange(count), by_lane[reference])}
        for pair in pairs:
            if pair.group == group:
                at[pair.b] = (pair.found.a, by_lane[pair.b][pair.found.b])
        for column, lane in enumerate(order):
            slots, indices = at[lane]
            start[slots, column] = lanes[lane].start[indices] + offsets[lane]
            end[slots, column] = lanes[lane].end[indices] + offsets[lane]
        present = start != _FAR_PAST
        alone = group[1] == (lanes[reference].rank,)  # a group of one has nobody to wait for
        joined = (present.sum(axis=1) > 1) | alone
        for column, lane in enumerate(order):
            slots, indices = at[lane]
            use = joined[slots]
            slots, indices = slots[use], indices[use]
            if len(slots) == 0:
                continue
            # Who came after this rank had already left (a broadcast's root does not wait) was not waited for.
            came = np.where(start[slots] <= end[slots, column][:, None], start[slots], _FAR_PAST)
            latest = came.argmax(axis=1)
            instance[lane][indices] = next_instance + slots
            arrival[lane][indices] = came[np.arange(len(slots)), latest]
            last[lane][indices] = np.array([lanes[i].rank for i in order])[latest]
        next_instance += count
    return instance, arrival, last
