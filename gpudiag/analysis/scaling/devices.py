"""Compare single GPUs with each other, and each pair with the sum of its two GPUs measured alone.

Pairs are not compared with each other, because a slow GPU would make its link look slow: a pair on one PCIe switch
could appear slower than a pair across sockets.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpudiag.analysis.scaling.speedup import rate_of, setting
from gpudiag.model.benchmarks.scaling import AloneGpu, LinkComparison, Pair, PointRecord
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.statistics import sum_of

#: A GPU is odd if its throughput deviates from the median by more than this share, and by more than half the width of
#: its 95 % interval.
ODD = 0.03


def alone(points: Iterable[PointRecord], names: Sequence[str]) -> tuple[AloneGpu, ...]:
    """Return the devices that were measured alone, sorted by index; empty if fewer than two were.

    `names` has the model names of the GPUs, by index; it is empty for CPU processes.
    """
    known = [(point, rate) for point in points if point.alone and (rate := rate_of(point)) is not None]
    if len(known) < 2:
        return ()
    median = statistics.median(rate.value for _, rate in known)
    gpus = []
    for point, rate in sorted(known, key=lambda measured: measured[0].device_indices):
        relative = rate.value / median
        index = point.device_indices[0]
        gpus.append(
            AloneGpu(
                index=index,
                name=names[index] if index < len(names) else "CPU process",
                point=point.id,
                samples_per_s=rate.value,
                relative=relative,
                odd=abs(relative - 1) > max(ODD, rate.relative_half_width),
            )
        )
    return tuple(gpus)


def pairs(points: Sequence[PointRecord], facts: Facts | None) -> tuple[Pair, ...]:
    """Return the pairs that communicate and whose two devices were also measured alone with the same settings.

    Without known GPUs, the devices are CPU processes, whose link is host memory.
    """
    kinds = _link_kinds(facts)
    compared = []
    for point in points:
        rate = rate_of(point)
        if point.devices != 2 or rate is None or point.strategy == INDEPENDENT:
            continue
        singles = [
            rate_of(single)
            for single in points
            if single.alone
            and single.device_indices[0] in point.device_indices
            and setting(single) == setting(point)
            and single.batch_per_device == point.batch_per_device
        ]
        known = [rate for rate in singles if rate is not None]
        if len(known) != 2:
            continue
        share = rate.over(sum_of(known))
        a, b = point.device_indices
        compared.append(
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
    return tuple(sorted(compared, key=lambda pair: (pair.strategy, pair.indices)))


def by_link(compared: Iterable[Pair]) -> tuple[LinkComparison, ...]:
    """Summarise the pairs of each kind of link."""
    groups: dict[tuple[str, str], list[float]] = {}
    for pair in compared:
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
    """Return (a, b) → kind of link, for pairs of GPUs given by their positions among the usable GPUs."""
    if facts is None:
        return {}
    usable = [gpu.index for gpu in facts.gpus if gpu.visible]
    position = {index: at for at, index in enumerate(usable)}
    return {
        (min(position[link.a], position[link.b]), max(position[link.a], position[link.b])): link.kind
        for link in facts.links
        if link.a in position and link.b in position
    }
