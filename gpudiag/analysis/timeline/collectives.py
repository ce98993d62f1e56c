"""Match the collectives of all tracks, and find the last rank and its arrival time at each collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.alignment import Alignment, CollectiveSequence, align
from gpudiag.analysis.timeline.calibration import CORRECTED_NS
from gpudiag.intervals import distinct
from gpudiag.model.event import POINT_TO_POINT, CollectiveCall, EventTable, any_of
from gpudiag.model.timeline import SAME_CLOCK_NS, UNKNOWN, ClockAlignment, TrackCollectives

Times = NDArray[np.int64]

#: Operations that all participants leave together. Participants of rooted operations and of messages may leave early.
SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

GroupKey = tuple[str, tuple[int, ...]]
"""Name of the process group and its global ranks (empty where unknown)."""

#: Placeholder for the group of two ranks that are aligned by their messages.
_MESSAGES: GroupKey = ("send, recv", ())

_FAR_PAST = np.iinfo(np.int64).min


class Messages(NamedTuple):
    """Matched messages from one track to another: indices into the calls of each track, in the order of the sends."""

    sender: int
    receiver: int
    send: NDArray[np.intp]
    receive: NDArray[np.intp]


class MatchedMessages(NamedTuple):
    """All matched messages, and (track a, track b, alignment) of each pair of tracks with matches."""

    messages: Sequence[Messages] = ()
    alignments: Sequence[tuple[int, int, Alignment]] = ()


NO_MESSAGES = MatchedMessages()


class TrackCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one track before matching: columns of equal length, sorted by start; ns, not aligned.

    `row` has the rows of the calls in their trace's events; `track_calls` explains the other fields. All tracks of one
    trace share a clock. All traces of one file, which has a trace for each device of a process, share a clock too.
    """

    rank: int
    trace: int
    source: str = ""
    clock_known: bool
    on_host: bool = False
    start: Times
    end: Times
    row: NDArray[np.int64]
    calls: tuple[CollectiveCall, ...]


