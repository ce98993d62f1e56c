"""Test convergence of step times of any length, with any noise."""

from __future__ import annotations

import random
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.training.attach.attached_session import suggest_options
from gpudiag.training.session import step_counts
from tests.examples import examples


def steps_until_converged(step_ms: list[float]) -> int | None:
    """Return the number of steps after which a session reports convergence, or None if it never does."""
    known = step_ms[1 : step_counts.FIRST_CHECK_STEPS]
    position = step_counts.FIRST_CHECK_STEPS
    while True:
        block = step_counts.block_length(statistics.median(known[-8:]))
        if step_counts.has_converged(known, block):
            return position
        more = step_counts.steps_to_next_check(known)
        if position + more > len(step_ms):
            return None
        known += step_ms[position : position + more]
        position += more


def noisy(level: float, count: int, *, sigma: float, seed: int = 0) -> list[float]:
    source = random.Random(seed)  # noqa: S311 # noise
    return [level * max(0.2, source.gauss(1, sigma)) for _ in range(count)]


@pytest.mark.parametrize("level", [0.2, 2.0, 30.0, 400.0, 5000.0])
def test_constant_series_converges_soon_after_slow_first_step(level: float) -> None:
    converged = steps_until_converged([100 * level, *noisy(level, 400, sigma=0.005)])
    assert converged is not None
    assert converged <= step_counts.FIRST_CHECK_STEPS + 3 * step_counts.block_length(level)


@pytest.mark.parametrize("level", [2.0, 30.0, 400.0])
@pytest.mark.parametrize("seed", range(5))
def test_noisy_series_converges(level: float, seed: int) -> None:
    converged = steps_until_converged([9 * level, *noisy(level, 600, sigma=0.15, seed=seed)])
    assert converged is not None
    assert converged < 400


def test_autotuning_steps_belong_to_warm_up() -> None:
    # cuDNN tries algorithms and then the clocks rise, as in the first steps of ResNet-50 on a GPU.
    falling = [2300.0, 180.0, 95.0, 60.0, 48.0, 41.0, 37.0, 34.5, 33.0, 32.0, 31.5, 31.2]
    converged = steps_until_converged([*falling, *noisy(31.0, 300, sigma=0.004)])
    assert converged is not None
    assert converged >= len(falling) + step_counts.block_length(31.0)


def test_second_compilation_belongs_to_warm_up() -> None:
    # torch.compile compiles again when a shape changes for the first time.
    series = [9000.0, 20.0, 21.0, 20.0, 8000.0, *noisy(12.0, 300, sigma=0.01)]
    converged = steps_until_converged(series)
    assert converged is not None
    assert converged > 5 + step_counts.block_length(12.0)


def test_falling_series_never_converges() -> None:
    assert steps_until_converged([100.0 * 0.99**step for step in range(300)]) is None


def test_single_slow_step_is_no_trend() -> None:
    series = noisy(30.0, 60, sigma=0.005)
    series[40] = 900.0
    assert not step_counts.has_trend(series)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=4, max_size=60),
    st.sampled_from([1e-3, 0.1, 7.0, 1e4]),
    st.integers(2, 20),
)
def test_convergence_depends_on_ratios_only(series: list[float], factor: float, block: int) -> None:
    scaled = [value * factor for value in series]
    # At almost equal values rounding may change the result. Then `nudged` differs too, and either result is right.
    nudged = [value * (1 + 1e-9) for value in scaled]
    answers = {step_counts.has_converged(variant, block) for variant in (scaled, nudged)}
    assert step_counts.has_converged(series, block) in answers or len(answers) == 2


@given(st.floats(1e-3, 1e5), st.integers(2, 50), st.integers(0, 10))
def test_equal_steps_converge_after_two_blocks(level: float, block: int, more: int) -> None:
    assert not step_counts.has_converged([level] * (2 * block - 1), block)
    assert step_counts.has_converged([level] * (2 * block + more), block)


@given(st.lists(st.floats(1.0, 100.0), min_size=4, max_size=40))
def test_trend_is_symmetric_in_time(series: list[float]) -> None:
    assert step_counts.has_trend(series) == step_counts.has_trend(series[::-1])


@examples(50)
@given(st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=200))
def test_steps_to_next_check_are_bounded(series: list[float]) -> None:
    assert 3 <= step_counts.steps_to_next_check(series) <= 100


@given(st.floats(0, 1e6))
def test_block_and_unprofiled_steps_are_bounded(step_ms: float) -> None:
    assert 3 <= step_counts.block_length(step_ms) <= 50
    assert 10 <= step_counts.default_unprofiled_steps(step_ms) <= 100


@given(st.floats(0, 1e6), st.integers(1, 10_000))
def test_line_steps_are_bounded(step_ms: float, unprofiled: int) -> None:
    steps = step_counts.line_steps(step_ms, unprofiled)
    assert 3 <= steps <= 30
    assert steps <= max(3, unprofiled // 3)
    assert steps <= step_counts.line_steps(0.0, unprofiled)
    assert steps <= 6 or steps * step_ms <= 1000 + step_ms / 2


@pytest.mark.parametrize(
    ("step_ms", "unprofiled", "steps"), [(0.1, 100, 30), (50, 60, 20), (300, 10, 3), (300, 30, 6), (1, 1, 3)]
)
def test_line_steps_take_about_a_second(step_ms: float, unprofiled: int, steps: int) -> None:
    assert step_counts.line_steps(step_ms, unprofiled) == steps


@given(st.integers(0, 200), st.integers(0, 2), st.booleans())
def test_suggested_arguments_fit_the_loop(ran: int, run_in: int, lines: bool) -> None:
    for suggest, active in ((step_counts.suggest_arguments, 3), (suggest_options, step_counts.ACTIVE_STEPS)):
        said = suggest(ran, 1, at_least=False, run_in=run_in, lines=lines)
        arguments = re.search(r"warmup[= ](\d+),? (?:--)?steps[= ](\d+)", said)
        others = run_in + step_counts.recording_steps(active)
        if arguments is None:
            assert ran < step_counts.fewest_steps(lines=lines) + others + (suggest is suggest_options)
            continue
        warmup, unprofiled = map(int, arguments.groups())
        assert min(warmup, unprofiled) >= 1
        assert warmup + unprofiled + lines * step_counts.line_steps(0.0, unprofiled) + others <= ran
