"""Fit the latency and the bandwidth of a transport to its measured times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpudiag.model.facts import QUEUED, Collective, CollectiveFit
from gpudiag.units import bus_factor

#: Relative error above which a point has less weight (Huber's bound). NCCL's protocol depends on the message size, and
#: sizes near a change of the protocol do not fit a line.
_BOUND = 0.1
#: Maximum number of iterations.
_ROUNDS = 60


def fit_latency_and_bandwidth(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of time = a + b x size, with a, b ≥ 0, that minimise *relative* errors.

    The method is iteratively reweighted least squares. Each point is divided by its time, so that 20 µs at 1 KiB count
    as much as 2 ms at 512 MiB. Points with an error above 10 % have less weight, so that one outlier does not change
    the fit.

    Args:
        sizes: positive sizes, at least two different ones.
        times: positive times, one per size.

    Raises:
        ValueError: fewer than two different sizes, or values that are not positive and finite.
    """
    x, y = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    if len(set(x)) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a fit needs two different sizes, and positive finite values")
    weights = np.ones_like(y)
    a = b = 0.0
    for _ in range(_ROUNDS):
        a, b = _weighted(x, y, weights)
        error = np.abs((a + b * x) / y - 1)
        updated = np.minimum(1.0, _BOUND / np.maximum(error, 1e-12))
        if np.allclose(updated, weights, rtol=1e-6):
            break
        weights = updated
    return a, b


def _weighted(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Solve weighted least squares of (a + b x)/y = 1 with a, b ≥ 0."""
    root = np.sqrt(weights)
    # Columns are scaled to their largest entry, because sizes span six orders of magnitude.
    columns = np.stack([root / y, root * x / y])
    scale = columns.max(axis=1)
    scaled, *_ = np.linalg.lstsq((columns / scale[:, None]).T, root, rcond=None)
    a, b = scaled / scale
    if a >= 0 and b >= 0:
        return float(a), float(b)
    # The solution with a, b ≥ 0 then has a = 0 or b = 0. Solve for a alone and for b alone, and take the better one.
    single = (columns @ root) / (columns * columns).sum(axis=1)
    only_a, only_b = (float(single[0]), 0.0), (0.0, float(single[1]))

    def cost(pair: tuple[float, float]) -> float:
        return float((weights * ((pair[0] + pair[1] * x) / y - 1) ** 2).sum())

    return min(only_a, only_b, key=cost)


def fit_collectives(collectives: Iterable[Collective]) -> tuple[CollectiveFit, ...]:
    """Return one fit per operation, transport and number of ranks.

    A transport has no fit if fewer than two sizes were measured, or if its times do not show a bandwidth.
    """
    groups: dict[tuple[str, str, int], list[Collective]] = {}
    for measured in collectives:
        if measured.strategy.endswith(QUEUED):
            continue  # measured only for small messages, which do not show a bandwidth
        groups.setdefault((measured.operation, measured.strategy, measured.ranks), []).append(measured)
    fits = []
    for (operation, strategy, ranks), members in groups.items():
        factor = bus_factor(operation, ranks)
        sizes = [float(member.bytes) for member in members]
        times = [member.time_us for member in members]
        if factor is None or len(set(sizes)) < 2:
            continue  # an operation without a bus factor has no bandwidth
        latency_us, per_byte = fit_latency_and_bandwidth(sizes, times)
        if per_byte * max(sizes) <= latency_us:
            continue  # latency dominates all sizes, so no size shows a bandwidth
        errors = [abs((latency_us + per_byte * n) / t - 1) for n, t in zip(sizes, times, strict=True)]
        if errors[sizes.index(max(sizes))] > 2 * _BOUND:
            continue  # the largest size, which shows the bandwidth best, lost more than half of its weight
        fits.append(
            CollectiveFit(
                operation=operation,
                strategy=strategy,
                ranks=ranks,
                latency_us=latency_us,
                busbw_gb_per_s=factor / per_byte / 1e3,  # bytes per µs are 1e6 bytes/s
                worst_relative_error=max(errors),
            )
        )
    return tuple(fits)
