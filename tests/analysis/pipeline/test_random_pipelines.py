"""Test the analysis of pipelines on random jobs with known stragglers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.analysis.pipeline.graph import build_graph, transfer_durations
from gpudiag.analysis.pipeline.grid import arrange
from gpudiag.analysis.pipeline.simulate import simulate
from tests.analysis.pipeline.judge import judged
from tests.analysis.pipeline.random_pipelines import Pipeline, draw, execute

SEEDS = st.integers(0, 2**31)
CLEAN = Pipeline(stages=4, data_ranks=3, microbatches=8, steps=5)


def test_random_pipelines_are_judged_right() -> None:
    wrong = {seed: result.wrong for seed in range(6) if (result := judged(draw(seed))).wrong}
    assert len(wrong) <= 1, wrong


@pytest.mark.apart
@pytest.mark.long
def test_95_percent_of_random_pipelines_are_judged_right() -> None:
    """At most 2 of 40 may be wrong; `benchmarks/random_pipelines.py` judges 200."""
    wrong = {seed: result.wrong for seed in range(5000, 5040) if (result := judged(draw(seed))).wrong}
    assert len(wrong) <= 2, wrong


@given(SEEDS)
@settings(max_examples=10)
def test_simulation_repeats_the_recorded_steps(seed: int) -> None:
    table, _ = execute(draw(seed))
    assert analyse_operations(table).replay_error_percent < 1.0


@given(SEEDS)
@settings(max_examples=10)
def test_transfers_are_not_longer_than_recorded_and_lengthen_no_step(seed: int) -> None:
    grid = arrange(execute(dataclasses.replace(draw(seed), clock_ms=0.0))[0])
    graph = build_graph(grid)
    durations = transfer_durations(grid, graph)
    assert (durations <= grid.durations_ms + 1e-9).all()
    assert (simulate(graph, durations).step_ms <= grid.step_ms + 0.01).all()


@given(SEEDS)
@settings(max_examples=10)
def test_every_operation_is_in_one_group_after_its_predecessors(seed: int) -> None:
    grid = arrange(execute(dataclasses.replace(draw(seed), steps=1))[0])
    graph = build_graph(grid)
    rows = [row for group in graph.groups for row in group.rows]
    assert sorted(rows) == list(range(len(grid.slots)))
    seen: set[int] = set()
    for group in graph.groups:
        assert all(earlier in seen for row in group.rows for earlier in graph.before[row])
        seen.update(group.rows)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (8, 16)])
def test_bubble_is_the_theoretical_share(schedule: str, stages: int, microbatches: int) -> None:
    pipeline = dataclasses.replace(
        CLEAN, schedule=schedule, stages=stages, microbatches=microbatches, transfer_ms=0.001, noise=0.0
    )
    bubble = analyse_operations(execute(pipeline)[0]).bubble
    assert bubble is not None
    assert bubble.theoretical_percent == pytest.approx(100 * (stages - 1) / (microbatches + stages - 1))
    assert bubble.percent == pytest.approx(bubble.theoretical_percent, abs=0.5)


def test_twice_as_many_microbatches_save_as_much_as_the_bubble_finding_predicts() -> None:
    few = dataclasses.replace(CLEAN, transfer_ms=0.001, noise=0.0)
    many = dataclasses.replace(few, microbatches=16, forward_ms=5.0, backward_ms=10.0)
    (table, step_ms), (_, faster_ms) = execute(few), execute(many)
    finding = next(finding for finding in analyse_operations(table).findings if finding.code == "pipeline-bubble")
    assert finding.recoverable_ms_per_step == pytest.approx(step_ms - faster_ms, rel=0.15)


def test_clean_job_has_no_straggler() -> None:
    analysis = analyse_operations(execute(CLEAN)[0])
    assert [finding.code for finding in analysis.findings] == ["pipeline-bubble"]
    assert analysis.imbalance.slowdown == pytest.approx(1.0, abs=0.05)


def test_slow_worker_is_named() -> None:
    analysis = analyse_operations(execute(dataclasses.replace(CLEAN, rank=(2, 1, 1.8)))[0])
    first = analysis.findings[0]
    assert (first.code, first.cause, first.ranks, first.severity) == ("straggler", "rank", (7,), "critical")


@pytest.mark.parametrize("data_ranks", [1, 2, 3])
def test_long_stage_is_named(data_ranks: int) -> None:
    pipeline = dataclasses.replace(CLEAN, data_ranks=data_ranks, stage=(1.0, 1.6, 1.0, 1.0))
    first = analyse_operations(execute(pipeline)[0]).findings[0]
    assert (first.cause, first.ranks) == ("stage", tuple(range(data_ranks, 2 * data_ranks)))
    assert first.confidence == ("low" if data_ranks == 1 else "high")


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_uneven_sequences_are_named_also_without_a_pipeline(stages: int) -> None:
    analysis = analyse_operations(execute(dataclasses.replace(CLEAN, stages=stages, sequence=0.4))[0])
    stragglers = [finding.cause for finding in analysis.findings if finding.code == "straggler"]
    assert stragglers[0] == "sequence"
    assert analysis.sequence_correlation is not None
    assert analysis.sequence_correlation > 0.9


def test_slow_worker_without_a_pipeline_is_not_attributed_to_sequences() -> None:
    analysis = analyse_operations(execute(dataclasses.replace(CLEAN, stages=1, rank=(0, 1, 1.8)))[0])
    assert (analysis.findings[0].cause, analysis.findings[0].ranks) == ("rank", (1,))
    assert analysis.bubble is None
