"""The standard error of a mean of consecutive step times."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpudiag.diagnosis.drift import mean_error


@pytest.mark.parametrize("values", [[], [3.0], [2.0] * 100])
def test_nothing_scatters(values: list[float]) -> None:
    assert mean_error(values) == 0.0


def test_of_few_values_it_is_the_usual_one() -> None:
    assert mean_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)


def test_of_independent_values_it_covers_the_truth_as_often_as_it_should() -> None:
    rng = np.random.default_rng(0)
    means = [(values.mean(), mean_error(values)) for values in rng.normal(20, 1, (400, 80))]
    covered = np.mean([abs(mean - 20) <= 2 * error for mean, error in means])
    assert 0.92 <= covered <= 1.0


def test_where_values_drift_it_is_larger_than_if_they_were_independent() -> None:
    drift = np.repeat([18.1, 19.9, 21.4], 28)
    independent = drift.std(ddof=1) / math.sqrt(len(drift))
    assert mean_error(drift) > 2 * independent
