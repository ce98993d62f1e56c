"""Choose which ranks of a large job are simulated: the ranks that differ most, and a sample of the other ranks.

Ranks of one job run the same program, so that a simulation of all ranks repeats the same work. The times of all ranks
are attributed before the choice, to find the ranks for which the others wait. Ranks that depend on each other (the
stages of a pipeline, the shards of a layer) are chosen together, as units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.timeline import Attribution, Timeline

#: Jobs of at most this many ranks are simulated as a whole. Judgement: 64 ranks take 5 s and 300 MB.
MOST_WHOLE = 64
#: Approximate number of simulated ranks of a larger job.
_CHOSEN = 40
#: Maximum number of ranks that are chosen because they differ; the other chosen ranks show what is usual.
_DIFFERENT = 12
#: Maximum number of ranks that are chosen because they differ, if more than `_DIFFERENT` ranks differ.
_OF_MANY_DIFFERENT = 4
#: A rank differs if a bucket is further than this share of a step from the median. Judgement: half of 5 %,
#: the share from which a finding is a warning.
_DIFFERENT_SHARE = 0.025
#: Maximum number of ranks per unit. Larger groups, such as data-parallel groups, do not make their ranks a unit.
_MOST_PER_UNIT = 32


def represent(timeline: Timeline, attribution: Attribution) -> tuple[Timeline, Attribution]:
    """Return the timeline and attribution of the chosen ranks; both unchanged if the job is small."""
    ranks = sorted({track.rank for track in timeline.tracks})
    if len(ranks) <= MOST_WHOLE:
        return timeline, attribution
    chosen = _chosen(_units(timeline, ranks), _features(attribution))
    kept = [index for index, track in enumerate(timeline.tracks) if track.rank in chosen]
    traces = sorted({timeline.tracks[index].trace for index in kept})
    place = {trace: position for position, trace in enumerate(traces)}
    tracks = tuple(
        msgspec.structs.replace(timeline.tracks[index], trace=place[timeline.tracks[index].trace]) for index in kept
    )
    left_out = frozenset(ranks) - chosen
    few = msgspec.structs.replace(
        timeline, tracks=tracks, traces=tuple(timeline.traces[trace] for trace in traces), left_out=left_out
    )
    return few, Attribution(tracks=tuple(attribution.tracks[index] for index in kept))


def _features(attribution: Attribution) -> dict[int, NDArray[np.float64]]:
    """Return rank → ns per step: in each bucket, and the mean time for which another rank waited for this rank."""
    awaited: dict[int, float] = defaultdict(float)
    for track in attribution.tracks:
        for rank, waits in track.waits_ns.items():
            awaited[rank] += float(waits.mean()) if len(waits) else 0.0
    others = max(len(attribution.tracks) - 1, 1)
    features = {}
    for track in attribution.tracks:
        buckets = track.buckets_ns.mean(axis=0) if len(track.buckets_ns) else np.zeros(track.buckets_ns.shape[1])
        features[track.rank] = np.append(buckets, awaited[track.rank] / others)
    return features


def _units(timeline: Timeline, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Return units of at most `_MOST_PER_UNIT` ranks, each joined by messages and small groups."""
    unit: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in ranks}
    for group in _groups(timeline):
        members = {unit[rank] for rank in group if rank in unit}
        joined = tuple(sorted(rank for part in members for rank in part))
        if len(members) > 1 and len(joined) <= _MOST_PER_UNIT:
            unit.update(dict.fromkeys(joined, joined))
    return sorted(set(unit.values()))


def _groups(timeline: Timeline) -> list[tuple[int, ...]]:
    """Return the ranks of each communicating group, and of each pair that exchanges messages; the smallest first."""
    groups: dict[int, tuple[int, ...]] = {}
    pairs: set[tuple[int, ...]] = set()
    for trace in timeline.traces:
        for call in trace.collectives:
            if call.peer is not None and trace.rank is not None:
                pairs.add((min(trace.rank, call.peer), max(trace.rank, call.peer)))
            elif 1 < len(call.group_ranks) <= _MOST_PER_UNIT:
                groups[id(call.group_ranks)] = call.group_ranks
    return sorted(pairs | set(groups.values()), key=lambda group: (len(group), group))


def _chosen(units: Sequence[tuple[int, ...]], features: dict[int, NDArray[np.float64]]) -> frozenset[int]:
    """Return the ranks of the units that differ most from the median, and of an even sample of the other units.

    `features` is from `_features`.
    """
    usual = _usual(units, features)
    step = float(np.median([values[:-1].sum() for values in features.values()]))  # the buckets add up to the step
    differs = {
        unit: max(float(np.abs(features[rank] - usual[place]).max()) for place, rank in enumerate(unit))
        for unit in units
    }
    by_difference = sorted(units, key=lambda unit: (-differs[unit], unit))
    differing = [unit for unit in by_difference if differs[unit] > _DIFFERENT_SHARE * step]
    # If many ranks differ, the even sample contains enough of them, in proportion to all ranks.
    most = _DIFFERENT if sum(map(len, differing)) <= _DIFFERENT else _OF_MANY_DIFFERENT
    different = list(_up_to(most, differing))
    others = by_difference[len(different) :]
    size = max(len(unit) for unit in units)
    wanted = max(1, (_CHOSEN - sum(map(len, different))) // size)
    sample = [others[int(index)] for index in np.linspace(0, len(others) - 1, min(wanted, len(others)))]
    return frozenset(rank for unit in (*different, *sample) for rank in unit)


def _usual(units: Sequence[tuple[int, ...]], features: dict[int, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return for each position within a unit the median features of the ranks at this position."""
    places: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
    for unit in units:
        for place, rank in enumerate(unit):
            places[place].append(features[rank])
    return [np.median(places[place], axis=0) for place in range(len(places))]


def _up_to(most: int, units: Iterable[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Yield units as long as they have at most `most` ranks in all, but at least one unit."""
    taken = 0
    for unit in units:
        if taken and taken + len(unit) > most:
            return
        taken += len(unit)
        yield unit
