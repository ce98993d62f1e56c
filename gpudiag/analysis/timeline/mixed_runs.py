"""Leave out copies of traces, and detect traces of different runs that were given as one job.

Ranks that communicate in every step cannot drift apart: over the same steps, their times differ by at most the longest
step. A collective ends at the same time on all ranks, so that the collectives of two ranks of one run match. Measured
on 18 sound recordings: all collectives during both captures (recorded spans) match, except for up to 3 % at the
edges. The total time of three or four steps differs between ranks by up to 0.1 step times on GPUs (one rank in garbage
collection), and by 0.7 step times on two busy CPUs. If two runs or two models are mixed, no collectives match.
Recordings of two runs may also follow each other:

    run A   ├ rank 0 ┤
            ├ rank 1 ┤
    run B                        ├ rank 2 ┤        ranks that exist at different times are not of one job
                                 ├ rank 3 ┤
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import (
    FEWEST_DURATIONS,
    FEWEST_SEEN,
    LEAST_UNIX_NS,
    MATCHED_SHARE,
    RUNS_APART_NS,
)
from gpudiag.analysis.timeline.collectives import SYMMETRIC
from gpudiag.analysis.timeline.completeness import ranks_in_words
from gpudiag.intervals import distinct
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import NS_PER_S, milliseconds

if TYPE_CHECKING:
    from gpudiag.analysis.timeline.rank_events import RankEvents


class Deduplicated(msgspec.Struct, frozen=True):
    """The traces that are kept, the ranks whose only trace repeats another rank's trace, and the warnings."""

    kept: tuple[Trace, ...]
    repeated_ranks: frozenset[int]
    validity: tuple[Validity, ...]


def without_copies(traces: Sequence[Trace]) -> Deduplicated:
    """Leave out traces with the same events as an earlier trace.

    Traces that state their rank are considered first, so that the copy without a rank is left out. Call this function
    before unused ranks are given to traces without a rank, because a copy must not get a rank.
    """
    kept: list[Trace] = []
    alike: dict[tuple[int, int], list[Trace]] = defaultdict(list)
    ranks: set[int] = set()
    warnings = [
        _left_out(trace.source, copy, "hold the same events: the second was left out")
        for trace in traces
        for copy in trace.copies
    ]
    for trace in sorted(traces, key=lambda trace: trace.rank is None):
        candidates = alike[trace.origin_ns, len(trace.events)]
        original = _original(trace, candidates)
        if original is None:
            kept.append(trace)
            candidates.append(trace)
            continue
        also = ""
        if trace.rank is not None and trace.rank != original.rank:
            ranks.add(trace.rank)
            also = f", so that rank {trace.rank} has no trace of its own"
        reason = f"hold the same events: the second was left out{also}"
        warnings.append(_left_out(original.source, trace.source, reason))
    return Deduplicated(tuple(kept), frozenset(ranks), tuple(warnings))


def without_claims(traces: Sequence[Trace]) -> Deduplicated:
    """Leave out traces with the rank of an earlier trace, and warn, because both may be of different runs."""
    kept: dict[int | None, Trace] = {}
    warnings = []
    for trace in traces:
        if trace.rank in kept:
            reason = f"both claim rank {trace.rank}: the second was left out"
            warnings.append(_left_out(kept[trace.rank].source, trace.source, reason))
        else:
            kept[trace.rank] = trace
    return Deduplicated(tuple(kept.values()), frozenset(), tuple(warnings))


def _left_out(kept: str, copy: str, reason: str) -> Validity:
    message = f"{kept} and {copy} {reason}. Give one trace of each rank, all of the same run."
    return Validity(code="duplicate-ranks", message=message)


