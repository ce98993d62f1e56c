"""Forecast throughput beyond the measured number of devices, and the duration of a given amount of training.

The step time on n devices is fitted to the measured points:

    step(n) = compute + transfer * 2 (n - 1) / n + latency * growth(n)

2 (n - 1) / n is the share of the gradients that crosses each link in an all-reduce (the nccl-tests convention). The
latency grows by n - 1 in a ring and by log2 n in a tree. Three numbers of devices determine the three terms exactly;
only a fourth allows a check of the fit.

Within one machine the fitted cost is extrapolated. With m machines of g devices each, every step also sends the
gradients over the network: 2 (m - 1) / m of their bytes at the network's rate, and 2 (m - 1) latencies in a ring or
2 log2 m in a tree. The overlap of this communication with backward is unknown. The fast end of the range assumes that
it overlaps as far as backward lasts (two thirds of a step's compute, because backward has two matrix products for each
one of forward). The slow end assumes no overlap, a ring's latencies, and a longer wait for the slowest device:
jitter * (sqrt(2 ln n) - sqrt(2 ln g)) for normal step times. The expected value uses the measured overlap fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.scaling.speedup import rate_of
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import Duration, Forecast, Interval, PointRecord, Prospect
from gpudiag.statistics import Estimate

Array = NDArray[np.float64]

GROWTHS: Mapping[str, Callable[[float], float]] = {"n - 1": lambda n: n - 1.0, "log2 n": math.log2}

#: Random draws for each range. The seed is fixed, so that reports are reproducible.
_DRAWS = 400
#: Backward's share of the compute of a step.
_BACKWARD = 2 / 3
#: Minimum number of measured device counts for an extrapolation, because two do not determine a shape.
_FEWEST = 3
#: Multiples of the largest measured number of devices to forecast if no network is given.
_TIMES = (2, 4, 8)
#: Maximum number of devices to forecast if a network is given.
_MOST_DEVICES = 4096


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Non-negative terms in milliseconds, and the growth of the latency term."""

    compute_ms: float
    transfer_ms: float
    latency_ms: float
    growth: str

    def step_ms(self, devices: float) -> float:
        """Return the step time in ms on `devices` >= 1 devices."""
        terms = np.array(_terms(devices, self.growth))
        return float(terms @ np.array((self.compute_ms, self.transfer_ms, self.latency_ms)))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The best fit, and other fits that agree with the measurements.

    Attributes:
        cost: the best fit.
        possible: fits to random draws from the distribution of the measurements, with either growth.
        worst_error: largest relative deviation of a measured point from `cost`.
        degrees: degrees of freedom: points minus terms. At 0, the fit is exact and unchecked.
    """

    cost: StepCost
    possible: tuple[StepCost, ...]
    worst_error: float
    degrees: int

    def range_of(self, figure: Callable[[StepCost], float]) -> tuple[float, float]:
        """Return the 95 % range of a figure over all possible costs."""
        values = np.sort([figure(cost) for cost in self.possible])
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)


def fit(step_ms: Mapping[int, Estimate]) -> Fit:
    """Fit the cost to step times by number of devices.

    Args:
        step_ms: mean step times; must contain one device and at least one larger number.

    Raises:
        ValueError: too few points.
    """
    sizes = sorted(step_ms)
    if len(sizes) < 2 or sizes[0] != 1:
        raise ValueError("a fit needs the step time of one device and of at least one larger number")
    values = np.array([step_ms[n].value for n in sizes])
    scatter = np.array([step_ms[n].standard_error for n in sizes])
    # Repeated runs differ by at least this much, regardless of their number of steps.
    errors = np.maximum(scatter, 0.005 * values)
    candidates = [_solve(sizes, values[None, :], errors, growth) for growth in GROWTHS]
    best = min(candidates, key=lambda solution: solution[1][0])[0][0]
    deviation = max(abs(best.step_ms(n) / step_ms[n].value - 1) for n in sizes)
    spread = np.maximum(errors, deviation * values)
    # The measured mean deviates by Student's t; the remaining error is normal.
    random, shape = np.random.default_rng(0), (_DRAWS, len(sizes))
    freedom = np.array([min(step_ms[n].freedom, 1e6) for n in sizes])
    draws = random.normal(values, np.sqrt(spread**2 - scatter**2), shape)
    draws += scatter * random.standard_t(freedom, shape)
    draws = np.maximum(draws, 0.05 * values)
    possible = tuple(cost for growth in GROWTHS for cost in _solve(sizes, draws, errors, growth)[0])
    return Fit(cost=best, possible=possible, worst_error=deviation, degrees=max(0, len(sizes) - 3))


def _terms(devices: float, growth: str) -> tuple[float, float, float]:
    return 1.0, 2 * (devices - 1) / devices, GROWTHS[growth](devices)


def _solve(sizes: Sequence[int], draws: Array, errors: Array, growth: str) -> tuple[list[StepCost], Array]:
    """Solve weighted non-negative least squares over three terms exactly, by trying every subset of them.

    Args:
        sizes: numbers of devices.
        draws: float64[d, len(sizes)], step times in ms; each row is fitted separately.
        errors: float64[len(sizes)], standard errors of the step times.
        growth: growth of the latency term.

    Returns:
        The cost of each row, and its weighted sum of squares.
    """
    matrix = np.array([_terms(n, growth) for n in sizes]) / errors[:, None]
    targets = (draws / errors).T
    best = np.zeros((3, len(draws)))
    best[0] = draws[:, 0]
    least = np.full(len(draws), np.inf)
    for chosen in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        if len(chosen) > len(sizes):
            continue
        columns = matrix[:, chosen]
        solution, *_ = np.linalg.lstsq(columns, targets, rcond=None)
        squares = ((columns @ solution - targets) ** 2).sum(axis=0)
        better = (solution >= 0).all(axis=0) & (squares < least - 1e-9)
        least = np.where(better, squares, least)
        best[:, better] = 0.0
        for term, values in zip(chosen, solution, strict=True):
            best[term, better] = values[better]
    costs = [StepCost(compute_ms=c, transfer_ms=t, latency_ms=last, growth=growth) for c, t, last in best.T.tolist()]
    return costs, least


def prospect(curve: Sequence[PointRecord], network: Network | None, hidden_share: float | None) -> Prospect | None:
    """Forecast from the measured points of one curve; None if there are too few.

    Args:
        curve: points that differ only in the number of devices.
        network: the network between identical machines, if any.
        hidden_share: share of the largest point's communication that overlaps with compute, 0 to 1, if profiled.
    """
    steps = {point.devices: _step_of(point) for point in curve}
    measured: dict[int, Estimate] = {n: step for n, step in steps.items() if step is not None}
    if len(measured) < _FEWEST or 1 not in measured:
        return None
    fitted = fit(measured)
    first = next(point for point in curve if point.devices == 1)
    most = max(measured)
    largest = next(point for point in curve if point.devices == most)
    batch = first.batch_per_device
    assumptions = [
        "the samples per device stay constant",
        f"more devices are joined as the {most} measured ones are",
    ]
    if network is None or not first.gradient_bytes:
        forecasts = [_within(fitted, n * most, batch) for n in _TIMES]
    else:
        forecasts = _between(fitted, largest, first.gradient_bytes, network, hidden_share)
        assumptions[1] = f"devices beyond {most} are in machines like this one, each with {most}"
        assumptions.append(f"between machines {network.describe()}; the range spans from no overlap to full overlap")
    if len(measured) <= 3:
        assumptions.append(f"{len(measured)} sizes were measured, which determine the fit without checking it")
    cost = fitted.cost
    return Prospect(
        workload=first.workload,
        strategy=largest.strategy,
        batch_per_device=batch,
        precision=first.precision,
        memory_format=first.memory_format,
        data=first.data,
        compute_ms=cost.compute_ms,
        transfer_ms=cost.transfer_ms,
        latency_ms=cost.latency_ms,
        growth=cost.growth,
        worst_error=fitted.worst_error,
        degrees=fitted.degrees,
        measured_devices=tuple(sorted(measured)),
        forecasts=tuple(forecasts),
        assumptions=tuple(assumptions),
    )


def _step_of(point: PointRecord) -> Estimate | None:
    rate = rate_of(point)
    return None if rate is None else rate.inverse().scaled(1e3 * point.global_batch)


def _within(fitted: Fit, devices: int, batch: int) -> Forecast:
    low, high = fitted.range_of(lambda cost: _efficiency(cost, cost.step_ms(devices)))
    middle = _efficiency(fitted.cost, fitted.cost.step_ms(devices))
    efficiency = Interval(value=middle, low=min(low, middle), high=max(high, middle))
    return _forecast(devices, efficiency, 1e3 * batch / fitted.cost.step_ms(1), "")


def _between(
    fitted: Fit, largest: PointRecord, gradient_bytes: int, network: Network, hidden_share: float | None
) -> list[Forecast]:
    per_machine = largest.devices
    cost = fitted.cost
    jitter_ms = largest.jitter_ms or 0.0
    forecasts = []
    machines = 2
    while machines * per_machine <= max(_MOST_DEVICES, 2 * per_machine):
        devices = machines * per_machine
        bytes_ms = 1e-6 * 2 * (machines - 1) / machines * gradient_bytes / network.gb_per_s
        ring_ms, tree_ms = (1e-3 * network.latency_us * 2 * hops for hops in (machines - 1.0, math.log2(machines)))
        room_ms = _BACKWARD * cost.compute_ms
        here_ms = cost.step_ms(per_machine)
        best_ms = here_ms + max(0.0, bytes_ms + tree_ms - room_ms)
        wait_ms = jitter_ms * (math.sqrt(2 * math.log(devices)) - math.sqrt(2 * math.log(max(2, per_machine))))
        worst_ms = here_ms + bytes_ms + ring_ms + max(0.0, wait_ms)
        share = 0.5 if hidden_share is None else hidden_share
        communication_ms = bytes_ms + tree_ms
        expected_ms = here_ms + communication_ms - min(room_ms, share * communication_ms)
        spread = fitted.range_of(lambda possible: possible.step_ms(per_machine) / possible.step_ms(1))
        ratio = here_ms / cost.step_ms(1)
        efficiency = Interval(
            value=_efficiency(cost, expected_ms),
            low=_efficiency(cost, worst_ms) * min(1.0, ratio / spread[1]),
            high=min(1.0, _efficiency(cost, best_ms) * max(1.0, ratio / spread[0])),
        )
        forecasts.append(
            _forecast(devices, efficiency, 1e3 * largest.batch_per_device / cost.step_ms(1), network.describe())
        )
        machines *= 2 if machines < 16 else 4
    return forecasts


def _efficiency(cost: StepCost, step_ms: float) -> float:
    return cost.step_ms(1) / step_ms


def _forecast(devices: int, efficiency: Interval, device_samples_per_s: float, network: str) -> Forecast:
    ideal = devices * device_samples_per_s
    return Forecast(
        devices=devices,
        efficiency=efficiency,
        samples_per_s=Interval(
            value=ideal * efficiency.value, low=ideal * efficiency.low, high=ideal * efficiency.high
        ),
        network=network,
    )


def durations(points: Sequence[PointRecord], wanted: Wanted) -> tuple[Duration, ...]:
    """Return the time that the wanted samples, iterations or volume take at each measured point's throughput.

    A voxel counts once, even if several blocks overlap in it. The time per voxel is that of the measured volume, or is
    computed from the voxels per sample if these are given. Points with neither figure are omitted.
    """
    return tuple(
        duration
        for point in points
        if point.samples_per_s and point.global_batch
        for duration in _durations(point, 3600 * point.samples_per_s, wanted)
    )


def _durations(point: PointRecord, samples_per_hour: float, wanted: Wanted) -> Iterator[Duration]:
    per_minute = samples_per_hour / point.global_batch / 60
    if wanted.samples is not None:
        yield Duration(
            point=point.id,
            samples=wanted.samples,
            iterations=wanted.samples / point.global_batch,
            per_minute=per_minute,
            hours=wanted.samples / samples_per_hour,
        )
    if wanted.iterations is not None:
        samples = wanted.iterations * point.global_batch
        like_one_device = wanted.iterations * point.batch_per_device / samples_per_hour
        yield Duration(
            point=point.id,
            of="iterations",
            samples=samples,
            iterations=wanted.iterations,
            per_minute=per_minute,
            hours=samples / samples_per_hour,
            like_one_device_hours=like_one_device if point.mode == "weak" and point.devices > 1 else None,
        )
    per_sample = wanted.voxels_per_sample.get(point.workload)
    voxels_per_hour = None if point.mvox_per_s is None else 3600e6 * point.mvox_per_s
    if per_sample is not None:
        voxels_per_hour = samples_per_hour * per_sample
    each = per_sample or point.voxels_per_sample
    if wanted.voxels is not None and voxels_per_hour and each:
        yield Duration(
            point=point.id,
            of="voxels",
            samples=wanted.voxels / each,
            iterations=wanted.voxels / each / point.global_batch,
            hours=wanted.voxels / voxels_per_hour,
            voxels=wanted.voxels,
            mvox_per_s=voxels_per_hour / 3600e6,
        )
