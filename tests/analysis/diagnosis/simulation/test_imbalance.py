"""Test the excess of a rank over its peers, and its location in the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.analysis.diagnosis.simulation.imbalance import (
    Excess,
    excess_over_median,
    excess_over_peers,
    host_segments,
    lower_median,
    op_segments,
)
from gpudiag.model.timeline import OpClass
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of
from tests.examples import examples

COLLECTIVE, COMPUTE = OpClass.COMMUNICATION, OpClass.COMPUTE


def test_segment_ends_where_a_collective_is_launched() -> None:
    host = host_of(
        process=[0, 0, 0, 0, 0, 0, 1, 1, 1],
        step=[0, 0, 0, 1, 1, 1, 0, 0, 1],
    )
    # Node 2 launches two ops; nodes 1, 3, 4 (a kernel) and 6 launch one op each. The last op has no recorded launch.
    device = device_of(
        launch=[1, 2, 2, 3, 4, 6, NONE],
        op_class=[COLLECTIVE, COLLECTIVE, COLLECTIVE, COLLECTIVE, COMPUTE, COLLECTIVE, COLLECTIVE],
    )
    graph = graph_of(host, device, steps=2)
    segment = host_segments(graph)
    assert segment.tolist() == [0, 0, 1, 0, 1, 1, 0, 1, 0]
    assert op_segments(graph, segment).tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert op_segments(graph, segment + 5).tolist() == [5, 6, 6, 5, 6, 5, 0]


def test_lower_median_is_the_smaller_middle_value() -> None:
    assert [float(lower_median(np.array(of))) for of in ([4.0], [4.0, 1], [3.0, 1, 2], [4.0, 3, 1, 2])] == [4, 1, 2, 2]
    assert lower_median(np.array([[3.0, 1], [1, 2], [2, 9], [4, 8]])).tolist() == [2, 2]


def above(*cells: list[float], used: list[int] | None = None) -> list[Any]:
    """Return the excess of each segment of each cell, over the lower medians of the used cells (by default all).

    A cell is a compared unit, a process or a step of a process, given as the amounts of its segments. The amounts are
    passed in random order, which must not matter.
    """
    amount = np.array(cells, np.float64)
    cell, segment = np.divmod(np.arange(amount.size), amount.shape[1])
    order = np.random.default_rng(1).permutation(amount.size)
    which = np.arange(len(cells)) if used is None else np.array(used)
    excess = np.empty(amount.size)
    excess[order] = excess_over_median(amount.reshape(-1)[order], cell[order], segment[order], which)
    rows: Any = excess.reshape(amount.shape).tolist()
    return [pytest.approx(row, abs=1e-9) for row in rows]


def test_excess_is_taken_from_segments_with_excess() -> None:
    assert above([1, 30, 10], [1, 50.5, 10]) == [[0, 0, 0], [0, 20.5, 0]]
    assert above([10, 10], [16, 14], [10, 10]) == [[0, 0], [6, 4], [0, 0]]
    # The total of the second cell exceeds the median by 5. The first segment of this cell has an excess of 10 and the
    # second segment a deficit of 5, so half of the excess counts.
    assert above([10, 10], [20, 5], [10, 10]) == [[0, 0], [5, 0], [0, 0]]
    # The excess of one segment equals the deficit of the other segment, so the total has no excess.
    assert above([10, 10], [15, 5], [10, 10]) == [[0, 0], [0, 0], [0, 0]]
    assert above([10, 10], [15, 4], [10, 10]) == [[0, 0], [0, 0], [0, 0]]


def test_remaining_excess_is_taken_proportionally() -> None:
    """The lower median of each segment is 4, and the lower median of the totals is 14."""
    cells = [10.0, 0, 4], [4.0, 10, 0], [0.0, 4, 10], [10.0, 10, 10]
    assert above(*cells) == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [16 / 3] * 3]
    # The totals of both cells are 10, so neither cell has an excess.
    assert above([10, 0], [0, 10]) == [[0, 0], [0, 0]]
    # The median of the totals is 10. The last cell exceeds that median by 11, all of it in the second segment, whose
    # lower median is 4.
    assert above([6, 4], [3, 7], [6, 4], [6.0, 15]) == [[0, 0], [0, 0], [0, 0], [0, 11]]


def test_unused_cells_do_not_change_the_median() -> None:
    assert above([10], [30], [10], used=[0, 1]) == [[0], [20], [0]]
    assert above([0], [30], [10], [0], used=[1, 2]) == [[0], [20], [0], [0]]
    assert above([5], [7], used=[]) == [[0], [0]]
    none = np.zeros(0, np.int64)
    assert excess_over_median(np.zeros(0), none, none, np.array([0])).tolist() == []


def test_empty_cell_counts_in_the_median() -> None:
    """Cells 2 and 3 have no nodes."""
    amount, of = np.array([5.0, 7.0]), np.array([0, 1])
    assert excess_over_median(amount, of, np.zeros(2, np.int64), np.array([0, 1, 2])).tolist() == [0, 2]
    assert excess_over_median(amount, of, np.zeros(2, np.int64), np.array([0, 1, 2, 3])).tolist() == [5, 7]


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 50), min_size=n, max_size=n), min_size=1)))
@examples(40)
def test_totals_without_excess_are_at_most_the_median(cells: list[list[int]]) -> None:
    amount = np.array(cells, np.float64)
    rows, columns = amount.shape
    cell, segment = np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows)
    taken = excess_over_median(amount.reshape(-1), cell, segment, np.arange(rows)).reshape(rows, columns)
    totals = sorted(amount.sum(axis=1).tolist())
    level = totals[(rows - 1) // 2]
    assert (amount - taken).sum(axis=1) == pytest.approx(np.minimum(amount.sum(axis=1), level))
    assert (taken >= 0).all()
    assert (taken <= amount + 1e-9).all()


def test_excess_is_over_median_of_totals_and_of_each_step() -> None:
    # Processes 0, 2 and 3 are ranks 5, 6 and 7 with two steps each. The last op of rank 7 ends after both steps, and
    # counts in the second step.
    process = np.array([0, 0, 0, 2, 2, 3, 3, 3])
    step = np.array([0, 0, 1, 0, 1, 0, 1, 2])
    amount = np.array([10.0, 20, 60, 40, 20, 100, 20, 30])
    graph = graph_of(host_of(process=[0, 2, 3]), steps=2, ranks={0: 5, 2: 6, 3: 7})
    excess = excess_over_peers(graph, amount, process, step)
    assert excess == Excess(
        by_rank={5: 0.0, 6: -15.0, 7: 30.0},
        by_step={5: (-10.0, 10.0), 6: (0.0, -30.0), 7: (60.0, 0.0)},
    )
    without_steps = graph_of(host_of(process=[0, 1]), steps=0)
    assert excess_over_peers(without_steps, np.array([1.0, 3]), np.array([0, 1]), np.array([0, 0])).by_rank == {
        0: 0,
        1: 2,
    }


@pytest.mark.parametrize(
    ("steps", "steady"),
    [
        ((10, 10), True),
        ((10,), False),
        ((), False),
        ((0, 0, 0, 100), False),
        ((10, -10, 11, -11), False),
        ((5, 6, 7, 6), True),
    ],
)
def test_rank_is_steady_if_excess_is_significant(steps: tuple[float, ...], *, steady: bool) -> None:
    assert Excess(by_rank={0: 1.0}, by_step={0: steps}).steady(0) == steady


@pytest.mark.parametrize(("low", "steady"), [(1.01, True), (0.99, False)])
def test_steady_excess_is_twice_its_standard_error(low: float, *, steady: bool) -> None:
    """For steps with an excess of 1 and 3, the standard error is 1 (half of their distance) and the mean is 2."""
    assert Excess(by_rank={}, by_step={0: (low, 3.0)}).steady(0) == steady