def _original(trace: Trace, candidates: Sequence[Trace]) -> Trace | None:
    """Return the candidate with equal events, or None. The caller gives candidates with equal origin and event count.

    Traces from one file are not copies, because a file may have one trace for each device of a process.
    """
    events = trace.events
    if not candidates or len(distinct(events.end_ns - events.start_ns)) < FEWEST_DURATIONS:
        return None
    columns = events.columns()
    for candidate in candidates:
        others = candidate.events.columns()
        if candidate.source != trace.source and all(np.array_equal(others[name], columns[name]) for name in columns):
            return candidate
    return None


class _Member(msgspec.Struct, frozen=True):
    """A track in a process group, with the ends (int64[m], ns) and instance numbers of its collectives in the group."""

    track: DeviceTrack
    ends: NDArray[np.int64]
    instances: NDArray[np.int64]


def mixed_runs(
    traces: Sequence[Trace], views: Sequence[RankEvents], tracks: Sequence[DeviceTrack], lossy: Iterable[int | None]
) -> list[Validity]:
    """Warn if the job's traces cannot be of one run.

    `lossy` has the ranks whose traces lack device work, so that few of their collectives match.
    """
    groups = _groups(traces, tracks)
    reasons = [
        *_world_sizes(traces),
        *_recorded_apart(traces, views, tracks),
        *_step_lengths(groups),
        *_unmatched_collectives(groups, set(lossy)),
    ]
    if not reasons:
        return []
    message = (
        f"these traces are not of one run: {'; '.join(reasons)}. Waits and communication are not judged. Give the "
        "traces of one run only, recorded over the same steps."
    )
    return [Validity(code="mixed-runs", message=message)]


