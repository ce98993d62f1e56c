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
from gpudiag.model.timeline import UNKNOWN, ClockAlignment, TrackCollectives

Times = NDArray[np.int64]

#: Operations whose participants all leave together. The others (rooted, point to point) may leave early.
SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
#: Operations between two ranks, matched by neither order nor end.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

GroupKey = tuple[str, tuple[int, ...]]
"""Name of the process group and its global ranks (empty where unknown)."""

_FAR_PAST = np.iinfo(np.int64).min


class TrackCalls(msgspec.Struct, frozen=True, kw_only=True):
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


def track_calls(
    events: EventTable,
    calls: tuple[CollectiveCall, ...],
    *,
    rank: int,
    trace: int,
    devices: tuple[int, ...],
    origin_ns: int,
    clock_known: bool,
) -> TrackCalls:
    """The communication of these devices (UNKNOWN: of the host), by start."""
    chosen = [call for call in calls if int(events.device[call.row]) in devices]
    rows = np.array([call.row for call in chosen], np.int64)
    order = np.argsort(events.start_ns[rows], kind="stable")
    rows = rows[order]
    return TrackCalls(
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

    collectives: list[TrackCollectives]
    offsets: list[int]
    clocks: list[ClockAlignment]
    missing_ranks: set[int]
    ambiguous: bool


def match_collectives(tracks: list[TrackCalls], ranks_present: set[int]) -> Matching:
    """Match the collectives of all lanes, align the clocks, and find each one's last arrival."""
    groups = _group(tracks)
    pairs = _align_groups(tracks, groups)
    offsets, clocks = _clock_offsets(tracks, pairs)
    instance, arrival, last = _instances(tracks, groups, pairs, offsets)
    collectives = []
    for index, track in enumerate(tracks):
        kinds: dict[tuple[str, str, int, int | None], int] = {}
        kind = [
            kinds.setdefault((call.operation, call.group, len(call.group_ranks), call.size_bytes), len(kinds))
            for call in track.calls
        ]
        collectives.append(
            TrackCollectives(
                start=track.start + offsets[index],
                end=track.end + offsets[index],
                row=track.row,
                instance=instance[index],
                last_arrival=arrival[index],
                last_rank=last[index],
                kind=np.array(kind, np.int32),
                kinds=tuple(kinds),
            )
        )
    missing = {rank for track in tracks for call in track.calls for rank in call.group_ranks} - ranks_present
    return Matching(collectives, offsets, clocks, missing, any(pair.found.ambiguous for pair in pairs))


class _Pair(msgspec.Struct, frozen=True):
    group: GroupKey
    a: int
    b: int
    found: Alignment


def _group(tracks: list[TrackCalls]) -> dict[GroupKey, dict[int, NDArray[np.intp]]]:
    """Group → lane → indices of that lane's collectives in it, by start."""
    members: dict[GroupKey, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for track_index, track in enumerate(tracks):
        for index, call in enumerate(track.calls):
            if call.operation not in POINT_TO_POINT:
                members[call.group, call.group_ranks][track_index].append(index)
    return {
        group: {track: np.array(indices, np.intp) for track, indices in by_track.items()}
        for group, by_track in members.items()
    }


def _align_groups(tracks: list[TrackCalls], groups: dict[GroupKey, dict[int, NDArray[np.intp]]]) -> list[_Pair]:
    pairs = []
    signatures: dict[tuple[str, int | None], int] = {}

    def sequence(track: TrackCalls, indices: NDArray[np.intp]) -> Sequence:
        calls = [track.calls[i] for i in indices]
        return Sequence(
            start=track.start[indices],
            end=track.end[indices],
            signature=np.array(
                [signatures.setdefault((c.operation, c.size_bytes), len(signatures)) for c in calls], np.int64
            ),
            symmetric=np.array([c.operation in SYMMETRIC for c in calls], np.bool_),
        )

    for group, by_track in groups.items():
        # The lane with the most collectives saw the longest capture: the others fit inside it.
        reference = max(by_track, key=lambda track: (len(by_track[track]), -track))
        base = sequence(tracks[reference], by_track[reference])
        for track, indices in by_track.items():
            if track != reference:
                comparable = tracks[reference].clock_known and tracks[track].clock_known
                found = align(base, sequence(tracks[track], indices), clocks_comparable=comparable)
                pairs.append(_Pair(group, reference, track, found))
    return pairs


def _clock_offsets(tracks: list[TrackCalls], pairs: list[_Pair]) -> tuple[list[int], list[ClockAlignment]]:
    """Offset to add to each lane's times, walking from clock to clock along the pairs with the most matches.

    Processes that no collective joins to the first (a pipeline's stages, say) are still joined among themselves: the
    first of each such island keeps its clock.
    """
    links = [
        (tracks[pair.a].trace, tracks[pair.b].trace, pair.found)
        for pair in sorted(pairs, key=lambda pair: -len(pair.found.a))
        if len(pair.found.a) and tracks[pair.a].trace != tracks[pair.b].trace
    ]
    rank_of = {track.trace: track.rank for track in tracks}
    calls_of = {
        clock: sum(
            call.operation not in POINT_TO_POINT for track in tracks if track.trace == clock for call in track.calls
        )
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
            matched = _matched(tracks, pairs, new)
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
    return [offsets[track.trace] for track in tracks], clocks


def _matched(tracks: list[TrackCalls], pairs: list[_Pair], clock: int) -> int:
    """How many of one process's collectives have a partner."""
    found: dict[tuple[GroupKey, int], list[NDArray[np.intp]]] = defaultdict(list)
    for pair in pairs:
        for track, indices in ((pair.a, pair.found.a), (pair.b, pair.found.b)):
            if tracks[track].trace == clock:
                found[pair.group, track].append(indices)
    return sum(len(distinct(np.concatenate(indices))) for indices in found.values())


def _instances(
    tracks: list[TrackCalls],
    groups: dict[GroupKey, dict[int, NDArray[np.intp]]],
    pairs: list[_Pair],
    offsets: list[int],
) -> tuple[list[NDArray[np.int64]], list[Times], list[NDArray[np.int64]]]:
    instance = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    arrival = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    last = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    next_instance = 0
    for group, by_track in groups.items():
        reference = max(by_track, key=lambda track: (len(by_track[track]), -track))
        count = len(by_track[reference])
        order = [reference, *(track for track in by_track if track != reference)]
        start = np.full((count, len(order)), _FAR_PAST, np.int64)
        end = np.full((count, len(order)), _FAR_PAST, np.int64)
        at = {reference: (np.arange(count), by_track[reference])}
        for pair in pairs:
            if pair.group == group:
                at[pair.b] = (pair.found.a, by_track[pair.b][pair.found.b])
        for column, track in enumerate(order):
            slots, indices = at[track]
            start[slots, column] = tracks[track].start[indices] + offsets[track]
            end[slots, column] = tracks[track].end[indices] + offsets[track]
        present = start != _FAR_PAST
        alone = group[1] == (tracks[reference].rank,)  # a group of one has nobody to wait for
        joined = (present.sum(axis=1) > 1) | alone
        for column, track in enumerate(order):
            slots, indices = at[track]
            use = joined[slots]
            slots, indices = slots[use], indices[use]
            if len(slots) == 0:
                continue
            # Who came after this rank had already left (a broadcast's root does not wait) was not waited for.
            came = np.where(start[slots] <= end[slots, column][:, None], start[slots], _FAR_PAST)
            latest = came.argmax(axis=1)
            instance[track][indices] = next_instance + slots
            arrival[track][indices] = came[np.arange(len(slots)), latest]
            last[track][indices] = np.array([tracks[i].rank for i in order])[latest]
        next_instance += count
    return instance, arrival, last
