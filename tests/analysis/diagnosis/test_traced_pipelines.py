"""Test the diagnosis of random pipelines from their traces (1F1B and GPipe, 2 to 8 stages)."""

from __future__ import annotations

import pytest

from tests.analysis.diagnosis.traced_pipelines import draw, judged

#: Seeds of jobs that cover all faults and schedules; `benchmarks/random_pipelines.py --traces` judges further jobs.
SEEDS = (1, 3, 4, 8, 12, 14, 15, 31)


@pytest.mark.parametrize("seed", SEEDS)
def test_diagnosis_of_a_random_pipeline_is_right(seed: int) -> None:
    assert judged(draw(seed)).wrong == ()


def test_seeds_cover_each_fault() -> None:
    assert {draw(seed).fault for seed in SEEDS} == {"none", "stage", "compute", "sequence"}
