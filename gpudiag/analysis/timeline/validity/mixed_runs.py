"""Traces of several runs taken for one job: of two runs, of two models, of other hours.

Ranks that exchange in every step cannot drift apart: over the same steps none takes longer than another by more than
the longest of them. And a collective ends together on all, so that one rank's match another's. Measured on 18 sound
recordings: all collectives match that two captures saw, but for up to 3 % at the edges, and the time over three or four
steps differs by up to 0.1 of a step on GPUs (one rank in garbage collection), and 0.7 on two busy CPUs. Of two runs or
two models mixed nothing matches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import FEWEST_SEEN, MATCHED_SHARE
from gpudiag.analysis.timeline.collectives import SYMMETRIC
from gpudiag.analysis.timeline.validity.recorded_apart import recorded_apart
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import milliseconds


class _Member(msgspec.Struct, frozen=True):
    """A lane in a process group; `mine`: bool[m], which of its collectives are of that group."""

    track: DeviceTrack
    mine: NDArray[np.bool_]

    @property
    def ends(self) -> NDArray[np.int64]:
        """When they ended."""
        return self.track.collectives.end[self.mine]


def doubts(traces: Sequence[Trace], tracks: Sequence[DeviceTrack], lossy: Iterable[int | None]) -> list[Validity]:
    """What says that these traces are not of one run.

    Args:
        traces: of the job.
        lanes: all lanes.
        lossy: ranks whose trace lacks device work, of whose collectives too few match for that reason.
    """
    groups = _groups(traces, tracks)
    said = [
        *_worlds(traces),
        *recorded_apart(traces, tracks),
        *_step_lengths(groups),
        *_collectives(groups, set(lossy)),
    ]
    if not said:
        return []
    message = (
        f"these traces are not of one run: {'; '.join(said)}. Nothing is said of waits and exchange. Give the traces "
        "of one run only, recorded over the same steps."
    )
    return [Validity(code="mixed-runs", message=message)]


def _worlds(traces: Sequence[Trace]) -> list[str]:
    sizes = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    return [f"they say that the job has {' and '.join(map(str, sizes))} ranks"] if len(sizes) > 1 else []


def _groups(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[list[_Member]]:
    """For each process group that is told, the lanes with collectives in it that all leave together."""
    groups: dict[tuple[str, tuple[int, ...]], list[_Member]] = defaultdict(list)
    for track in tracks:
        calls = {call.row: call for call in traces[track.trace].collectives if call.operation in SYMMETRIC}
        of = [
            (calls[row].group, calls[row].group_ranks) if row in calls else None
            for row in track.collectives.row.tolist()
        ]
        for key in {one for one in of if one is not None and one != ("", ())}:
            groups[key].append(_Member(track, np.array([one == key for one in of], np.bool_)))
    return [members for members in groups.values() if len({member.track.trace for member in members}) > 1]


def _step_lengths(groups: Sequence[Sequence[_Member]]) -> list[str]:
    """Ranks that exchange in every step, and whose time over the same steps differs by more than a step."""
    for members in groups:
        tracks = [member.track for member in members]
        steps = min(len(track.window_steps) for track in tracks)
        often = all(np.count_nonzero(member.mine) >= steps for member in members)
        if not steps or not often or len({tuple(track.window_steps.tolist()) for track in tracks}) > 1:
            continue
        mean = {track.rank: float(np.diff(track.bounds).mean()) for track in tracks}
        shortest, longest = min(mean, key=lambda rank: mean[rank]), max(mean, key=lambda rank: mean[rank])
        # A pause in the first or the last step is in one rank's windows and may be outside of another's.
        most = max(int(np.diff(track.bounds).max()) for track in tracks)
        if steps * (mean[longest] - mean[shortest]) > most:
            ms = {rank: f"{milliseconds(mean[rank]):.1f} ms on rank {rank}" for rank in (longest, shortest)}
            return [f"a step takes {ms[longest]} and {ms[shortest]}, which exchange in every step"]
    return []


def _collectives(groups: Sequence[Sequence[_Member]], lossy: set[int | None]) -> list[str]:
    """Ranks most of whose collectives match no other rank's of their group."""
    alone: set[int] = set()
    for members in groups:
        # Of what was lost, too few match for that reason alone.
        whole = [member for member in members if member.track.rank not in lossy]
        for member in whole:
            others = [other for other in whole if other.track.trace != member.track.trace]
            if others and not _meets(member, others):
                alone.add(member.track.rank)
    return [f"most collectives of {ranks_in_words(alone)} match no other rank's"] if alone else []


def _meets(member: _Member, others: Sequence[_Member]) -> bool:
    """Whether enough of the lane's collectives match, of those that ended while another rank's capture saw some."""
    ends, instances = member.ends, member.track.collectives.instance[member.mine]
    if len(ends) < FEWEST_SEEN:
        return True
    seen = np.zeros(len(ends), np.bool_)
    for other in others:
        seen |= (ends >= other.ends.min()) & (ends <= other.ends.max())
    matched = instances != UNKNOWN
    if np.count_nonzero(seen) < FEWEST_SEEN:
        # The captures do not overlap: another rank's saw as many, at another time.
        return bool(matched.any()) or all(len(other.ends) < FEWEST_SEEN for other in others)
    return bool(np.count_nonzero(matched & seen) >= MATCHED_SHARE * np.count_nonzero(seen))
