"""Test the verdict, a winner or a tie, on simulated turns with known step times."""

from __future__ import annotations

import io
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.app.recommend.verdict import from_predictions, judge
from gpudiag.errors import HardwareMissingError
from gpudiag.model.benchmarks.prediction import Candidate, Compute, Gradients, Prediction
from gpudiag.model.benchmarks.recommendation import Recommendation
from gpudiag.model.benchmarks.strategy_benchmark import NO_TIME, StrategyBenchmark, Turns
from gpudiag.report.terminal.recommendation import render_recommendation
from tests.examples import examples
from tests.report.consoles import console

NCCL, GLOO = Candidate(strategy="nccl"), Candidate(strategy="gloo")
HOST, ROUNDED = Candidate(strategy="cpu-reduce"), Candidate(strategy="cpu-reduce", compress="bf16")
ALONE, FSDP = Candidate(strategy="independent"), Candidate(strategy="fsdp")


def _benchmark(
    means: dict[Candidate, float], *, noise: float, drift: float = 0.0, rounds: int = 8
) -> StrategyBenchmark:
    """Make turns with mean step times `means` in ms.

    `noise` is the relative standard deviation of a round, and `drift` the relative increase per round of all means.
    """
    chance = random.Random(1)  # noqa: S311  # noise, not secrets
    turns = tuple(
        Turns(
            candidate=candidate,
            steps=10,
            round_ms=tuple(mean * (1 + noise * chance.gauss(0, 1)) * (1 + drift * number) for number in range(rounds)),
        )
        for candidate, mean in means.items()
    )
    predictions = tuple(
        Prediction(candidate=candidate, devices=4, step_ms=mean, exposed_ms=mean, reason="bytes over links")
        for candidate, mean in means.items()
    )
    return StrategyBenchmark(
        workload="vgg16",
        device_name="a GPU",
        devices=4,
        batch_size=64,
        p2p=True,
        peer_access=False,
        precision="tf32",
        memory_format="nchw",
        gradients=Gradients(
            sizes=(1 << 20,), compute=Compute(forward_ms=3, backward_ms=6, update_ms=1, step_ms=10), batch_size=64
        ),
        predictions=predictions,
        turns=turns,
    )


def test_clear_lead_wins_with_its_gain() -> None:
    recommendation = judge(_benchmark({ALONE: 10, NCCL: 20, HOST: 12}, noise=0.002))
    assert (recommendation.verdict, recommendation.recommended, recommendation.tied) == ("winner", "cpu-reduce", ())
    assert recommendation.gain is not None
    assert recommendation.gain.over == "nccl"
    assert recommendation.gain.ms == pytest.approx(8, rel=0.05)
    assert recommendation.gain.percent == pytest.approx(40, rel=0.05)
    assert recommendation.ceiling is not None
    assert recommendation.ceiling.percent_left == pytest.approx(100 * 2 / 12, rel=0.1)
    assert recommendation.flags == ("--strategy", "cpu-reduce")
    assert "CpuReduceHook" in recommendation.code


def test_difference_within_noise_is_a_tie_and_the_simplest_is_recommended() -> None:
    recommendation = judge(_benchmark({ALONE: 10, ROUNDED: 12.0, NCCL: 12.01}, noise=0.01))
    assert recommendation.verdict == "tie"
    assert set(recommendation.tied) == {"nccl", "cpu-reduce --compress bf16"}
    assert recommendation.recommended == "nccl"


def test_common_drift_does_not_change_the_verdict() -> None:
    """Every round is 5 % slower than the previous round; the candidates differ by 2 % in each round."""
    recommendation = judge(_benchmark({ALONE: 10, NCCL: 12.0, GLOO: 12.24}, noise=0.0005, drift=0.05))
    assert (recommendation.verdict, recommendation.recommended) == ("winner", "nccl")
    slower = next(row for row in recommendation.ranking if row.strategy == "gloo")
    assert slower.slower_percent == pytest.approx(2.0, abs=0.2)


def test_difference_below_half_a_percent_is_a_tie() -> None:
    assert judge(_benchmark({ALONE: 10, NCCL: 12.0, GLOO: 12.03}, noise=1e-5)).verdict == "tie"


