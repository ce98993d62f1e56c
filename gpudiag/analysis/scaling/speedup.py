"""Compute speedup and efficiency against a baseline that differs only in the number of devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import msgspec

from gpudiag.model.benchmarks.scaling import NO_P2P, PointRecord
from gpudiag.model.job import INDEPENDENT
from gpudiag.statistics import Estimate

#: Baseline of each curve.
_Baselines = dict[tuple[object, ...], PointRecord]


def rate_of(point: PointRecord) -> Estimate | None:
    """Return the samples per second of a point; None if it was not measured."""
    if point.status != "measured" or not point.samples_per_s or not point.global_batch or point.ci95 is None:
        return None
    freedom = math.inf if point.freedom is None else point.freedom
    return Estimate(value=point.samples_per_s, low=point.ci95[0], high=point.ci95[1], freedom=freedom)


def curve(point: PointRecord) -> tuple[object, ...]:
    """Return the key of a point's curve: all settings except the devices and figures that depend on their number."""
    batch = point.global_batch if point.mode == "strong" else point.batch_per_device
    return (*setting(point), point.strategy, batch)


def setting(point: PointRecord) -> tuple[object, ...]:
    """Return the settings that two ranked points must share, except the batch and the number of devices."""
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
    """Return the measured one-device point of each curve; if several devices were measured alone, the first."""
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
    """Return the baseline of a point.

    One device has no peers, so the baseline of `nccl-no-p2p` is `nccl` on one device, and that of a strategy that
    cannot run on one device is `independent`: the same training without communication.
    """
    alone = point.strategy.removesuffix(NO_P2P)
    if (point.framework, alone) in need_peers:
        alone = INDEPENDENT
    return baselines.get(curve(msgspec.structs.replace(point, strategy=alone)))


def with_speedups(points: Iterable[PointRecord], need_peers: Collection[tuple[str, str]] = ()) -> list[PointRecord]:
    """Fill in baseline, speedup and efficiency of the points whose baseline was measured.

    Args:
        points: all points.
        need_peers: frameworks and strategies that cannot run on one device.
    """
    known = list(points)
    baselines = _baselines(known)
    return [_with_speedup(point, baselines, need_peers) for point in known]


def _with_speedup(point: PointRecord, baselines: _Baselines, need_peers: Collection[tuple[str, str]]) -> PointRecord:
    rate = rate_of(point)
    base = _baseline_of(point, baselines, need_peers)
    alone = rate_of(base) if base is not None else None
    if rate is None or base is None or alone is None:
        return point
    if point.devices == 1:
        # The baseline's own ratio is exactly 1. The ratio to a different single device compares the two devices.
        ratio = Estimate(value=1.0, low=1.0, high=1.0) if base.id == point.id else rate.over(alone)
    else:
        ratio = rate.over(alone)
    share = ratio.scaled(1 / point.devices)
    return msgspec.structs.replace(
        point,
        baseline=base.id,
        speedup=ratio.value,
        speedup_ci95=(ratio.low, ratio.high),
        efficiency=share.value,
        efficiency_ci95=(share.low, share.high),
    )
