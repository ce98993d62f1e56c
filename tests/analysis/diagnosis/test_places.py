"""Where a training thread is while it records nothing."""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.places import stalls
from tests.analysis.diagnosis.cases import case_of
from tests.timeline_builder import TraceBuilder


def logging(*, marked: bool) -> TraceBuilder:
    """Steps of 30 ms (in µs): an operator that launches 5 ms of kernels, and 20 ms in which nothing is recorded."""
    trace = TraceBuilder(0)
    for step in range(7):
        trace.step(step * 30_000)
        trace.operator(0, 40, "aten::mm").compute(50, 5_000, launch=(10, 20))
        if marked:
            trace.annotation(1_000, 28_000, "gpudiag.logging")
        trace.operator(29_000, 29_020, "aten::add").compute(29_050, 29_100, launch=(29_005, 29_010))
    return trace


def test_a_stall_has_its_place_between_operators() -> None:
    (place,) = stalls(case_of([logging(marked=False).build()]), {0})
    assert place.words == "after aten::mm and before aten::add"
    assert not place.collecting


def test_a_range_around_it_names_it_as_the_advice_says() -> None:
    (place,) = stalls(case_of([logging(marked=True).build()]), {0})
    assert "gpudiag.logging" in place.words


@pytest.mark.parametrize("thread", [0, 5])
def test_what_other_threads_do_is_no_place(thread: int) -> None:
    trace = logging(marked=False)
    for step in range(7):
        trace.step(step * 30_000, mark=None).by(thread)
        trace.operator(100, 200, "aten::copy_").annotation(6_000, 20_000, "writer").operator(
            28_900, 28_990, "aten::cat"
        )
    (place,) = stalls(case_of([trace.build()]), {0})
    assert place.words == "after aten::mm and before aten::add"
