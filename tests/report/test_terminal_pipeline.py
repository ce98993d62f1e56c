"""Test the terminal report of a pipeline-parallel job."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.model.analysis import Validity
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis
from gpudiag.report.terminal.pipeline import render_pipeline
from tests.analysis.pipeline.random_pipelines import Pipeline, execute
from tests.report.consoles import console

SLOW_WORKER = Pipeline(stages=4, data_ranks=3, microbatches=8, steps=5, rank=(2, 1, 1.8), noise=0.0)
LONG_STAGE = Pipeline(stages=4, data_ranks=12, microbatches=8, steps=5, stage=(1.0, 1.0, 1.0, 1.5), noise=0.0)
SEQUENCES = Pipeline(stages=2, data_ranks=4, microbatches=8, steps=5, sequence=0.4, noise=0.0)


def drawn(analysis: PipelineAnalysis, width: int, *, all_ranks: bool = False, full: bool = False) -> str:
    on = console(width)
    render_pipeline(analysis, on, all_ranks=all_ranks, full=full)
    return on.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def analysed(pipeline: Pipeline) -> PipelineAnalysis:
    return analyse_operations(execute(pipeline)[0])


@pytest.mark.parametrize("width", [40, 80, 120])
def test_report_of_a_slow_worker_equals_its_golden(width: int, golden: Callable[[str, str], None]) -> None:
    output = drawn(analysed(SLOW_WORKER), width)
    assert max(map(len, output.splitlines())) <= width
    golden(f"pipeline-rank-{width}.txt", output)


def test_full_report_of_a_long_stage_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    golden("pipeline-stage-full.txt", drawn(analysed(LONG_STAGE), 100, all_ranks=True, full=True))


def test_report_of_uneven_sequences_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    golden("pipeline-sequence.txt", drawn(analysed(SEQUENCES), 100))


def test_text_of_the_file_cannot_control_the_terminal() -> None:
    analysis = msgspec.structs.replace(
        analysed(SLOW_WORKER),
        source="a\x1b[31m\n[bold]b",
        validity=(Validity(code="unexplained", message="\x1b]0;title\x07"),),
    )
    output = drawn(analysis, 100)
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]b" in output


def test_report_of_a_clean_job_says_that_no_cause_was_found() -> None:
    clean = Pipeline(stages=1, data_ranks=2, microbatches=8, steps=5, noise=0.001)
    output = drawn(analysed(clean), 100)
    assert output.startswith("Data-parallel job, dp 2")
    assert "No cause costs 1 % of the step." in output