def test_scattered_turns_are_noted() -> None:
    assert any("scattered" in note for note in judge(_benchmark({ALONE: 10, NCCL: 12, GLOO: 14}, noise=0.3)).notes)


def test_failed_candidate_is_listed_and_others_are_ranked() -> None:
    benchmark = _benchmark({ALONE: 10, NCCL: 12, HOST: 11}, noise=0.001)
    recommendation = judge(_replaced(benchmark, Turns(candidate=HOST, cannot="memory cannot be shared")))
    assert recommendation.recommended == "nccl"
    assert (
        next(row.cannot for row in recommendation.ranking if row.strategy == "cpu-reduce") == "memory cannot be shared"
    )


def test_rounded_gradients_are_noted() -> None:
    recommendation = judge(_benchmark({ALONE: 10, NCCL: 20, ROUNDED: 11}, noise=0.001))
    assert recommendation.recommended == "cpu-reduce --compress bf16"
    assert any("rounds gradients to bf16" in note for note in recommendation.notes)


def test_predictions_within_two_percent_tie() -> None:
    def verdict(*steps: float) -> str:
        made = [
            Prediction(candidate=candidate, devices=4, step_ms=step, exposed_ms=step, reason="r")
            for candidate, step in zip((NCCL, GLOO), steps, strict=True)
        ]
        return from_predictions(made, workload="w", devices=4, batch_size=None, p2p=True).verdict

    assert verdict(100.0, 101.0) == "tie"
    assert verdict(100.0, 103.0) == "winner"


def test_no_runnable_candidate_is_an_error() -> None:
    none = [Prediction(candidate=NCCL, devices=1, cannot="no GPU")]
    with pytest.raises(HardwareMissingError):
        from_predictions(none, workload="w", devices=1, batch_size=None, p2p=True)


@examples(30)
@given(st.lists(st.floats(1, 100), min_size=3, max_size=3), st.floats(0, 0.05))
def test_recommended_strategy_is_never_much_slower_than_the_fastest(means: list[float], noise: float) -> None:
    benchmark = _benchmark(dict(zip((NCCL, GLOO, HOST), means, strict=True)), noise=noise)
    recommendation = judge(benchmark)
    chosen = next(row for row in recommendation.ranking if row.strategy == recommendation.recommended)
    assert chosen.slower_percent is not None
    assert chosen.slower_ci95 is not None
    assert chosen.slower_ci95[0] <= 0.0 or chosen.slower_percent < 0.5


def _replaced(benchmark: StrategyBenchmark, instead: Turns) -> StrategyBenchmark:
    turns = tuple(instead if turn.candidate == instead.candidate else turn for turn in benchmark.turns)
    return msgspec.structs.replace(benchmark, turns=turns)


def _with_rounds(benchmark: StrategyBenchmark, candidate: Candidate, rounds: tuple[float, ...]) -> StrategyBenchmark:
    return _replaced(benchmark, Turns(candidate=candidate, round_ms=rounds, steps=10))


@pytest.mark.parametrize("width", [40, 60, 100])
def test_narrow_tables_drop_columns_without_truncating_figures(width: int) -> None:
    recommendation = judge(_benchmark({ALONE: 455.5, GLOO: 460.25, FSDP: 619.75, ROUNDED: 700}, noise=0.03))
    drawn = _drawn(recommendation, width)
    assert "…" not in drawn
    assert all(len(line) <= width for line in drawn.splitlines())
    assert all(row.step_words() in drawn for row in recommendation.ranking)


def _drawn(found: Recommendation, width: int = 120) -> str:
    target = console(width)
    render_recommendation(found, target)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def test_candidate_with_too_few_rounds_is_not_ranked_and_prevents_a_winner() -> None:
    """The mean of cpu-reduce is uncertain after two rounds of 9.0 and 14.9 ms. The rounds of NCCL scatter little."""
    benchmark = _benchmark({ALONE: 10, NCCL: 12.0, GLOO: 14.0, HOST: 12}, noise=0.002)
    recommendation = judge(_with_rounds(benchmark, HOST, (9.0, 14.9)))
    assert (recommendation.verdict, recommendation.recommended) == ("tie", "nccl")
    assert set(recommendation.tied) == {"nccl", "cpu-reduce"}
    assert [row.strategy for row in recommendation.ranking if row.unranked] == ["cpu-reduce"]
    assert any("not measured long enough" in note for note in recommendation.notes)


