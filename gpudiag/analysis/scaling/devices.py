"""Each GPU alone, and pairs of GPUs beside the sum of what their two GPUs do alone.

A pair of GPUs on one PCIe switch was once found slower than a pair across sockets, because one of its GPUs was slow by
itself. So every GPU is measured alone first, and a pair is held against its own two GPUs, not against the other pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpudiag.analysis.scaling.speedup import rate_of, setting
from gpudiag.model.benchmarks.scaling import AloneGpu, LinkComparison, Pair, PointRecord
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.statistics import sum_of

#: A GPU is odd when it is slower or faster than the median of all by more than this and by more than its interval.
ODD = 0.03


def alone(points: Iterable[PointRecord], names: Sequence[str]) -> tuple[AloneGpu, ...]:
    """Every device that was measured by itself, by index.

    Args:
        points: all points.
        names: model names of the GPUs, by index; empty for CPU processes.
    """
    known = sorted(
        (one for one in points if one.alone and rate_of(one) is not None), key=lambda one: one.device_indices
    )
    rates = [one.samples_per_s or 0.0 for one in known]
    if len(known) < 2:
        return ()
    median = statistics.median(rates)
    found = []
    for point, rate in zip(known, rates, strict=True):
        estimate = rate_of(point)
        assert estimate is not None  # noqa: S101  # chosen above
        relative = rate / median
        odd = abs(relative - 1) > max(ODD, estimate.relative_half_width)
        index = point.device_indices[0]
        found.append(
            AloneGpu(
                index=index,
                name=names[index] if index < len(names) else "CPU process",
                point=point.id,
                samples_per_s=rate,
                relative=relative,
                odd=odd,
            )
        )
    return tuple(found)


def pairs(points: Sequence[PointRecord], facts: Facts | None) -> tuple[Pair, ...]:
    """Every pair whose two devices were also measured alone."""
    kinds = _link_kinds(facts)
    found = []
    for point in points:
        rate = rate_of(point)
        if point.devices != 2 or rate is None or point.strategy == INDEPENDENT:
            continue
        singles = [
            rate_of(one)
            for one in points
            if one.alone
            and one.device_indices[0] in point.device_indices
            and setting(one) == setting(point)
            and one.batch_per_device == point.batch_per_device
        ]
        known = [single for single in singles if single is not None]
        if len(known) != 2:
            continue
        share = rate.over(sum_of(known))
        a, b = point.device_indices
        found.append(
            Pair(
                indices=(a, b),
                link=kinds.get((a, b), "unknown") if facts is not None and facts.gpus else "host memory",
                strategy=point.strategy,
                point=point.id,
                samples_per_s=rate.value,
                efficiency=share.value,
                efficiency_ci95=(share.low, share.high),
            )
        )
    return tuple(sorted(found, key=lambda pair: (pair.strategy, pair.indices)))


def by_link(found: Iterable[Pair]) -> tuple[LinkComparison, ...]:
    """Pairs of one link kind together."""
    groups: dict[tuple[str, str], list[float]] = {}
    for pair in found:
        groups.setdefault((pair.strategy, pair.link), []).append(pair.efficiency)
    return tuple(
        LinkComparison(
            link=link,
            strategy=strategy,
            pairs=len(values),
            efficiency=statistics.median(values),
            lowest=min(values),
            highest=max(values),
        )
        for (strategy, link), values in sorted(groups.items())
    )


def _link_kinds(facts: Facts | None) -> dict[tuple[int, int], str]:
    """Link kinds by the places of two GPUs among those that training can use."""
    if facts is None:
        return {}
    usable = [gpu.index for gpu in facts.gpus if gpu.visible]
    place = {index: position for position, index in enumerate(usable)}
    return {
        (min(place[link.a], place[link.b]), max(place[link.a], place[link.b])): link.kind
        for link in facts.links
        if link.a in place and link.b in place
    }
