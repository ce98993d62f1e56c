"""Test that unprofiled steps continue until the mean is precise enough or the time limit is reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.training.session.step_counts import TimingTarget, downsampled, first_block, next_block

ASKED = TimingTarget(accuracy=0.01, seconds=10.0)


def test_steady_steps_reach_target_at_once() -> None:
    assert next_block([[20.0, 20.01] * 10], ASKED) == 0


def test_scattered_steps_need_more_steps() -> None:
    assert next_block([[15.0, 25.0, 18.0, 31.0] * 5], ASKED) > 0


def test_least_precise_rank_decides_when_timing_ends() -> None:
    assert next_block([[20.0, 20.01] * 10, [15.0, 25.0, 18.0, 31.0] * 5], ASKED) > 0


@given(st.lists(st.floats(0.1, 3000), min_size=2, max_size=60))
def test_next_block_fits_remaining_time(steps: list[float]) -> None:
    more = next_block([steps], ASKED)
    if sum(steps) >= 1e3 * ASKED.seconds:
        assert more == 0
    mean = sum(steps) / len(steps)
    assert more == 0 or more * mean <= 1e3 * ASKED.seconds - sum(steps) + 1e-6


@given(st.floats(0.01, 1e5))
def test_first_block_fits_allowed_time(step_ms: float) -> None:
    steps = first_block(step_ms, ASKED)
    assert steps >= 2
    assert steps == 2 or steps * step_ms <= 1e3 * ASKED.seconds + step_ms


def test_long_series_are_downsampled() -> None:
    falling = [float(2000 - i) for i in range(2000)]
    short = downsampled(falling)
    assert len(short) == 100
    assert list(short) == sorted(short, reverse=True)
    assert downsampled([1.0, 2.0]) == [1.0, 2.0]
