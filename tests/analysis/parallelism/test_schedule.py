"""Test that the schedule of a pipeline is found from its messages, and from the names of its passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpudiag.analysis.parallelism.rank_grid import find_grid
from gpudiag.analysis.parallelism.schedule import PipelineSchedule, schedule_of
from gpudiag.app.analyze import analyze
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.pipelines import CHUNKS, pipeline


@pytest.mark.parametrize(
    ("grid", "schedule", "expected"),
    [
        ({"stages": 2, "data": 2, "microbatches": 4}, "1f1b", PipelineSchedule(4)),
        ({"stages": 4, "data": 1, "microbatches": 8}, "1f1b", PipelineSchedule(8)),
        ({"stages": 5, "data": 1, "microbatches": 10}, "gpipe", PipelineSchedule(10)),
        ({"stages": 3, "data": 2, "microbatches": 3}, "interleaved", PipelineSchedule(3, CHUNKS)),
        ({"stages": 6, "data": 1, "microbatches": 12}, "interleaved", PipelineSchedule(12, CHUNKS)),
    ],
)
def test_messages_show_microbatches_and_chunks(grid: dict[str, Any], schedule: Any, expected: PipelineSchedule) -> None:
    timeline = case_of(pipeline(**grid, schedule=schedule, steps=4).traces()).timeline
    assert schedule_of(timeline, find_grid(timeline)) == expected


def test_passes_have_the_names_that_pytorch_gives_them(whole_recording: Callable[[str], Path]) -> None:
    parallelism = analyze([whole_recording("parallel/pp2dp2_interleaved")]).parallelism
    assert parallelism is not None
    shape = parallelism.pipeline
    assert shape is not None
    assert (shape.stages, shape.microbatches, shape.chunks) == (2, 4, 2)
    assert shape.theoretical_percent == pytest.approx(100 / 9)
    passes = {(each.rank, each.direction, each.chunk, each.microbatch) for each in shape.passes}
    assert passes == set(product((0, 2), ("forward", "backward"), range(2), range(4)))
