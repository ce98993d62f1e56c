"""Forecast throughput beyond the measured number of devices, and the duration of a given amount of training.

Within one machine the fitted cost is extrapolated. With m machines of g devices each, every step also sends the
gradients over the network: 2 (m - 1) / m of their bytes at the network's rate, and 2 (m - 1) latencies in a ring or
2 log2 m in a tree. The overlap of this communication with backward is unknown. The fast end of the range assumes that
it overlaps as far as backward lasts (two thirds of a step's compute, because backward has two matrix products for each
one of forward). The slow end assumes no overlap, a ring's latencies, and a longer wait for the slowest device:
jitter * (sqrt(2 ln n) - sqrt(2 ln g)) for normal step times. The expected value uses the measured overlap fraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpudiag.analysis.scaling.fit import Fit, StepCost, fit
from gpudiag.analysis.scaling.speedup import rate_of
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import Duration, Forecast, Interval, PointRecord, Prospect
from gpudiag.statistics import Estimate

#: Backward's share of the compute of a step.
_BACKWARD = 2 / 3
#: Minimum number of measured device counts for an extrapolation, because two do not determine a shape.
_FEWEST = 3
#: Multiples of the largest measured number of devices to forecast if no network is given.
_TIMES = (2, 4, 8)
#: Maximum number of devices to forecast if a network is given.
_MOST_DEVICES = 4096


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