def test_scattered_usual_strategy_is_preferred_over_an_equally_fast_special_one() -> None:
    """The special strategy cpu-reduce has a precise mean of 2.11 ms, and NCCL has a mean of 2.26 ms ± 75 %."""
    benchmark = _benchmark({ALONE: 1.5, HOST: 2.11, NCCL: 2.12}, noise=0.01)
    recommendation = judge(_with_rounds(benchmark, NCCL, (1.7, 1.6, 4.7, 1.6, 1.7)))
    assert (recommendation.verdict, recommendation.recommended) == ("tie", "nccl")
    assert [row.strategy for row in recommendation.ranking if row.unranked] == ["nccl"]
    assert recommendation.gain is None
    assert recommendation.ceiling is not None
    assert recommendation.ceiling.percent_left is None
    assert recommendation.reason.startswith("nccl is the simplest; cpu-reduce (2.11 ± 0.0")
    assert "cannot be distinguished from it (about 2.26 ms)" in recommendation.reason
    assert "Cannot tell which is fastest: use nccl (possibly as fast: cpu-reduce)" in _drawn(recommendation)


def test_candidates_beyond_the_budget_are_noted() -> None:
    benchmark = _benchmark({ALONE: 10, GLOO: 12.0, HOST: 11, FSDP: 12}, noise=0.002)
    for candidate in (HOST, FSDP):
        benchmark = _replaced(benchmark, Turns(candidate=candidate, cannot=NO_TIME))
    recommendation = judge(benchmark)
    assert (recommendation.verdict, recommendation.recommended) == ("tie", "gloo")
    assert any(
        "too small for 3 strategies: measured gloo; left out cpu-reduce, fsdp" in note for note in recommendation.notes
    )
    assert "saves" not in _drawn(recommendation)


def test_two_rounds_print_no_interval() -> None:
    benchmark = _benchmark({ALONE: 10, GLOO: 12.0, FSDP: 11}, noise=0.0, rounds=2)
    recommendation = judge(_with_rounds(_with_rounds(benchmark, GLOO, (11.0, 13.0)), FSDP, (10.5, 11.5)))
    assert recommendation.recommended == "gloo"
    assert not any("scattered" in note for note in recommendation.notes)
    assert "about 12" in _drawn(recommendation)
    assert "±" not in _drawn(recommendation)


def test_fastest_is_recommended_if_no_special_strategy_is_steady() -> None:
    benchmark = _benchmark({ALONE: 10, HOST: 12.0, FSDP: 11}, noise=0.0, rounds=2)
    recommendation = judge(_with_rounds(_with_rounds(benchmark, HOST, (11.0, 13.0)), FSDP, (10.5, 11.5)))
    assert (recommendation.verdict, recommendation.recommended) == ("tie", "fsdp")
    assert "was the fastest measured" in recommendation.reason


@examples(30)
@given(st.lists(st.floats(100, 130), min_size=3, max_size=3), st.floats(0, 0.3), st.integers(2, 6))
def test_simplest_of_tied_candidates_is_recommended(means: list[float], noise: float, rounds: int) -> None:
    recommendation = judge(_benchmark(dict(zip((GLOO, HOST, FSDP), means, strict=True)), noise=noise, rounds=rounds))
    ranked = {row.strategy for row in recommendation.ranking if row.unranked is None}
    for plainer, special in (("gloo", "cpu-reduce"), ("gloo", "fsdp"), ("cpu-reduce", "fsdp")):
        if plainer in recommendation.tied and (plainer == "gloo" or plainer in ranked):
            assert recommendation.recommended != special


def test_scattered_but_clearly_slower_candidate_is_ranked() -> None:
    benchmark = _benchmark({ALONE: 10, NCCL: 12.0, GLOO: 40.0}, noise=0.002)
    recommendation = judge(_with_rounds(benchmark, GLOO, (30.0, 40.0, 50.0, 36.0, 44.0)))
    assert (recommendation.verdict, recommendation.recommended) == ("winner", "nccl")
    assert not any(row.unranked for row in recommendation.ranking)
