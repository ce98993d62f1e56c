"""Test how the graph of a few nodes is cut into runs, and the order of the runs.

A run is a range of nodes of a host chain, or ops of a stream, that are computed at once. `Run(kind, first, after,
before)` contains `first` up to, but not including, `after`, and follows the node or op `before`. The first run of a
chain or stream follows the last node or op, of the previous iteration.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.analysis.diagnosis.simulation.schedule import (
    Run,
    RunKind,
    Schedule,
    _device_runs,
    _host_runs,
    _step_ends,
)
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.simulation.graph import Graph

HOST, BLOCK, DEVICE, WAIT, START, END = RunKind
NO_ENDS = np.empty(0, np.int64)


def graph(
    streams: Sequence[int] = (),
    *,
    host: dict[str, Sequence[float]] | None = None,
    steps: int = 1,
    peers: dict[int, Sequence[int]] | None = None,
    **device: Sequence[float],
) -> Graph:
    """Return a graph with `streams[i]` ops on stream i, by default with one host node; `device` are columns of ops."""
    edges = np.cumsum([0, *streams]).tolist()
    nodes = device_of(**{"row": np.zeros(edges[-1]), **device})  # type: ignore[arg-type]  # zeros are numbers
    nodes = msgspec.structs.replace(nodes, peers={at: np.array(of) for at, of in (peers or {}).items()})
    built = graph_of(host_of(**(host or {"time": [0]})), nodes, steps=steps)
    return msgspec.structs.replace(built, streams=tuple(pairwise(edges)))


def test_chains_are_cut_where_nodes_wait() -> None:
    of = graph([1], host={"block_on": [NONE, NONE, 0, NONE, NONE, 0, 0], "process": [0] * 5 + [1] * 2})
    assert list(_host_runs(of, NO_ENDS)) == [
        Run(HOST, 0, 2, 4),
        Run(BLOCK, 2, 3, 1),
        Run(HOST, 3, 5, 2),
        Run(BLOCK, 5, 6, 6),
        Run(BLOCK, 6, 7, 5),
    ]


def test_streams_are_cut_where_ops_wait_or_are_awaited() -> None:
    of = graph([5, 2], wait_a=[NONE, NONE, NONE, 6, *[NONE] * 3], host={"block_on": [1]})
    assert list(_device_runs(of, NO_ENDS)) == [
        Run(DEVICE, 0, 2, 4),
        Run(DEVICE, 2, 3, 1),
        Run(WAIT, 3, 4, 2),
        Run(DEVICE, 4, 5, 3),
        Run(DEVICE, 5, 7, 6),
    ]
    of = graph([3], wait_b=[NONE, NONE, 0])
    assert list(_device_runs(of, NO_ENDS)) == [Run(DEVICE, 0, 1, 2), Run(DEVICE, 1, 2, 0), Run(WAIT, 2, 3, 1)]
    of = graph([3], wait_a=[2, NONE, NONE])
    assert list(_device_runs(of, NO_ENDS)) == [Run(WAIT, 0, 1, 2), Run(DEVICE, 1, 3, 0)]


def test_runs_are_cut_behind_nodes_that_end_a_step() -> None:
    of = graph([4], host={"block_on": [NONE, NONE, NONE, 3, NONE]}, wait_a=[NONE, NONE, NONE, 0])
    assert list(_host_runs(of, np.array([1, 3, 4]))) == [
        Run(HOST, 0, 2, 4),
        Run(HOST, 2, 3, 1),
        Run(BLOCK, 3, 4, 2),
        Run(HOST, 4, 5, 3),
    ]
    assert list(_device_runs(of, np.array([1, 3]))) == [
        Run(DEVICE, 0, 1, 3),
        Run(DEVICE, 1, 2, 0),
        Run(DEVICE, 2, 3, 1),
        Run(WAIT, 3, 4, 2),
    ]


def test_collective_has_runs_for_start_and_end() -> None:
    of = graph([3], transfer=[np.nan, 5.0, np.nan], peers={1: [1]})
    assert list(_device_runs(of, NO_ENDS)) == [
        Run(DEVICE, 0, 1, 2),
        Run(START, 1, 2, 0),
        Run(END, 1, 2, 0),
        Run(DEVICE, 2, 3, 1),
    ]


@pytest.mark.parametrize(
    ("op_launch", "op_end", "node", "before"),
    [
        (3, 0, 2, True),  # the op is launched after the wait, so the wait is for the previous iteration
        (1, 99, 2, False),
        (2, 51, 2, True),  # the waiting node launches the op, but the op ends after the wait
        (2, 50, 2, False),
        (NONE, 51, 2, True),
        (NONE, 50, 2, False),
    ],
)
def test_awaited_op_may_be_in_the_previous_iteration(op_launch: int, op_end: float, node: int, *, before: bool) -> None:
    of = graph(
        [1, 1],
        host={"time": [0, 0, 50, 0], "block_on": [NONE, NONE, 0, NONE]},
        launch=[op_launch, node],
        start=[0, 50],
        end=[op_end, 60],
        wait_a=[NONE, 0],
    )
    assert Schedule(of)._is_of_iteration_before(Run(BLOCK, node, node + 1, 1), 0) == before
    assert Schedule(of)._is_of_iteration_before(Run(WAIT, 1, 2, 1), 0) == before


def test_awaited_op_without_launch_is_ordered_by_time() -> None:
    of = graph([1, 1], launch=[0, NONE], start=[0, 50], end=[60, 70], wait_a=[NONE, 0])
    assert Schedule(of)._is_of_iteration_before(Run(WAIT, 1, 2, 1), 0)


def test_run_needs_previous_run_launches_and_awaited_ops() -> None:
    of = graph(
        [2, 1],
        host={"time": [0, 1, 2], "block_on": [NONE, NONE, 0]},
        launch=[0, 1, 1],
        wait_a=[NONE, NONE, 1],
        start=[1, 2, 4],
        end=[2, 4, 5],
    )
    runs = [Run(HOST, 0, 2, 2), Run(BLOCK, 2, 3, 1), Run(DEVICE, 0, 1, 1), Run(DEVICE, 1, 2, 0), Run(WAIT, 2, 3, 2)]
    assert [*_host_runs(of, NO_ENDS), *_device_runs(of, NO_ENDS)] == runs
    assert Schedule(of)._needs(runs) == [set(), {0, 2}, {0}, {0, 2}, {0, 3}]
    # A value of the previous iteration must not be overwritten before its last use.
    of = msgspec.structs.replace(of, device=msgspec.structs.replace(of.device, launch=np.array([0, 2, 1])))
    assert Schedule(of)._needs(runs) == [set(), {0, 2}, {0}, {1, 2, 4}, {0}]


def test_circular_dependencies_start_with_the_earliest_recorded_run() -> None:
    """Two ranks have two collectives each, in a different order."""
    of = graph(
        [2, 2],
        transfer=[5.0] * 4,
        peers={0: [0, 3], 3: [0, 3], 1: [1, 2], 2: [1, 2]},
        start=[0, 10, 0, 20],
        end=[10, 20, 20, 30],
    )
    runs = [(run.kind, run.first) for run in Schedule(of).runs if run.kind != HOST]
    assert runs == [(START, 0), (START, 2), (END, 0), (START, 1), (END, 1), (END, 2), (START, 3), (END, 3)]


@pytest.mark.parametrize(
    ("of_ops", "ends", "on_device"),
    [
        ([0] * 5 + [1] * 4, [5, 9], True),
        ([0] * 4 + [1] * 4, [1, 3], False),  # the host chain has more nodes than the stream has ops
        ([0] * 9, [1, 3], False),  # the stream has no op of the second step
        ([0, 0, 0, 1, 0, 1, 1, 1, 1], [3, 9], True),  # ops of the first step that run late end with the second step
        ([0] * 5 + [1] * 3 + [2], [5, 8], True),
    ],
)
def test_step_ends_with_its_longest_stream_or_host_chain(
    of_ops: Sequence[int], ends: Sequence[int], *, on_device: bool
) -> None:
    of = graph(
        [1, len(of_ops)],
        host={"step": [0, 0, 1, 1, 0, 1], "process": [0] * 4 + [1] * 2},
        steps=2,
        step=[0, *of_ops],
    )
    nodes, device = _step_ends(of)
    assert (nodes.tolist(), device) == (ends, on_device)


def test_step_without_nodes_ends_with_the_first_node() -> None:
    nodes, _ = _step_ends(graph(host={"step": [1, 1, 1]}, steps=2))
    assert nodes.tolist() == [0, 2]


def test_schedule_gives_first_node_and_first_op_of_each_run() -> None:
    of = graph([3], host={"block_on": [NONE, NONE, 1, NONE]}, launch=[0, 1, 3])
    schedule = Schedule(of)
    assert schedule.first_nodes.tolist() == [0, 0, 2, 3]
    assert schedule.first_ops.tolist() == [0, 0, 2]
    assert (schedule.last_nodes.tolist(), schedule.last_ops.tolist()) == ([3], [2])
