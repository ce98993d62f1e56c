"""Test the fit of latency and bandwidth of a transport."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.machine.probes.fits import fit_collectives, fit_latency_and_bandwidth
from gpudiag.model.facts import Collective

SIZES = [float(1 << power) for power in range(10, 30)]
latencies = st.floats(0.5, 5000)
per_byte = st.floats(1e-6, 1e-1)  # µs per byte, from 1 TB/s down to 10 MB/s


@given(latencies, per_byte)
def test_fit_recovers_exact_times(a: float, b: float) -> None:
    fitted = fit_latency_and_bandwidth(SIZES, [a + b * size for size in SIZES])
    assert fitted[0] + fitted[1] * SIZES[0] == pytest.approx(a + b * SIZES[0], rel=1e-4)
    assert fitted[0] + fitted[1] * SIZES[-1] == pytest.approx(a + b * SIZES[-1], rel=1e-4)


@given(latencies, per_byte, st.integers(0, len(SIZES) - 1), st.floats(2, 20))
def test_one_outlier_does_not_change_the_fit(a: float, b: float, odd: int, by: float) -> None:
    times = [a + b * size for size in SIZES]
    times[odd] *= by
    fitted = fit_latency_and_bandwidth(SIZES, times)
    errors = sorted(
        abs((fitted[0] + fitted[1] * size) / time - 1)
        for i, (size, time) in enumerate(zip(SIZES, times, strict=True))
        if i != odd
    )
    assert errors[len(errors) // 2] < 0.05


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20), st.floats(0.1, 10))
def test_fit_is_non_negative_and_independent_of_units(times: list[float], scale: float) -> None:
    sizes = SIZES[: len(times)]
    a, b = fit_latency_and_bandwidth(sizes, times)
    assert a >= 0
    assert b >= 0
    again = fit_latency_and_bandwidth(sizes, [scale * time for time in times])
    assert again[0] + again[1] * sizes[-1] == pytest.approx(scale * (a + b * sizes[-1]), rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [1.0, float("nan")])],
)
def test_invalid_values_are_rejected(sizes: list[float], times: list[float]) -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        fit_latency_and_bandwidth(sizes, times)


def collective(size: int, time_us: float, strategy: str = "nccl") -> Collective:
    """Return an all-reduce of `size` bytes between four ranks that takes `time_us`."""
    return Collective(
        operation="all_reduce",
        strategy=strategy,
        ranks=4,
        bytes=size,
        time_us=time_us,
        algbw_gb_per_s=0,
        busbw_gb_per_s=0,
    )


def test_bus_bandwidth_by_the_convention_of_nccl_tests() -> None:
    # 256 MiB in 1180.8 µs over 4 ranks: 227.3 GB/s, times 2 x 3/4 is 341 GB/s on the bus.
    per_byte_us = 1.5 / 341e3
    (fit,) = fit_collectives([collective(1 << power, 19 + (1 << power) * per_byte_us) for power in range(10, 30)])
    assert fit.latency_us == pytest.approx(19, rel=1e-3)
    assert fit.busbw_gb_per_s == pytest.approx(341, rel=1e-3)
    assert fit.worst_relative_error < 1e-3


def test_each_transport_has_a_fit_unless_only_one_size_was_measured() -> None:
    fits = fit_collectives(
        [collective(1024, 10), collective(1 << 20, 20), collective(1024, 10, "gloo"), collective(1024, 9, "gloo")]
    )
    assert [fit.strategy for fit in fits] == ["nccl"]
    assert fit_collectives([collective(1024, 10), collective(1 << 20, 5)]) == ()


def test_no_bandwidth_if_latency_dominates_every_size() -> None:
    # The slope would give 2.78 GB/s, but the largest size, 1 MiB, reached 0.9 GB/s.
    times = [collective(1 << power, 1200 + (1 << power) * 1.5 / 2.78e3, "gloo") for power in (10, 16, 20)]
    assert fit_collectives(times) == ()
    assert fit_collectives([*times, collective(64 << 20, 1200 + (64 << 20) * 1.5 / 2.78e3, "gloo")])


def test_no_bandwidth_if_the_largest_size_does_not_fit() -> None:
    """On busy cores 0.96 GB/s at 1 MiB and 0.34 GB/s at 16 MiB were measured, from which the fit concluded 2.25
    GB/s."""
    times = {1 << 10: 847.0, 1 << 16: 648.0, 1 << 20: 1092.0, 1 << 24: 49345.0}
    assert fit_collectives([collective(size, time_us, "gloo") for size, time_us in times.items()]) == ()
