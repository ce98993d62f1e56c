from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.report import figures


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_invalid_figures_are_never_shown_as_zero(value: float | None) -> None:
    assert figures.milliseconds(value) == figures.UNKNOWN
    assert figures.size(value) == figures.UNKNOWN
    assert figures.rate(value) == figures.UNKNOWN


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(26.2, 57.1, "46 %"), (0.1, 57.1, "<1 %"), (0.0, 57.1, "0 %"), (1.0, 0.0, "—"), (math.nan, 1.0, "—")],
)
def test_percentages_are_rounded_and_invalid_ones_marked(part: float, whole: float, shown: str) -> None:
    assert figures.percent(part, whole) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_600, "1.00 MB"), (26_214_400, "26.2 MB"), (2.5e12, "2.50 TB")],
)
def test_sizes_are_in_powers_of_1000(size: float, shown: str) -> None:
    assert figures.size(size) == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_figure_fills_a_line(value: float) -> None:
    for shown in (figures.milliseconds(value), figures.thousands(value, 1), figures.rate(value), figures.size(value)):
        assert len(shown) <= 24


@given(st.sets(st.integers(0, 200), min_size=2))
def test_ranks_in_words_name_each_rank_once(numbers: set[int]) -> None:
    words = figures.ranks(numbers).removeprefix("ranks ").replace(" and ", ", ").split(", ")
    named: list[int] = []
    for word in words:
        first, _, last = word.partition(figures.EN_DASH)
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(numbers)