def _groups(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[list[_Member]]:
    """Return the members of each known process group that spans several traces."""
    groups: dict[tuple[str, tuple[int, ...]], list[_Member]] = defaultdict(list)
    for track in tracks:
        # The key is the identity of the ranks, because a group of 1,000 ranks takes 10 µs to hash.
        group_of = {
            call.row: (call.group, id(call.group_ranks))
            for call in traces[track.trace].collectives
            if call.operation in SYMMETRIC and (call.group or call.group_ranks)
        }
        ranks_of = {id(call.group_ranks): call.group_ranks for call in traces[track.trace].collectives}
        rows_of = defaultdict(list)
        for index, row in enumerate(track.collectives.row.tolist()):
            if row in group_of:
                rows_of[group_of[row]].append(index)
        members: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for (name, ranks), rows in rows_of.items():
            members[name, ranks_of[ranks]].extend(rows)
        for group, rows in members.items():
            rows.sort()
            groups[group].append(_Member(track, track.collectives.end[rows], track.collectives.instance[rows]))
    return [members for members in groups.values() if len({member.track.trace for member in members}) > 1]


def _world_sizes(traces: Sequence[Trace]) -> list[str]:
    sizes = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    return [f"they say that the job has {' and '.join(map(str, sizes))} ranks"] if len(sizes) > 1 else []


def _recorded_apart(traces: Sequence[Trace], views: Sequence[RankEvents], tracks: Sequence[DeviceTrack]) -> list[str]:
    """Return [reason] if the recordings before and after the longest pause cannot be of one run, else [].

    Recordings whose collectives match are of one run, regardless of their clocks.
    """
    timed = [index for index, trace in enumerate(traces) if trace.origin_ns >= LEAST_UNIX_NS and len(trace.events)]
    timed.sort(key=lambda index: traces[index].origin_ns)
    longest, pause, ended = 0, 0, None
    for position, index in enumerate(timed):
        origin = traces[index].origin_ns
        if ended is not None and origin - ended > pause:
            longest, pause = position, origin - ended
        end = origin + views[index].end_ns
        ended = end if ended is None else max(ended, end)
    if pause < RUNS_APART_NS or _instances(tracks, set(timed[:longest])) & _instances(tracks, set(timed[longest:])):
        return []
    first, second = traces[timed[longest - 1]].source, traces[timed[longest]].source
    return [f"{second} begins {pause / NS_PER_S:.0f} s after {first} has ended"]


def _instances(tracks: Sequence[DeviceTrack], chosen: Set[int]) -> set[int]:
    """Return the instance numbers of the matched collectives of the chosen traces."""
    instances: set[int] = set()
    for track in tracks:
        if track.trace in chosen:
            instance = track.collectives.instance
            instances.update(distinct(instance[instance != UNKNOWN]).tolist())
    return instances


def _step_lengths(groups: Sequence[Sequence[_Member]]) -> list[str]:
    """Return [reason] if the total time of the same steps differs too much between ranks, else [].

    The difference is at most one step time if the ranks communicate in every step of one run.
    """
    for members in groups:
        tracks = [member.track for member in members]
        steps = min(len(track.window_steps) for track in tracks)
        often = all(len(member.ends) >= steps for member in members)
        if not steps or not often or len({tuple(track.window_steps.tolist()) for track in tracks}) > 1:
            continue
        mean = {track.rank: float(np.diff(track.bounds).mean()) for track in tracks}
        shortest, longest = min(mean, key=lambda rank: mean[rank]), max(mean, key=lambda rank: mean[rank])
        # Allow one step, because a pause at the edge may be in the windows of one rank and not of another.
        most = max(int(np.diff(track.bounds).max()) for track in tracks)
        if steps * (mean[longest] - mean[shortest]) > most:
            ms = {rank: f"{milliseconds(mean[rank]):.1f} ms on rank {rank}" for rank in (longest, shortest)}
            return [f"a step takes {ms[longest]} and {ms[shortest]}, which communicate in every step"]
    return []


def _unmatched_collectives(groups: Sequence[Sequence[_Member]], lossy: set[int | None]) -> list[str]:
    """Return [reason] with the ranks for which most collectives have no match; [] without such ranks.

    Only collectives during another trace's capture count, because other collectives cannot match.
    """
    alone: set[int] = set()
    for members in groups:
        # Lossy ranks are left out, because lost collectives match nothing.
        whole = [member for member in members if member.track.rank not in lossy]
        by_trace: dict[int, list[_Member]] = defaultdict(list)
        for member in whole:
            by_trace[member.track.trace].append(member)
        if len(by_trace) < 2:
            continue  # no other trace to match with
        every_capture = _captures(whole)
        seen_enough = {
            trace for trace, in_trace in by_trace.items() if any(len(m.ends) >= FEWEST_SEEN for m in in_trace)
        }
        for trace, in_trace in by_trace.items():
            own_captures = _captures(in_trace)
            for member in in_trace:
                # More captures than those of the same trace contain the collective's end.
                seen = _containing(*every_capture, member.ends) > _containing(*own_captures, member.ends)
                if not _matches(member, seen, few_others=seen_enough <= {trace}):
                    alone.add(member.track.rank)
    return [f"most collectives of {ranks_in_words(alone)} match no other rank's"] if alone else []


def _captures(members: Sequence[_Member]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted first ends and the sorted last ends of the members' collectives."""
    first = np.sort(np.array([member.ends.min() for member in members], np.int64))
    return first, np.sort(np.array([member.ends.max() for member in members], np.int64))


def _containing(first: NDArray[np.int64], last: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.intp]:
    """Count the captures [first, last] that contain each time."""
    return np.searchsorted(first, time, side="right") - np.searchsorted(last, time, side="left")


def _matches(member: _Member, seen: NDArray[np.bool_], *, few_others: bool) -> bool:
    """Return whether enough of the member's collectives match.

    `seen` selects the collectives during another trace's capture. `few_others` is true if no other trace of the group
    has at least `FEWEST_SEEN` collectives.
    """
    if len(member.ends) < FEWEST_SEEN:
        return True
    matched = member.instances != UNKNOWN
    if np.count_nonzero(seen) < FEWEST_SEEN:
        # The captures do not overlap. If the other ranks recorded enough collectives, they did so at a different time.
        return bool(matched.any()) or few_others
    return bool(np.count_nonzero(matched & seen) >= MATCHED_SHARE * np.count_nonzero(seen))
