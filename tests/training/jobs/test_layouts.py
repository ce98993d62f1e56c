"""Test that a model divided among four real processes trains to the parameters of the undivided model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.strategies.processes import Job

PROGRAM = Path(__file__).with_name("train_layouts.py")

#: (layout, whether replicas are sharded) of each case.
CASES: list[tuple[dict[str, Any], bool]] = [
    ({"pp": 4, "microbatches": 4}, False),
    ({"pp": 2, "dp": 2, "microbatches": 4, "schedule": "gpipe"}, False),
    ({"pp": 2, "dp": 2, "microbatches": 2}, True),
    ({"pp": 2, "dp": 2, "microbatches": 2, "schedule": "interleaved"}, False),
    ({"dp": 2, "tp": 2}, True),
    ({"dp": 2, "cp": 2}, False),
    ({"dp": 2, "ep": 2}, True),
    ({"ep": 4}, True),
    ({"pp": 2, "tp": 2, "microbatches": 2}, False),
    ({"pp": 2, "ep": 2, "microbatches": 2}, True),
    ({"ep": 2, "cp": 2}, True),
    ({"ep": 2, "tp": 2}, True),
]


@pytest.fixture(scope="module")
def trained() -> list[list[dict[str, float]]]:
    """Train all layouts in one group of processes, because starting processes takes longer than training."""
    with Job(PROGRAM, 4, CASES) as job:
        return [job.answer(rank) for rank in range(4)]


@pytest.mark.apart
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_parameters_equal_undivided_model(trained: list[list[dict[str, float]]], number: int) -> None:
    for answers in trained:
        assert answers[number]["change"] > 1e-4
        assert answers[number]["difference"] < 1e-3 * answers[number]["change"]
