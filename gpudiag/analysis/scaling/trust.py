"""How far points may be trusted: how much runs of the same job scatter, and which baselines decide nothing.

A job that is started again is placed anew on cores and in memory, and its mean step differs by more than the steps of
one start say: on a busy host ResNet-50 on one H200 took 17.8 ms in one job and 30.6 in another, neither of which had
scattered so much. So every point is started twice, and what starts differ by widens its interval.

An efficiency is a ratio to one device. Where that one was slowed by its host, more devices seem to reach more than all
of it, and everything concluded from the ratio is about the host. Such a baseline is named, and nothing is concluded.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpudiag.analysis.scaling.speedup import curve, rate_of, setting, with_speedups
from gpudiag.model.benchmarks.scaling import PointRecord
from gpudiag.statistics import Estimate, student_t

#: What no job repeats better than from start to start, as a share of its pace, where that was not measured.
_REPEATS = 0.005
#: Starts that are further apart than this, or means known no better, are no baseline.
_APART = 0.10


def with_scatter(points: Iterable[PointRecord]) -> list[PointRecord]:
    """The points, their intervals widened by what starts of such jobs differ by.

    The scatter between starts is that of all points of one workload and setting together: two starts of one point alone
    say next to nothing of it (Student's t with one degree of freedom is 12.7).
    """
    known = list(points)
    groups: dict[tuple[object, ...], list[PointRecord]] = {}
    for point in known:
        groups.setdefault(setting(point), []).append(point)
    scatter = {key: _scatter(members) for key, members in groups.items()}
    return [_widened(point, *scatter[setting(point)]) for point in known]


def _scatter(points: Iterable[PointRecord]) -> tuple[float, float]:
    """Relative standard deviation between starts, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for point in points:
        logs = [math.log(start.samples_per_s) for start in point.starts if start.samples_per_s > 0]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (_REPEATS, math.inf)


def _widened(point: PointRecord, scatter: float, freedom: float) -> PointRecord:
    rate = rate_of(point)
    if rate is None:
        return point
    error = student_t(freedom) * scatter / math.sqrt(max(1, len(point.starts)))
    rate = rate.over(Estimate(value=1.0, low=1 - error, high=1 + error, freedom=freedom))
    seen = [start.samples_per_s for start in point.starts]
    ends = min([rate.low, *seen]), max([rate.high, *seen])
    return msgspec.structs.replace(point, ci95=ends, freedom=None if math.isinf(rate.freedom) else rate.freedom)


def doubtful(points: Sequence[PointRecord], need_peers: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Ids of one-device points that are no baseline, each with why.

    Args:
        points: all points, with their intervals widened.
        need_peers: frameworks and strategies that cannot run on one device.
    """
    ones = [point for point in points if point.devices == 1 and rate_of(point) is not None]
    found: dict[str, str] = {}
    for one in ones:
        why = _unstable(one)
        if why is not None:
            found[one.id] = why
    for one, other in itertools.combinations(ones, 2):
        if _same_training(one, other) and _far_apart(one, other):
            slow, fast = sorted((one, other), key=lambda point: point.samples_per_s or 0.0)
            steps = [f"{point.step_ms or 0:.3g} ms as {point.strategy}" for point in (slow, fast)]
            why = f"alone it took {' and '.join(steps)}"
            for point in (one, other):
                found.setdefault(point.id, why)
    for point in with_speedups(points, need_peers):
        beyond = point.efficiency_ci95 is not None and point.efficiency_ci95[0] > 1.0
        if point.mode == "weak" and point.devices > 1 and beyond and point.baseline is not None:
            reached = f"{point.devices} devices reach {100 * (point.efficiency or 0):.0f} % of {point.devices} times it"
            found.setdefault(point.baseline, f"{reached}, and nothing known makes them faster than alone")
    return found


def _unstable(one: PointRecord) -> str | None:
    rates = [start.samples_per_s for start in one.starts]
    if len(rates) > 1 and max(rates) > (1 + _APART) * min(rates):
        times = max(rates) / min(rates)
        apart = f"{100 * (times - 1):.0f} %" if times < 2 else f"a factor of {times:.1f}"
        return f"{len(rates)} starts of it differ by {apart}"
    rate = rate_of(one)
    if rate is not None and rate.relative_half_width > _APART:
        return f"its throughput is certain only to ±{100 * rate.relative_half_width:.0f} %"
    if one.paced_by_host:
        return "its CPU limits it, not the device: more devices change what the CPU has to do"
    return None


def _same_training(one: PointRecord, other: PointRecord) -> bool:
    """One device has nobody to exchange with: strategies differ by what they copy on it, a few percent."""
    same = curve(one) == curve(msgspec.structs.replace(other, strategy=one.strategy))
    return same and one.strategy != other.strategy and one.device_indices == other.device_indices


def _far_apart(one: PointRecord, other: PointRecord) -> bool:
    a, b = rate_of(one), rate_of(other)
    if a is None or b is None:
        return False
    ratio = a.over(b)
    return abs(math.log(ratio.value)) > _APART and not ratio.low <= 1.0 <= ratio.high


def without_conclusions(points: Iterable[PointRecord], doubts: Mapping[str, str]) -> list[PointRecord]:
    """The points, without speedup and efficiency where their baseline is doubtful."""
    return [
        msgspec.structs.replace(point, speedup=None, speedup_ci95=None, efficiency=None, efficiency_ci95=None)
        if point.baseline in doubts
        else point
        for point in points
    ]


def again(
    points: Sequence[PointRecord], starts: int, need_peers: Collection[tuple[str, str]] = ()
) -> list[PointRecord]:
    """Which measured points to start once more: those with too few starts, then doubtful baselines, once.

    Args:
        points: all points.
        starts: how many each is to have.
        need_peers: frameworks and strategies that cannot run on one device.
    """
    few = [point for point in points if rate_of(point) is not None and max(1, len(point.starts)) < starts]
    if few:
        return few
    doubts = doubtful(with_scatter(points), need_peers)
    used = {point.baseline for point in with_speedups(points, need_peers) if point.devices > 1}
    doubted = used & set(doubts)
    return [point for point in points if point.id in doubted and max(1, len(point.starts)) == starts]
