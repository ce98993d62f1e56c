"""Test that the grid of a large job comes from all of its ranks, although only a sample of the ranks is simulated."""

from __future__ import annotations

from unittest import mock

from msgspec.structs import replace

from gpudiag.analysis.attribution import representatives
from gpudiag.app.stages import analysis_of_traces
from gpudiag.model.analysis import Analysis
from tests.analysis.diagnosis.rule_examples.pipelines import pipeline

STAGES, REPLICAS, SLOW = 2, 8, 5


def test_sample_of_a_pipeline_changes_only_what_is_simulated() -> None:
    traces = pipeline(STAGES, REPLICAS, microbatches=4, pace={SLOW: 1.5}, steps=4, scatter=0.01).traces()
    whole = analysis_of_traces(traces, (), world_size=None, unused=()).analysis
    with mock.patch.multiple(representatives, MOST_WHOLE=8, _CHOSEN=8, _MOST_PER_UNIT=2):
        sampled = analysis_of_traces(traces, (), world_size=None, unused=()).analysis
    assert whole.simulated_ranks == ()
    assert SLOW in sampled.simulated_ranks
    assert len(sampled.simulated_ranks) < STAGES * REPLICAS
    assert sampled.parallelism is not None
    assert [place.rank for place in sampled.parallelism.ranks] == list(range(STAGES * REPLICAS))
    assert _without_simulated(sampled) == _without_simulated(whole)


def _without_simulated(analysis: Analysis) -> object:
    grid = analysis.parallelism
    assert grid is not None
    assert grid.pipeline is not None
    shape = replace(grid.pipeline, bubble_ms=None, bubble_percent=None)
    return replace(grid, pipeline=shape, imbalance=None)
