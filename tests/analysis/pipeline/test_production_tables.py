"""Test the analysis of three production jobs against the results that ByteDance-Seed/StragglerAnalysis publishes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis
from gpudiag.trace.operation_table import read_operation_table

pytest.importorskip("pyarrow", reason="needs gpudiag[tables]")

TABLES = Path(__file__).parents[2] / "traces" / "pipelines"
#: Job → published results: slowdown, cause, ranks, data-parallel size, pipeline size, microbatches, ranks per worker.
PUBLISHED = {
    "AR": (1.973, "rank", (0,), 4, 4, 32, 4),
    "ST": (1.179, "stage", (6, 7), 2, 4, 4, 1),
    "SE": (1.537, "sequence", (), 32, 2, 8, 2),
}


@cache
def analysis_of(name: str) -> PipelineAnalysis:
    return analyse_operations(read_operation_table(TABLES / f"{name}.parquet"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_slowdown_is_as_published(name: str) -> None:
    assert analysis_of(name).imbalance.slowdown == pytest.approx(PUBLISHED[name][0], rel=0.02)


@pytest.mark.parametrize("name", PUBLISHED)
def test_first_finding_has_the_published_cause(name: str) -> None:
    analysis = analysis_of(name)
    first = analysis.findings[0]
    assert (first.code, first.cause, first.ranks) == ("straggler", *PUBLISHED[name][1:3])
    assert max(analysis.imbalance.by.items(), key=lambda item: item[1].saved_ms)[0] == first.cause
    assert first.advice


@pytest.mark.parametrize("name", PUBLISHED)
def test_simulated_steps_equal_recorded_steps(name: str) -> None:
    assert analysis_of(name).replay_error_percent < 1.0


@pytest.mark.parametrize("name", PUBLISHED)
def test_grid_is_found(name: str) -> None:
    grid = analysis_of(name).grid
    assert (grid.data, grid.pipeline, grid.microbatches, grid.ranks_per_worker) == PUBLISHED[name][3:]
    assert grid.steps_analysed == grid.steps_recorded


@pytest.mark.parametrize("name", PUBLISHED)
def test_bubble_of_the_ideal_step_equals_theory(name: str) -> None:
    bubble = analysis_of(name).bubble
    assert bubble is not None
    assert bubble.percent == pytest.approx(bubble.theoretical_percent, rel=0.15)
    assert "pipeline-bubble" in {finding.code for finding in analysis_of(name).findings}
