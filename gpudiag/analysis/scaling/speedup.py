"""Compute speedup and efficiency against a baseline, and judge whether points and baselines are reliable.

Each start of a job gets different cores and memory, so that mean step times vary more between starts than the steps of
one start suggest. For example, ResNet-50 on one H200 with a busy host took 17.8 ms in one start and 30.6 ms in another,
with little scatter within each start. Therefore every point is started twice, and the scatter between starts widens its
95 % interval.

Efficiency is relative to one device. If the host slowed the job on one device, several devices can appear to exceed 100
%, and the ratio describes the host instead of the scaling. Such a baseline is doubtful: it is reported, and no
conclusion is drawn from it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpudiag.model.benchmarks.scaling import NO_P2P, PointRecord
from gpudiag.model.job import INDEPENDENT
from gpudiag.statistics import Estimate, student_t

#: Key of a curve → its baseline.
_Baselines = dict[tuple[object, ...], PointRecord]
#: Assumed relative scatter between starts if it was not measured.
_ASSUMED_SCATTER = 0.005
#: A baseline is unusable if its starts differ by more than this share of the slowest, or if the 95 % interval of its
#: throughput has a half-width above this share.
_MOST_SCATTER = 0.10


def rate_of(point: PointRecord) -> Estimate | None:
    """Return the samples per second of a point; None if it was not measured."""
    if point.status != "measured" or not point.samples_per_s or not point.global_batch or point.ci95 is None:
        return None
    freedom = math.inf if point.freedom is None else point.freedom
    return Estimate(value=point.samples_per_s, low=point.ci95[0], high=point.ci95[1], freedom=freedom)


def curve(point: PointRecord) -> tuple[object, ...]:
    """Return the key of a point's curve. Points of one curve differ only in their devices."""
    batch = point.global_batch if point.mode == "strong" else point.batch_per_device
    return (*setting(point), point.strategy, batch)


def setting(point: PointRecord) -> tuple[object, ...]:
    """Return the settings that two points on one curve share, without strategy, batch and number of devices."""
    return (
        point.workload,
        point.framework,
        point.mode,
        point.precision,
        point.memory_format,
        point.data,
        tuple(sorted(point.options.items())),
        point.threads,
    )


def _baselines(points: Iterable[PointRecord]) -> _Baselines:
    """Return curve → its measured one-device point; of several points, the point on the lowest device index."""
    baselines: _Baselines = {}
    for point in points:
        if point.devices == 1 and rate_of(point) is not None:
            before = baselines.setdefault(curve(point), point)
            if point.device_indices < before.device_indices:
                baselines[curve(point)] = point
    return baselines


def _baseline_of(
    point: PointRecord, baselines: _Baselines, need_peers: Collection[tuple[str, str]]
) -> PointRecord | None:
    """Return the baseline of a point; None if it was not measured.

    The baseline of `nccl-no-p2p` is `nccl` on one device, which has no peers anyway. If a strategy cannot run on one
    device (`need_peers`), its baseline is `independent`: the same training without communication.
    """
    alone = point.strategy.removesuffix(NO_P2P)
    if (point.framework, alone) in need_peers:
        alone = INDEPENDENT
    return baselines.get(curve(msgspec.structs.replace(point, strategy=alone)))


def with_speedups(points: Iterable[PointRecord], need_peers: Collection[tuple[str, str]] = ()) -> list[PointRecord]:
    """Fill in baseline, speedup and efficiency of the points whose baseline was measured.

    `need_peers` has the (framework, strategy) pairs that cannot run on one device.
    """
    known = list(points)
    baselines = _baselines(known)
    return [_with_speedup(point, baselines, need_peers) for point in known]


def _with_speedup(point: PointRecord, baselines: _Baselines, need_peers: Collection[tuple[str, str]]) -> PointRecord:
    """Return the point with speedup and efficiency, or unchanged if it or its baseline was not measured."""
    rate = rate_of(point)
    base = _baseline_of(point, baselines, need_peers)
    alone = rate_of(base) if base is not None else None
    if rate is None or base is None or alone is None:
        return point
    # The baseline's speedup is exactly 1. The speedup of another single device compares the two devices.
    ratio = Estimate(value=1.0, low=1.0, high=1.0) if base.id == point.id else rate.over(alone)
    share = ratio.scaled(1 / point.devices)
    return msgspec.structs.replace(
        point,
        baseline=base.id,
        speedup=ratio.value,
        speedup_ci95=(ratio.low, ratio.high),
        efficiency=share.value,
        efficiency_ci95=(share.low, share.high),
    )


def with_scatter(points: Iterable[PointRecord]) -> list[PointRecord]:
    """Widen the points' intervals by the scatter between starts.

    The scatter is pooled over all points of one setting, because two starts of a single point give a poor estimate
    (Student's t with one degree of freedom is 12.7).
    """
    known = list(points)
    groups: dict[tuple[object, ...], list[PointRecord]] = {}
    for point in known:
        groups.setdefault(setting(point), []).append(point)
    scatter = {key: _scatter(members) for key, members in groups.items()}
    return [_widened(point, *scatter[setting(point)]) for point in known]


