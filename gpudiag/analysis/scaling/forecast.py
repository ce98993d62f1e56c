"""Forecast throughput beyond the measured number of devices, and the duration of a given amount of training.

The step time on n devices is fitted to the measured points:

    step(n) = compute + transfer * 2 (n - 1) / n + latency * growth(n)

In an all-reduce, each link carries 2 (n - 1) / n times the bytes of the gradients (the nccl-tests convention). The
latency grows as n - 1 in a ring and as log2 n in a tree. Measurements with three numbers of devices determine the three
terms exactly; a fourth is needed to check the fit.

Within one machine the fitted cost is extrapolated. With m machines of g devices each, every step also sends the
gradients over the network: 2 (m - 1) / m of their bytes at the network's rate, and 2 (m - 1) latencies in a ring or 2
log2 m in a tree. The share of communication between machines that the backward pass hides is unknown. The fast end of
the range assumes that communication overlaps with the whole backward pass. The backward pass takes two thirds of a
step's compute, because it has two matrix products for each product in the forward pass. The slow end assumes no
overlap, a ring's latencies, and a longer wait for the slowest of n = m g devices. If step times are normally
distributed with the standard deviation jitter, the wait is longer by jitter * (sqrt(2 ln n) - sqrt(2 ln g)). The
expected value assumes the overlap that was measured within the machine.
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

#: Name → factor of the latency term for a number of devices n.
GROWTHS: Mapping[str, Callable[[float], float]] = {"n - 1": lambda n: n - 1.0, "log2 n": math.log2}

#: Number of random draws of the step times for each growth of the latency.
_DRAWS = 400
#: Smallest relative error of a mean step time, because repeated runs differ by at least this much.
_REPEAT_ERROR = 0.005
#: Smallest drawn step time, as a share of the measured step time, so that step times stay positive.
_SHORTEST_DRAW = 0.05
#: Maximum degrees of freedom for the random generator, which does not accept infinity.
_MOST_FREEDOM = 1e6
#: Backward's share of the compute of a step.
_BACKWARD = 2 / 3
#: Number of terms of the step time. A forecast needs measurements with at least this many numbers of devices.
_TERMS = 3
#: Multiples of the largest measured number of devices to forecast if no network is given.
_MULTIPLES = (2, 4, 8)
#: Maximum number of devices to forecast if a network is given.
_MOST_DEVICES = 4096
#: Assumed overlap of communication, as a share of communication, if the points were not profiled.
_ASSUMED_OVERLAP = 0.5


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Non-negative coefficients in ms of the step time's terms; `growth` is the latency's key in `GROWTHS`."""

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
        possible: `_DRAWS` fits for each growth, each to step times drawn from the distribution of the measured times.
        worst_error: largest relative deviation of a measured point from `cost`.
        degrees: degrees of freedom: points minus terms. At 0, the fit is exact and unchecked.
    """

    cost: StepCost
    possible: tuple[StepCost, ...]
    worst_error: float
    degrees: int

    def range_of(self, figure: Callable[[StepCost], float]) -> tuple[float, float]:
        """Return the 95 % range of a figure over all possible costs."""
        low, high = np.quantile([figure(cost) for cost in self.possible], (0.025, 0.975))
        return float(low), float(high)


def fit(step_ms: Mapping[int, Estimate]) -> Fit:
    """Fit the cost to mean step times, and sample the fits that agree with them.

    Args:
        step_ms: mean step time in ms by number of devices; must contain one device and at least one larger number.

    Raises:
        ValueError: too few points.
    """
    devices = sorted(step_ms)
    if len(devices) < 2 or devices[0] != 1:
        raise ValueError("a fit needs the step time of one device and of at least one larger number")
    estimates = [step_ms[n] for n in devices]
    means_ms = np.array([estimate.value for estimate in estimates])
    errors_ms = np.maximum([estimate.standard_error for estimate in estimates], _REPEAT_ERROR * means_ms)
    fits = [_solve(devices, means_ms[None, :], errors_ms, growth) for growth in GROWTHS]
    (best,), _ = min(fits, key=lambda solution: float(solution[1][0]))
    worst_error = max(abs(best.step_ms(n) / step_ms[n].value - 1) for n in devices)
    # The draws scatter at least by the error of the best fit, so that ranges also cover what the terms do not explain.
    drawn_ms = _draw(estimates, np.maximum(errors_ms, worst_error * means_ms))
    possible = tuple(cost for growth in GROWTHS for cost in _solve(devices, drawn_ms, errors_ms, growth)[0])
    return Fit(cost=best, possible=possible, worst_error=worst_error, degrees=max(0, len(devices) - _TERMS))


def _draw(estimates: Sequence[Estimate], errors_ms: Array) -> Array:
    """Return float64[_DRAWS, n]: random step times in ms that agree with n measured step times.

    `errors_ms`, float64[n], has the standard deviations to draw with. They are at least the standard errors of the
    means. A drawn time deviates from the measured mean by Student's t times the standard error, and by a normal
    variable for the remaining variance. The seed is fixed, so that reports are reproducible.
    """
    means_ms = np.array([estimate.value for estimate in estimates])
    standard_errors_ms = np.array([estimate.standard_error for estimate in estimates])
    freedom = np.array([min(estimate.freedom, _MOST_FREEDOM) for estimate in estimates])
    generator, shape = np.random.default_rng(0), (_DRAWS, len(estimates))
    drawn_ms = generator.normal(means_ms, np.sqrt(errors_ms**2 - standard_errors_ms**2), shape)
    drawn_ms += standard_errors_ms * generator.standard_t(freedom, shape)
    return np.maximum(drawn_ms, _SHORTEST_DRAW * means_ms)


def _terms(devices: float, growth: str) -> tuple[float, float, float]:
    """Return the factors of compute, transfer and latency in the step time on `devices`."""
    return 1.0, 2 * (devices - 1) / devices, GROWTHS[growth](devices)


def _solve(devices: Sequence[int], step_ms: Array, errors_ms: Array, growth: str) -> tuple[list[StepCost], Array]:
    """Solve weighted non-negative least squares for the three terms exactly, by trying every subset that has compute.

    Args:
        devices: n numbers of devices, ascending from 1.
        step_ms: float64[d, n], step times on `devices`; each of the d rows is fitted separately.
        errors_ms: float64[n], standard errors of the step times.
        growth: key of `GROWTHS`.

    Returns:
        The cost of each row, and its sum of (residual / error)², float64[d].
    """
    matrix = np.array([_terms(n, growth) for n in devices]) / errors_ms[:, None]
    targets = (step_ms / errors_ms).T
    best = np.zeros((_TERMS, len(step_ms)))
    best[0] = step_ms[:, 0]  # if no subset has a non-negative solution: the step time on one device is all compute
    least = np.full(len(step_ms), np.inf)
    for subset in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        if len(subset) > len(devices):
            continue
        columns = matrix[:, subset]
        solution, *_ = np.linalg.lstsq(columns, targets, rcond=None)
        squares = ((columns @ solution - targets) ** 2).sum(axis=0)
        better = (solution >= 0).all(axis=0) & (squares < least - 1e-9)  # of equal fits, the one with fewer terms
        least = np.where(better, squares, least)
        best[:, better] = 0.0
        for term, amounts in zip(subset, solution, strict=True):
            best[term, better] = amounts[better]
    costs = [
        StepCost(compute_ms=compute, transfer_ms=transfer, latency_ms=latency, growth=growth)
        for compute, transfer, latency in best.T.tolist()
    ]
    return costs, least


def prospect(curve: Sequence[PointRecord], network: Network | None, hidden_share: float | None) -> Prospect | None:
    """Forecast from the measured points of one curve; None if there are too few points.

    Args:
        curve: points that differ only in the number of devices.
        network: the network between identical machines. Without it, or without the gradients' size, more devices of one
            machine are assumed.
        hidden_share: share of the largest point's communication that overlaps with compute, 0 to 1; None if unknown.
    """
    by_devices = {point.devices: (point, rate) for point in curve if (rate := rate_of(point)) is not None}
    if len(by_devices) < _TERMS or 1 not in by_devices:
        return None
    step_ms = {n: rate.inverse().scaled(1e3 * point.global_batch) for n, (point, rate) in by_devices.items()}
    fitted = fit(step_ms)
    most = max(by_devices)
    single, largest = by_devices[1][0], by_devices[most][0]
    batch = single.batch_per_device
    assumptions = ["the samples per device stay constant"]
    if network is None or not single.gradient_bytes:
        forecasts = [_within_machine(fitted, n * most, batch) for n in _MULTIPLES]
        assumptions.append(f"more devices are joined as the {most} measured ones are")
    else:
        forecasts = _between_machines(fitted, largest, single.gradient_bytes, network, hidden_share)
        assumptions.append(f"devices beyond {most} are in machines like this one, each with {most}")
        assumptions.append(f"between machines {network.describe()}; the range spans from no overlap to full overlap")
    if len(by_devices) == _TERMS:
        assumptions.append(f"{_TERMS} numbers of devices were measured, which determine the fit without checking it")
    cost = fitted.cost
    return Prospect(
        workload=single.workload,
        strategy=largest.strategy,
        batch_per_device=batch,
        precision=single.precision,
        memory_format=single.memory_format,
        data=single.data,
        compute_ms=cost.compute_ms,
        transfer_ms=cost.transfer_ms,
        latency_ms=cost.latency_ms,
        growth=cost.growth,
        worst_error=fitted.worst_error,
        degrees=fitted.degrees,
        measured_devices=tuple(sorted(by_devices)),
        forecasts=tuple(forecasts),
        assumptions=tuple(assumptions),
    )


def _within_machine(fitted: Fit, devices: int, batch: int) -> Forecast:
    """Extrapolate the fit to `devices` of one machine, with `batch` samples per device.

    The range of `possible` fits is extended to contain the best fit.
    """

    def efficiency_of(cost: StepCost) -> float:
        return cost.step_ms(1) / cost.step_ms(devices)

    low, high = fitted.range_of(efficiency_of)
    expected = efficiency_of(fitted.cost)
    efficiency = Interval(value=expected, low=min(low, expected), high=max(high, expected))
    return _forecast(devices, efficiency, 1e3 * batch / fitted.cost.step_ms(1), "")


def _between_machines(
    fitted: Fit, largest: PointRecord, gradient_bytes: int, network: Network, hidden_share: float | None
) -> list[Forecast]:
    """Forecast 2, 4, 8, 16, 64, 256, ... machines like the measured machine, as the module's docstring describes.

    The forecasts end at `_MOST_DEVICES` devices; 2 machines are always forecast.

    Args:
        fitted: the step time within one machine.
        largest: the point with all devices of one machine.
        gradient_bytes: bytes of all gradients.
        network: the network between machines.
        hidden_share: measured share of communication that overlaps with compute, 0 to 1; None if unknown.
    """
    per_machine = largest.devices
    one_device_ms = fitted.cost.step_ms(1)
    one_machine_ms = fitted.cost.step_ms(per_machine)
    backward_ms = _BACKWARD * fitted.cost.compute_ms
    overlap = _ASSUMED_OVERLAP if hidden_share is None else hidden_share
    shortest, longest = fitted.range_of(lambda cost: cost.step_ms(per_machine) / cost.step_ms(1))
    fitted_ratio = one_machine_ms / one_device_ms
    forecasts = []
    machines = 2
    while machines * per_machine <= max(_MOST_DEVICES, 2 * per_machine):
        devices = machines * per_machine
        bytes_ms = 1e-6 * 2 * (machines - 1) / machines * gradient_bytes / network.gb_per_s
        ring_ms, tree_ms = (1e-3 * network.latency_us * 2 * hops for hops in (machines - 1.0, math.log2(machines)))
        communication_ms = bytes_ms + tree_ms
        expected_ms = one_machine_ms + communication_ms - min(backward_ms, overlap * communication_ms)
        fastest_ms = one_machine_ms + max(0.0, communication_ms - backward_ms)
        wait_ms = (largest.jitter_ms or 0.0) * (_largest_deviation(devices) - _largest_deviation(max(2, per_machine)))
        slowest_ms = one_machine_ms + bytes_ms + ring_ms + max(0.0, wait_ms)
        # The factors with `fitted_ratio` widen the range by the uncertainty of the fit within one machine.
        efficiency = Interval(
            value=one_device_ms / expected_ms,
            low=one_device_ms / slowest_ms * min(1.0, fitted_ratio / longest),
            high=min(1.0, one_device_ms / fastest_ms * max(1.0, fitted_ratio / shortest)),
        )
        forecasts.append(
            _forecast(devices, efficiency, 1e3 * largest.batch_per_device / one_device_ms, network.describe())
        )
        machines *= 2 if machines < 16 else 4
    return forecasts


def _largest_deviation(devices: int) -> float:
    """Return the approximate expected maximum of `devices` standard normal variables."""
    return math.sqrt(2 * math.log(devices))


def _forecast(devices: int, efficiency: Interval, device_samples_per_s: float, network: str) -> Forecast:
    """Return the forecast from the throughput of one device alone. `network` is in words, "" within one machine."""
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
    """Return how long the wanted samples, iterations or volume take at each measured point's throughput.

    The volume is predicted in blocks; a voxel counts once, even if several blocks overlap in it. The time per voxel
    follows from the voxels per sample that the user gives, or else from a volume that the point's job predicted. A
    point with neither has no duration for voxels.
    """
    return tuple(
        duration
        for point in points
        if point.samples_per_s and point.global_batch
        for duration in _durations(point, 3600 * point.samples_per_s, wanted)
    )


def _durations(point: PointRecord, samples_per_hour: float, wanted: Wanted) -> Iterator[Duration]:
    """Yield one duration for each wanted number of samples, iterations or voxels that is known for this point.

    In weak scaling, an iteration on n devices trains n times the samples of an iteration on one device. Therefore
    `like_one_device_hours` has the time in which n devices train as many samples as one device in these iterations.
    """
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
    given_voxels = wanted.voxels_per_sample.get(point.workload)
    voxels_per_hour = None if point.mvox_per_s is None else 3600e6 * point.mvox_per_s
    if given_voxels is not None:
        voxels_per_hour = samples_per_hour * given_voxels
    voxels_per_sample = given_voxels or point.voxels_per_sample
    if wanted.voxels is not None and voxels_per_hour and voxels_per_sample:
        yield Duration(
            point=point.id,
            of="voxels",
            samples=wanted.voxels / voxels_per_sample,
            iterations=wanted.voxels / voxels_per_sample / point.global_batch,
            hours=wanted.voxels / voxels_per_hour,
            voxels=wanted.voxels,
            mvox_per_s=voxels_per_hour / 3600e6,
        )
