"""Test how incomplete and contradictory tables of operations are treated."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.analysis.pipeline.grid import arrange
from gpudiag.errors import UnreadableInputError
from gpudiag.model.parallelism.operations import (
    BACKWARD_RECEIVE,
    FORWARD,
    FORWARD_RECEIVE,
    KIND_CODES,
    Integers,
    OperationTable,
)
from tests.analysis.pipeline.random_pipelines import Pipeline, execute

JOB = Pipeline(stages=3, data_ranks=2, microbatches=4, steps=4)
COLUMNS = ("step", "data_rank", "stage", "rank", "kind", "start_ns", "duration_ns", "microbatch", "chunk")


def table() -> OperationTable:
    return execute(JOB)[0]


def rows_where(whole: OperationTable, keep: np.ndarray) -> OperationTable:
    return msgspec.structs.replace(whole, **{name: getattr(whole, name)[keep] for name in COLUMNS})


def test_grid_slots_contain_the_times_of_all_steps() -> None:
    grid = arrange(table())
    assert grid.starts_ms.shape == grid.durations_ms.shape == (len(grid.slots), 4, 2)
    assert (grid.stages, grid.microbatches, grid.chunks_per_stage) == (3, 4, 1)
    assert grid.ranks.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert grid.starts_ms.min() == 0


def test_incomplete_steps_are_left_out_and_reported() -> None:
    whole = table()
    lost = np.flatnonzero((whole.step == 2) & (whole.kind == KIND_CODES[FORWARD]))[0]
    analysis = analyse_operations(rows_where(whole, np.arange(len(whole)) != lost))
    assert (analysis.grid.steps_recorded, analysis.grid.steps_analysed) == (4, 3)
    assert [warning.code for warning in analysis.validity] == ["different-steps"]


def test_step_without_one_data_rank_is_left_out() -> None:
    whole = table()
    assert arrange(rows_where(whole, (whole.step != 1) | (whole.data_rank != 1))).starts_ms.shape[1] == 3


def test_microbatches_and_chunks_may_be_unknown() -> None:
    whole = table()
    unknown: Integers = np.full(len(whole), -1, np.int64)
    analysis = analyse_operations(msgspec.structs.replace(whole, microbatch=unknown, chunk=unknown))
    assert analysis.grid == analyse_operations(whole).grid
    assert analysis.findings == analyse_operations(whole).findings


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda whole: rows_where(whole, whole.step < 0), "stages are not numbered"),
        (lambda whole: rows_where(whole, whole.stage > 0), "stages are not numbered"),
        (lambda whole: rows_where(whole, whole.step != whole.data_rank), "same operations"),
        (lambda whole: rows_where(whole, whole.kind != KIND_CODES[FORWARD]), "no forward computations"),
        (lambda whole: rows_where(whole, whole.kind != KIND_CODES[FORWARD_RECEIVE]), "forward-recv for"),
        (
            lambda whole: rows_where(whole, (whole.kind != KIND_CODES[BACKWARD_RECEIVE]) | (whole.step != 0)),
            None,
        ),
    ],
)
def test_broken_tables_are_refused_with_a_reason(
    broken: Callable[[OperationTable], OperationTable], message: str | None
) -> None:
    whole = table()
    if message is None:
        assert analyse_operations(broken(whole)).grid.steps_analysed == 3
        return
    if message == "same operations":
        whole = rows_where(whole, whole.step < 2)
    with pytest.raises(UnreadableInputError, match=message):
        analyse_operations(broken(whole))


def test_receives_that_end_after_their_computation_are_a_contradiction() -> None:
    whole = table()
    receives = whole.kind == KIND_CODES[FORWARD_RECEIVE]
    late = np.where(receives, whole.start_ns + 10**12, whole.start_ns)
    with pytest.raises(UnreadableInputError, match="contradicts itself"):
        analyse_operations(msgspec.structs.replace(whole, start_ns=late))


def test_single_step_is_analysed_with_low_confidence() -> None:
    slow = Pipeline(stages=3, data_ranks=3, microbatches=6, steps=1, rank=(1, 1, 2.0))
    analysis = analyse_operations(execute(slow)[0])
    assert (analysis.findings[0].cause, analysis.findings[0].confidence) == ("rank", "low")
    assert [warning.code for warning in analysis.validity] == ["few-steps"]
