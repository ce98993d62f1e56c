"""Test calls that wait for the copy that they launch, and synchronizations while no op is pending."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.explained import _recording_ms
from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    with_host_copies,
    without_launch_cost,
    without_untraced,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.host_time import blocking_copies
from gpudiag.analysis.diagnosis.simulation.profiler_cost import _section_of_step
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, host_copy, item, kernels, python, read_back, silence

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf

#: The host takes 12 ms to launch a step, and the device is idle when the next batch arrives.
SLOW_HOST = kernels(4, count=200, launch_us=60)


def simulated(job: Job) -> WhatIf:
    what_if = case_of(job.traces()).what_if
    assert what_if is not None
    assert what_if.simulated_ms == pytest.approx(what_if.graph.length_ns / what_if.graph.steps / 1e6, rel=0.005)
    return what_if


def busy_ms(what_if: WhatIf) -> float:
    return float(what_if.graph.host.busy.sum()) / what_if.graph.steps / 1e6


@pytest.mark.parametrize("idle_ms", [0.0, 0.3])
@pytest.mark.parametrize("copy_ms", [2.0, 8.0])
def test_blocking_copy_is_no_host_work(idle_ms: float, copy_ms: float) -> None:
    what_if = simulated(Job(ranks=1, step=(python(idle_ms), host_copy(copy_ms, megabytes=50, pinned=False), SLOW_HOST)))
    assert busy_ms(what_if) == pytest.approx(12 + idle_ms, abs=0.05)
    for costs in (what_if.model.recorded, what_if.corrected):
        assert what_if.saving_ms(with_host_copies(what_if, costs), costs) == pytest.approx(copy_ms, abs=0.05)


def test_copy_from_an_idle_device_blocks_the_host() -> None:
    what_if = simulated(Job(ranks=1, step=(kernels(5), item(), python(0.3), read_back(4, megabytes=40), SLOW_HOST)))
    assert busy_ms(what_if) < 13
    host, device = what_if.graph.host, what_if.graph.device
    waits = np.flatnonzero((host.block == HostBlock.SYNC) & device.host_copy[host.block_on])
    # A blocking call has a second node at its start; both nodes count as one call.
    returns = waits[host.row[waits] == host.row[waits - 1]]
    assert len(returns) == what_if.graph.steps
    part = _section_of_step(what_if.graph)
    assert (part[returns] == part[returns - 1]).all()


def test_work_before_a_synchronization_without_pending_ops_is_no_wait() -> None:
    what_if = simulated(Job(ranks=1, step=(kernels(5), item(), silence(12), item(), kernels(5))))
    without = without_untraced(what_if, what_if.corrected)
    assert what_if.saving_ms(without) == pytest.approx(12, rel=0.01)


def calls(*spans: tuple[int, int], ops: tuple[tuple[int, int, int], ...]) -> Any:
    """Return the nodes of the copying calls `spans` (start, end), given `ops` as (launch, start, end)."""
    launched, start, end = np.array(ops).reshape(-1, 3).T
    part: Any = SimpleNamespace(
        host_copy=np.ones(len(ops), np.bool_), launch_time=launched, start=start * 1.0, end=end * 1.0
    )
    begin, until = np.array(spans).T
    return blocking_copies([part], begin, until, np.ones(len(spans), np.bool_))


def test_call_that_returns_in_first_half_of_its_copy_does_not_wait() -> None:
    early, late = calls((0, 59), ops=((0, 10, 110),)), calls((0, 61), ops=((0, 10, 110),))
    assert early.begins.tolist() == [False]
    assert late.begins.tolist() == [True, False]
    assert late.op.tolist() == [NONE, 0]
    assert late.end.tolist() == [-np.inf, 110]


def test_calls_without_a_recorded_copy_have_one_node() -> None:
    nodes = calls((0, 100), (200, 300), ops=((200, 210, 300),))
    assert nodes.call.tolist() == [0, 1, 1]
    assert nodes.returns.tolist() == [False, False, True]
    assert nodes.move_to_begin(np.array([1, 2, 3])).tolist() == [1, 5, 0]


def test_profiler_overhead_explains_launches_but_no_exposed_copy() -> None:
    step = (python(0.3), host_copy(5, megabytes=50, pinned=False), SLOW_HOST)
    case = case_of(Job(ranks=1, step=step, recording_ns=6_000).traces())
    assert case.what_if is not None
    what_if = case.what_if.at_cost(6_000)
    added = what_if.simulated_ms - what_if.now_ms
    assert added > 1
    assert _recording_ms(what_if, "launch", (without_launch_cost,)) == pytest.approx(added)
    assert _recording_ms(what_if, "copy", (with_host_copies,)) < 0.1