def calls_by_start(events: EventTable, rows: NDArray[np.int64], devices: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the indices, by start, of the communication events `rows` on the devices (UNKNOWN is the host)."""
    chosen = np.flatnonzero(any_of(events.device[rows], *devices))
    return chosen[np.argsort(events.start_ns[rows[chosen]], kind="stable")]


def track_calls(
    calls: Sequence[CollectiveCall],
    chosen: NDArray[np.intp],
    start: Times,
    end: Times,
    *,
    rank: int,
    trace: int,
    on_host: bool,
    origin_ns: int,
    clock_known: bool,
    source: str = "",
) -> TrackCalls:
    """Return the chosen communication of a trace as the calls of one track.

    Args:
        calls: all communication of the trace.
        chosen: indices of the track's communication in `calls`.
        start, end: int64[len(calls)], ns on the trace's clock.
        rank, trace, source: the track's rank, the index of its trace, and the trace's file.
        on_host: whether the process has no devices.
        origin_ns: origin of the trace's clock on the clock of all traces.
        clock_known: whether the trace states this origin, so that its clock is comparable with others.
    """
    own = tuple(calls[index] for index in chosen.tolist())
    return TrackCalls(
        rank=rank,
        trace=trace,
        source=source,
        clock_known=clock_known,
        on_host=on_host,
        start=start[chosen] + origin_ns,
        end=end[chosen] + origin_ns,
        row=np.array([call.row for call in own], np.int64),
        calls=own,
    )


class Matching(msgspec.Struct, frozen=True):
    """The result of matching: each track's collectives and clock offset (ns), alignments, and ranks without a trace.

    `ambiguous` is true if another pairing of collectives with a different clock offset fits about as well.
    """

    collectives: list[TrackCollectives]
    offsets: list[int]
    clocks: list[ClockAlignment]
    missing_ranks: set[int]
    ambiguous: bool


def match_collectives(
    tracks: list[TrackCalls], ranks_present: set[int], matched: MatchedMessages = NO_MESSAGES
) -> Matching:
    """Match the collectives of all tracks, align the clocks, and find the last arrival at each collective.

    `ranks_present` are the ranks with a trace; `matched` has the messages between the tracks.
    """
    groups = _group(tracks)
    pairs = _align_groups(tracks, groups)
    by_messages = [_Pair(_MESSAGES, a, b, alignment) for a, b, alignment in matched.alignments]
    offsets, clocks = _clock_offsets(tracks, [*pairs, *by_messages])
    instance, arrival, last = _instances(tracks, groups, pairs, offsets)
    ends = _match_messages(tracks, matched.messages, offsets, (instance, arrival, last))
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
                end=ends[index],
                row=track.row,
                instance=instance[index],
                last_arrival=arrival[index],
                last_rank=last[index],
                kind=np.array(kind, np.int32),
                kinds=tuple(kinds),
            )
        )
    # Calls of one group share the tuple of its ranks, so that each group is examined once.
    stated = {id(call.group_ranks): call.group_ranks for track in tracks for call in track.calls}
    missing = {rank for ranks in stated.values() for rank in ranks} - ranks_present
    return Matching(collectives, offsets, clocks, missing, any(pair.alignment.ambiguous for pair in pairs))


class _Pair(msgspec.Struct, frozen=True):
    """The alignment of two tracks, `a` and `b`, by the collectives of one group (or by `_MESSAGES`)."""

    group: GroupKey
    a: int
    b: int
    alignment: Alignment


def _group(tracks: list[TrackCalls]) -> dict[GroupKey, dict[int, NDArray[np.intp]]]:
    """Return group → track → indices of the track's collectives in the group, sorted by start."""
    members: dict[GroupKey, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    known: dict[tuple[str, int], dict[int, list[int]]] = {}  # a group of 1,000 ranks takes 10 µs to hash
    for track_index, track in enumerate(tracks):
        for index, call in enumerate(track.calls):
            if call.operation in POINT_TO_POINT:
                continue
            key = call.group, id(call.group_ranks)
            if key not in known:
                known[key] = members[call.group, call.group_ranks]
            known[key][track_index].append(index)
    return {
        group: {track: np.array(indices, np.intp) for track, indices in by_track.items()}
        for group, by_track in members.items()
    }


def _align_groups(tracks: list[TrackCalls], groups: dict[GroupKey, dict[int, NDArray[np.intp]]]) -> list[_Pair]:
    """Align every track of each group (from `_group`) with the group's track that has the most collectives."""
    pairs = []
    signatures: dict[tuple[str, int | None], int] = {}

    def sequence(track: TrackCalls, indices: NDArray[np.intp]) -> CollectiveSequence:
        """Return the calls at `indices` as columns; equal signatures have equal numbers on all tracks."""
        calls = [track.calls[i] for i in indices]
        return CollectiveSequence(
            start=track.start[indices],
            end=track.end[indices],
            signature=np.array([signatures.setdefault(_signature(call), len(signatures)) for call in calls], np.int64),
            symmetric=np.array([c.operation in SYMMETRIC for c in calls], np.bool_),
        )

    for group, by_track in groups.items():
        # The track with the most collectives has the longest recording, which contains the others.
        reference = max(by_track, key=lambda track: (len(by_track[track]), -track))
        base = sequence(tracks[reference], by_track[reference])
        for track, indices in by_track.items():
            if track != reference:
                comparable = tracks[reference].clock_known and tracks[track].clock_known
                alignment = align(base, sequence(tracks[track], indices), clocks_comparable=comparable)
                pairs.append(_Pair(group, reference, track, alignment))
    return pairs


def _signature(call: CollectiveCall) -> tuple[str, int | None]:
    """Return the (operation, size) that all ranks' calls of one collective share; sizes differ in an all-to-all."""
    return call.operation, None if call.operation == "all_to_all" else call.size_bytes


def _clock_offsets(tracks: list[TrackCalls], pairs: list[_Pair]) -> tuple[list[int], list[ClockAlignment]]:
    """Return (ns to add to the times of each track, clock alignments), from the pairs with the most matches.

    Pairs may connect only some processes, for example those of a pipeline stage. The first process of each connected
    component keeps its clock. Messages come last, because they only bound an offset. Offsets up to `CORRECTED_NS` are
    not corrected.
    """
    links = [
        (tracks[pair.a].trace, tracks[pair.b].trace, _with_known_clocks(tracks, pair))
        for pair in sorted(pairs, key=lambda pair: (pair.group == _MESSAGES, -len(pair.alignment.a)))
        if len(pair.alignment.a) and tracks[pair.a].trace != tracks[pair.b].trace
    ]
    links_of: dict[int, list[int]] = defaultdict(list)
    for number, (a, b, _) in enumerate(links):
        links_of[a].append(number)
        links_of[b].append(number)
    rank_of = {track.trace: track.rank for track in tracks}
    matched = _matched(tracks, pairs)
    offsets: dict[int, int] = {}
    clocks: list[ClockAlignment] = []
    for first in rank_of:
        if first in offsets:
            continue
        offsets[first] = 0
        nearby = list(links_of[first])  # links to the component, as a heap: the link with the most matches is first
        heapify(nearby)
        while nearby:
            a, b, alignment = links[heappop(nearby)]
            if a in offsets and b in offsets:
                continue
            measured = alignment.offset_ns if abs(alignment.offset_ns) > CORRECTED_NS else 0
            # The alignment's offset is the clock of b minus the clock of a.
            known, new, sign = (a, b, -1) if a in offsets else (b, a, 1)
            offsets[new] = offsets[known] + sign * measured
            for number in links_of[new]:
                heappush(nearby, number)
            clocks.append(
                ClockAlignment(
                    rank=rank_of[new],
                    offset_ns=offsets[new],
                    # An offset that is too small to be corrected counts as residual.
                    residual_ns=max(alignment.residual_ns, abs(alignment.offset_ns - measured)),
                    matched=matched[new],
                )
            )
    return [offsets[track.trace] for track in tracks], clocks


def _with_known_clocks(tracks: list[TrackCalls], pair: _Pair) -> Alignment:
    """Return a pair's alignment; its offset is 0 for CPU tracks of one file, whose threads may be late on one clock."""
    a, b = tracks[pair.a], tracks[pair.b]
    if a.on_host and b.on_host and a.source and a.source == b.source:
        return msgspec.structs.replace(pair.alignment, offset_ns=0, residual_ns=0)
    return pair.alignment


def _matched(tracks: list[TrackCalls], pairs: list[_Pair]) -> dict[int, int]:
    """Return trace → number of its collectives that have a partner."""
    calls: dict[tuple[int, int], list[NDArray[np.intp]]] = defaultdict(list)
    for pair in pairs:
        for track, matching in ((pair.a, pair.alignment.a), (pair.b, pair.alignment.b)):
            calls[track, id(pair.group)].append(matching)
    matched: dict[int, int] = defaultdict(int)
    for (track, _), indices in calls.items():
        matched[tracks[track].trace] += len(distinct(np.concatenate(indices)))
    return matched


def _match_messages(
    tracks: list[TrackCalls],
    messages: Sequence[Messages],
    offsets: list[int],
    columns: tuple[list[NDArray[np.int64]], list[Times], list[NDArray[np.int64]]],
) -> list[Times]:
    """Fill the columns (instance, last arrival, last rank) for messages; return all ends on the common clock.

    A host-side send's record lasts until its process waits for the send; the send really ends when it is received. A
    side that came last, or whose record ends before the other side came, did not wait: its last rank is its own rank.
    `columns` and `offsets` (ns) have one element per track.
    """
    ends = [track.end + offset for track, offset in zip(tracks, offsets, strict=True)]
    instance, arrival, last = columns
    following = 1 + max((int(numbers.max(initial=UNKNOWN)) for numbers in instance), default=UNKNOWN)
    for sender, receiver, send, receive in messages:
        begun, posted = (
            tracks[sender].start[send] + offsets[sender],
            tracks[receiver].start[receive] + offsets[receiver],
        )
        received = ends[receiver][receive]
        if tracks[sender].on_host:
            ends[sender][send] = np.clip(received, begun, ends[sender][send])
        both = np.maximum(begun, posted)
        for track, calls, arrived in ((sender, send, begun), (receiver, receive, posted)):
            waited = (both > arrived) & (both <= ends[track][calls])
            instance[track][calls] = following + np.arange(len(calls))
            arrival[track][calls] = np.where(waited, both, arrived)
            other = receiver if track == sender else sender
            last[track][calls] = np.where(waited, tracks[other].rank, tracks[track].rank)
        following += len(send)
    return ends


def _instances(
    tracks: list[TrackCalls],
    groups: dict[GroupKey, dict[int, NDArray[np.intp]]],
    pairs: list[_Pair],
    offsets: list[int],
) -> tuple[list[NDArray[np.int64]], list[Times], list[NDArray[np.int64]]]:
    """Return for each track the instance, last arrival and last rank of its collectives, as in `TrackCollectives`.

    Calls of one collective have the same instance number on all tracks. All three are `UNKNOWN` for messages, and for
    collectives without a match. `groups` is from `_group`, and `offsets` (ns) from `_clock_offsets`.
    """
    instance = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    arrival = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    last = [np.full(len(track.calls), UNKNOWN, np.int64) for track in tracks]
    next_instance = 0
    pairs_of: dict[GroupKey, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        pairs_of[pair.group].append(pair)
    for group, by_track in groups.items():
        reference = max(by_track, key=lambda track: (len(by_track[track]), -track))  # as in `_align_groups`
        count = len(by_track[reference])
        order = [reference, *(track for track in by_track if track != reference)]
        # [collective of the reference, track]; `_FAR_PAST` where a track has no match.
        start = np.full((count, len(order)), _FAR_PAST, np.int64)
        end = np.full((count, len(order)), _FAR_PAST, np.int64)
        at = {reference: (np.arange(count), by_track[reference])}
        for pair in pairs_of[group]:
            at[pair.b] = (pair.alignment.a, by_track[pair.b][pair.alignment.b])
        for column, track in enumerate(order):
            slots, indices = at[track]
            start[slots, column] = tracks[track].start[indices] + offsets[track]
            end[slots, column] = tracks[track].end[indices] + offsets[track]
        present = start != _FAR_PAST
        alone = group[1] == (tracks[reference].rank,)  # a group of one rank is complete, and does not wait
        joined = (present.sum(axis=1) > 1) | alone
        ranks = np.array([tracks[i].rank for i in order])
        last_of_all = start.argmax(axis=1)
        for column, track in enumerate(order):
            slots, indices = at[track]
            use = joined[slots]
            slots, indices = slots[use], indices[use]
            if len(slots) == 0:
                continue
            # Ranks that arrived after this rank had left do not count (a broadcast's root does not wait for them).
            latest = last_of_all[slots]
            ends = end[slots, column]
            # Clocks agree to SAME_CLOCK_NS at best, so that a rank may seem to arrive after all other ranks left.
            until = ends + SAME_CLOCK_NS
            left = np.flatnonzero(start[slots, latest] > until)
            came = np.where(start[slots[left]] <= until[left, None], start[slots[left]], _FAR_PAST)
            latest[left] = came.argmax(axis=1)
            instance[track][indices] = next_instance + slots
            arrival[track][indices] = np.minimum(start[slots, latest], ends)
            last[track][indices] = ranks[latest]
        next_instance += count
    return instance, arrival, last
