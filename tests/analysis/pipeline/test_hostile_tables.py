"""Test that every table of operations is analysed or refused, without other errors."""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.errors import UnreadableInputError
from gpudiag.model.parallelism.operations import OPERATION_KINDS
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis
from gpudiag.model.run_directory import encode_json
from gpudiag.report.terminal.pipeline import render_pipeline
from tests.analysis.pipeline.random_pipelines import Pipeline, execute
from tests.report.consoles import console

TABLE = execute(Pipeline(stages=3, data_ranks=2, microbatches=3, steps=2))[0]
#: Values that each column may have.
RANGES = {
    "step": (0, 3),
    "data_rank": (0, 3),
    "stage": (0, 4),
    "rank": (0, 2**20),
    "kind": (0, len(OPERATION_KINDS) - 1),
    "start_ns": (-(10**18), 10**18),
    "duration_ns": (0, 10**15),
    "microbatch": (-1, 2**20),
    "chunk": (-1, 2**20),
}


def check(**changed: np.ndarray) -> None:
    with contextlib.suppress(UnreadableInputError):
        analysis = analyse_operations(msgspec.structs.replace(TABLE, **changed))
        assert msgspec.json.decode(encode_json(analysis), type=PipelineAnalysis).grid == analysis.grid
        render_pipeline(analysis, console(60), all_ranks=True, full=True)


@given(st.sampled_from(sorted(RANGES)), st.data())
def test_changed_cells_are_analysed_or_refused(column: str, data: st.DataObject) -> None:
    low, high = RANGES[column]
    values = getattr(TABLE, column).copy()
    for row in data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=5)):
        values[row] = data.draw(st.integers(low, high))
    check(**{column: values})


@given(st.sampled_from(sorted(RANGES)), st.data())
def test_constant_columns_are_analysed_or_refused(column: str, data: st.DataObject) -> None:
    low, high = RANGES[column]
    check(**{column: np.full(len(TABLE), data.draw(st.sampled_from([low, 0, 1, high])), np.int64)})


@settings(suppress_health_check=[HealthCheck.large_base_example, HealthCheck.too_slow])
@given(st.lists(st.booleans(), min_size=len(TABLE), max_size=len(TABLE)))
def test_missing_rows_are_analysed_or_refused(kept: list[bool]) -> None:
    keep = np.array(kept)
    check(**{name: getattr(TABLE, name)[keep] for name in RANGES})