def _scatter(points: Iterable[PointRecord]) -> tuple[float, float]:
    """Return the relative standard deviation between starts, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for point in points:
        logs = [math.log(start.samples_per_s) for start in point.starts if start.samples_per_s > 0]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (_ASSUMED_SCATTER, math.inf)


def _widened(point: PointRecord, scatter: float, freedom: float) -> PointRecord:
    """Widen a point's interval by the relative scatter between starts, and further to contain every start's rate.

    `freedom` is the number of degrees of freedom of `scatter`.
    """
    rate = rate_of(point)
    if rate is None:
        return point
    error = student_t(freedom) * scatter / math.sqrt(max(1, len(point.starts)))
    # Dividing by 1 ± error keeps the rate, and adds the error to its interval.
    rate = rate.over(Estimate(value=1.0, low=1 - error, high=1 + error, freedom=freedom))
    start_rates = [start.samples_per_s for start in point.starts]
    ci95 = min([rate.low, *start_rates]), max([rate.high, *start_rates])
    return msgspec.structs.replace(point, ci95=ci95, freedom=None if math.isinf(rate.freedom) else rate.freedom)


def doubtful(points: Sequence[PointRecord], need_peers: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the ids of one-device points that are unusable as baselines, each with the reason.

    The intervals of `points` are already widened. `need_peers` is as for `with_speedups`.
    """
    alone = [point for point in points if point.devices == 1 and rate_of(point) is not None]
    reasons = {point.id: reason for point in alone if (reason := _unstable(point))}
    for pair in itertools.combinations(alone, 2):
        if _same_training(*pair) and _far_apart(*pair):
            for point in pair:
                reasons.setdefault(point.id, f"the same training on one device took {_steps_slowest_first(pair)}")
    for point in with_speedups(points, need_peers):
        if point.baseline is not None and _beyond_ideal(point):
            reasons.setdefault(
                point.baseline,
                f"{point.devices} devices reach {100 * (point.efficiency or 0):.0f} % of {point.devices} times its "
                "throughput, and no known effect makes a device faster among others than alone",
            )
    return reasons


def _steps_slowest_first(pair: tuple[PointRecord, PointRecord]) -> str:
    by_rate = sorted(pair, key=lambda point: point.samples_per_s or 0.0)
    return " and ".join(f"{point.step_ms or 0:.3g} ms as {point.strategy}" for point in by_rate)


def _beyond_ideal(point: PointRecord) -> bool:
    beyond = point.efficiency_ci95 is not None and point.efficiency_ci95[0] > 1.0
    return beyond and point.mode == "weak" and point.devices > 1


def _unstable(point: PointRecord) -> str | None:
    """Return why a one-device point is unusable as a baseline, by its own figures; None if it is usable."""
    rates = [start.samples_per_s for start in point.starts]
    if len(rates) > 1 and max(rates) > (1 + _MOST_SCATTER) * min(rates):
        ratio = max(rates) / min(rates)
        difference = f"{100 * (ratio - 1):.0f} %" if ratio < 2 else f"a factor of {ratio:.1f}"
        return f"{len(rates)} starts of it differ by {difference}"
    rate = rate_of(point)
    if rate is not None and rate.relative_half_width > _MOST_SCATTER:
        return f"its throughput is certain only to ±{100 * rate.relative_half_width:.0f} %"
    if point.paced_by_host:
        return "its CPU limits it, not the device: more devices change the CPU's work"
    return None


def _same_training(a: PointRecord, b: PointRecord) -> bool:
    """Return whether two points differ only in the strategy, which hardly changes the step time on one device."""
    same_curve = curve(a) == curve(msgspec.structs.replace(b, strategy=a.strategy))
    return same_curve and a.strategy != b.strategy and a.device_indices == b.device_indices


def _far_apart(a: PointRecord, b: PointRecord) -> bool:
    rate_a, rate_b = rate_of(a), rate_of(b)
    if rate_a is None or rate_b is None:
        return False
    ratio = rate_a.over(rate_b)
    return abs(math.log(ratio.value)) > _MOST_SCATTER and not ratio.low <= 1.0 <= ratio.high


def without_conclusions(points: Iterable[PointRecord], doubts: Mapping[str, str]) -> list[PointRecord]:
    """Remove speedup and efficiency from the points whose baseline is doubtful (a key of `doubts`)."""
    return [
        msgspec.structs.replace(point, speedup=None, speedup_ci95=None, efficiency=None, efficiency_ci95=None)
        if point.baseline in doubts
        else point
        for point in points
    ]


def again(
    points: Sequence[PointRecord], starts: int, need_peers: Collection[tuple[str, str]] = ()
) -> list[PointRecord]:
    """Return the measured points to start again.

    Return the points with too few starts; if there are none, the doubtful baselines that were not yet started again.

    Args:
        points: all points.
        starts: number of starts that each point needs.
        need_peers: (framework, strategy) pairs that cannot run on one device.
    """
    incomplete = [point for point in points if rate_of(point) is not None and max(1, len(point.starts)) < starts]
    if incomplete:
        return incomplete
    doubts = doubtful(with_scatter(points), need_peers)
    baselines = {point.baseline for point in with_speedups(points, need_peers) if point.devices > 1}
    return [
        point
        for point in points
        if point.id in doubts and point.id in baselines and max(1, len(point.starts)) == starts
    ]
