"""Test speedup, waterfall, fit and forecast with values computed by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.scaling import devices
from gpudiag.analysis.scaling.forecast import durations, fit, prospect
from gpudiag.analysis.scaling.speedup import with_speedups
from gpudiag.analysis.scaling.waterfall import measured_waterfall, waterfall
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import STEP_PARTS
from gpudiag.model.facts import Facts, Gpu, Host, Link
from gpudiag.report.scaling import words
from gpudiag.statistics import Estimate
from tests.app.scale.points import measured, parts


def test_efficiency_is_relative_to_one_device_of_the_same_curve() -> None:
    one, four = measured(1, 30.0), measured(4, 40.0)
    other = measured(1, 60.0, precision="fp32")
    by_id = {point.id: point for point in with_speedups([four, other, one])}
    assert by_id[four.id].baseline == one.id
    assert by_id[four.id].speedup == pytest.approx(3.0)
    assert by_id[four.id].efficiency == pytest.approx(0.75)
    low, high = by_id[four.id].efficiency_ci95 or (0, 0)
    assert high - low == pytest.approx(2 * 0.75 * 0.01 * 2**0.5, rel=0.01)


@pytest.mark.parametrize(
    "unlike",
    [{"batch_per_device": 32}, {"data": "loader"}, {"strategy": "gloo"}, {"mode": "strong"}, {"workload": "vgg16"}],
)
def test_different_jobs_give_no_speedup(unlike: dict[str, object]) -> None:
    four = with_speedups([measured(4, 40.0), measured(1, 30.0, **unlike)])[0]
    assert four.speedup is None
    assert four.baseline is None


def test_strong_scaling_compares_steps_with_the_same_samples() -> None:
    one = measured(1, 40.0, mode="strong", batch_per_device=256, global_batch=256)
    four = measured(4, 12.5, mode="strong", batch_per_device=64, global_batch=256)
    point = with_speedups([one, four])[1]
    assert point.speedup == pytest.approx(3.2)
    assert point.efficiency == pytest.approx(0.8)


def test_waterfall_attributes_lost_efficiency_to_parts() -> None:
    one, four = measured(1, 30.0), measured(4, 40.0)
    fall = waterfall(four, one, parts(compute=30.5, disturbed=0.5, exposed_transfer=7, waiting=2), parts(compute=30))
    lost = {loss.name: loss.percent for loss in fall.losses}
    assert fall.reached_percent == pytest.approx(75)
    assert lost["slower_compute"] == pytest.approx(2.5)
    assert lost["exposed_transfer"] == pytest.approx(17.5)
    assert lost["waiting"] == pytest.approx(5)
    assert lost["rest"] == pytest.approx(0, abs=1e-9)
    assert fall.notes == ()


def test_simulation_error_is_the_rest() -> None:
    fall = waterfall(measured(4, 40.0), measured(1, 30.0), parts(compute=38), parts(compute=30))
    assert {loss.name: loss.percent for loss in fall.losses}["rest"] == pytest.approx(5)
    assert any("5.0 %" in note for note in fall.notes)


def test_strong_scaling_compares_with_the_share_of_the_work() -> None:
    one = measured(1, 40.0, mode="strong", batch_per_device=256, global_batch=256)
    four = measured(4, 12.5, mode="strong", batch_per_device=64, global_batch=256)
    fall = waterfall(four, one, parts(compute=10.5, waiting=2), parts(compute=40))
    lost = {loss.name: loss.percent for loss in fall.losses}
    assert fall.reached_percent == pytest.approx(80)
    assert lost["slower_compute"] == pytest.approx(4)
    assert lost["waiting"] == pytest.approx(16)


def test_note_compares_with_the_job_without_communication() -> None:
    apart = measured(4, 31.0, strategy="independent"), measured(1, 30.0, strategy="independent")
    fall = waterfall(measured(4, 40.0), measured(1, 30.0), parts(compute=40), parts(compute=30), apart)
    assert any("4 devices reach 96.8 %" in note for note in fall.notes)


def test_waterfall_without_recorded_steps() -> None:
    apart = measured(4, 31.0, strategy="independent"), measured(1, 29.0, strategy="independent")
    fall = measured_waterfall(measured(4, 40.0), measured(1, 30.0), apart)
    lost = {loss.name: loss.percent for loss in fall.losses}
    assert lost == {"together": pytest.approx(5), "exchange": pytest.approx(20)}
    assert fall.reached_percent + sum(lost.values()) == pytest.approx(100)


length = st.floats(0, 50)


@given(
    st.tuples(*[length] * len(STEP_PARTS)),
    st.tuples(*[length] * len(STEP_PARTS)),
    st.floats(1, 200),
    st.floats(1, 200),
    st.sampled_from([1, 2, 4, 64]),
)
def test_waterfall_parts_sum_to_the_step(
    several: tuple[float, ...], single: tuple[float, ...], step_ms: float, one_ms: float, count: int
) -> None:
    fall = waterfall(
        measured(count, step_ms),
        measured(1, one_ms),
        parts(step_ms, **dict(zip(STEP_PARTS, several, strict=True))),
        parts(one_ms, **dict(zip(STEP_PARTS, single, strict=True))),
    )
    total = fall.reached_percent + sum(loss.percent for loss in fall.losses)
    assert total == pytest.approx(100, abs=1e-6)
    left = fall.ideal_samples_per_s - sum(loss.samples_per_s for loss in fall.losses)
    assert left == pytest.approx(fall.reached_samples_per_s, rel=1e-6)


def known(step_ms: float) -> Estimate:
    return Estimate(value=step_ms, low=0.998 * step_ms, high=1.002 * step_ms)


def test_fit_recovers_its_terms() -> None:
    steps = {n: known(30 + 4 * 2 * (n - 1) / n + 0.2 * (n - 1)) for n in (1, 2, 4, 8, 16)}
    fitted = fit(steps)
    assert fitted.cost.compute_ms == pytest.approx(30, rel=0.01)
    assert fitted.cost.transfer_ms == pytest.approx(4, rel=0.1)
    assert fitted.cost.latency_ms == pytest.approx(0.2, rel=0.15)
    assert fitted.cost.growth == "n - 1"
    assert fitted.degrees == 2
    low, high = fitted.range_of(lambda cost: cost.step_ms(32))
    assert low <= 30 + 4 * 2 * 31 / 32 + 0.2 * 31 <= high


@given(st.floats(5, 100), st.floats(0, 50), st.floats(0, 5))
def test_costs_are_never_negative_and_never_fall(compute: float, transfer: float, latency: float) -> None:
    steps = {n: known(compute + transfer * 2 * (n - 1) / n + latency * (n - 1)) for n in (1, 2, 4)}
    cost = fit(steps).cost
    assert min(cost.compute_ms, cost.transfer_ms, cost.latency_ms) >= 0
    assert cost.step_ms(8) >= cost.step_ms(4) - 1e-9


@pytest.mark.parametrize("freedom", [3.0, 9.0, math.inf])
def test_forecast_range_at_a_measured_size_is_its_interval(freedom: float) -> None:
    steps = {
        1: Estimate(value=30, low=29.9, high=30.1, freedom=freedom),
        2: Estimate(value=40, low=36, high=44, freedom=freedom),
    }
    low, high = fit(steps).range_of(lambda cost: cost.step_ms(2))
    # Ten of 400 draws are outside each end of the interval.
    assert low == pytest.approx(36, abs=1.2)
    assert high == pytest.approx(44, abs=1.2)


def test_too_few_sizes_give_no_fit() -> None:
    with pytest.raises(ValueError, match="one device"):
        fit({2: known(10), 4: known(12)})
    assert prospect([measured(1, 30.0)], None, None) is None


def test_forecast_within_the_machine() -> None:
    outlook = prospect([measured(1, 30.0), measured(2, 34.0), measured(4, 36.0)], None, None)
    assert outlook is not None
    assert [forecast.devices for forecast in outlook.forecasts] == [8, 16, 32]
    for row in outlook.forecasts:
        assert row.efficiency.low <= row.efficiency.value <= row.efficiency.high <= 1
    assert outlook.forecasts[0].efficiency.value == pytest.approx(30 / 37, rel=0.03)


def test_forecast_over_a_network_ranges_from_no_overlap_to_full_overlap() -> None:
    # Between many machines, gradients of 100 MB take 20 ms at 10 GB/s. With full overlap, backward hides all 20 ms.
    outlook = prospect([measured(1, 30.0), measured(2, 30.0), measured(4, 30.0)], Network(gb_per_s=10.0), 0.5)
    assert outlook is not None
    last = outlook.forecasts[-1]
    assert last.devices == 4096
    assert last.efficiency.high > 0.97
    assert last.efficiency.low < 30 / 50
    values = [forecast.efficiency.value for forecast in outlook.forecasts]
    assert values == sorted(values, reverse=True)
    assert "10 GB/s" in last.network


def test_durations_count_samples_and_name_the_batch() -> None:
    (one,) = durations([measured(4, 40.0)], Wanted(samples=64e6))
    assert one.iterations == pytest.approx(64e6 / 256)
    assert one.hours == pytest.approx(64e6 / 6400 / 3600)


def test_voxels_are_counted_once() -> None:
    """8.1 teravoxels at 8.8 million voxels per second take 256 hours."""
    point = measured(1, 1000.0, batch_per_device=1, samples_per_s=1.0)
    (one,) = durations([point], Wanted(voxels=8.1e12, voxels_per_sample={"resnet50": 8_800_000}))
    assert one.hours == pytest.approx(255.7, abs=0.1)
    written = msgspec.structs.replace(point, voxels_per_sample=4_400_000.0, mvox_per_s=8.8)
    (one,) = durations([written, point], Wanted(voxels=8.1e12))
    assert one.hours == pytest.approx(255.7, abs=0.1)
    assert one.samples == pytest.approx(8.1e12 / 4.4e6)
    assert "at 8.80 Mvox/s" in words.duration_words(one, written)


def test_iterations_on_several_devices_train_more_samples() -> None:
    one, four = durations([measured(1, 30.0), measured(4, 40.0)], Wanted(iterations=1e5))
    assert (one.iterations, four.iterations) == (1e5, 1e5)
    assert one.hours == pytest.approx(1e5 * 0.03 / 3600)
    assert one.per_minute == pytest.approx(2000)
    assert one.like_one_device_hours is None
    assert four.samples == 4 * one.samples
    assert four.hours == pytest.approx(1e5 * 0.04 / 3600)
    assert four.like_one_device_hours == pytest.approx(four.hours / 4)
    assert "4 times the samples" in words.duration_words(four, measured(4, 40.0))
    assert "times the samples" not in words.duration_words(one, measured(1, 30.0))
    strong = measured(4, 10.0, mode="strong", global_batch=64, batch_per_device=16)
    assert durations([strong], Wanted(iterations=1e5))[0].like_one_device_hours is None


def test_odd_gpu_is_named_instead_of_its_pair() -> None:
    singles = [
        measured(1, ms, strategy="independent", device_indices=(i,), alone=True)
        for i, ms in enumerate((30.0, 40.0, 30.0, 30.0))
    ]
    slow, fast = (measured(2, ms, device_indices=indices) for ms, indices in ((40.0, (0, 1)), (30.3, (2, 3))))
    lone = devices.alone(singles, ("H200",) * 4)
    assert [gpu.index for gpu in lone if gpu.odd] == [1]
    facts = Facts(
        host=Host(),
        gpus=tuple(Gpu(index=i, name="H200") for i in range(4)),
        links=(Link(a=0, b=1, kind="PIX"), Link(a=2, b=3, kind="PHB")),
    )
    pairs = {pair.link: pair for pair in devices.pairs([*singles, slow, fast], facts)}
    # The efficiency of the pair with the slow GPU is relative to its two GPUs alone, because the faster GPU waits.
    assert pairs["PIX"].efficiency == pytest.approx(3200 / (64e3 / 30 + 64e3 / 40))
    assert pairs["PHB"].efficiency == pytest.approx(30 / 30.3)
    assert [link.link for link in devices.by_link(pairs.values())] == ["PHB", "PIX"]


def test_a_single_gpu_is_not_compared() -> None:
    assert devices.alone([measured(1, 30.0)], ()) == ()
    broken = msgspec.structs.replace(measured(1, 30.0), alone=True, status="failed", samples_per_s=None, ci95=None)
    assert devices.alone([broken], ()) == ()
