"""Compare the simulation with a node-by-node simulation, and test laws that hold for any job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.simulation.graph import NONE, Scenario, recorded_scenario
from gpudiag.analysis.diagnosis.simulation.schedule import RunKind, Schedule
from gpudiag.analysis.diagnosis.simulation.simulate import System, simulate
from tests.analysis.diagnosis.simulation.few_nodes import device_of, host_of
from tests.analysis.diagnosis.simulation.few_nodes import graph_of as few_nodes_graph_of
from tests.analysis.diagnosis.simulation.random_graphs import BruteForce, Job, Node, Op, graph_of, jobs
from tests.examples import examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

TURNS = 80
#: Errors that the search for the steady state may leave: relative, or absolute (ns) in jobs of a few ns.
TOLERANCE = 2e-3


def step_ns(system: System, scenario: Scenario) -> float:
    return simulate(system, system.weights(scenario)).step_ns


@st.composite
def less_work(draw: st.DrawFn, costs: Scenario) -> Scenario:
    """Draw a scenario in which no cost exceeds its value in `costs`."""

    def part(column: NDArray[np.float64]) -> NDArray[np.float64]:
        factors = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(column), max_size=len(column)))
        return column * np.array(factors, np.float64)

    keep = draw(st.lists(st.booleans(), min_size=len(costs.blocking), max_size=len(costs.blocking)))
    return replace(
        costs,
        busy=part(costs.busy),
        waiting=part(costs.waiting),
        duration=part(costs.duration),
        transfer=part(costs.transfer),
        blocking=costs.blocking & np.array(keep),
    )


@given(job=jobs(), settled=st.integers(0, 40), data=st.data())
@examples(60)
def test_simulation_agrees_with_node_by_node_simulation(job: Job, settled: int, data: st.DataObject) -> None:
    graph, order = graph_of(job, settled)
    costs = data.draw(less_work(recorded_scenario(graph)))
    expected = BruteForce(job, costs, order).turns(TURNS)
    assert step_ns(System(graph), costs) == pytest.approx(expected, rel=TOLERANCE, abs=0.02)


@given(job=jobs(), settled=st.integers(0, 40), data=st.data())
@examples(40)
def test_simulations_are_independent(job: Job, settled: int, data: st.DataObject) -> None:
    graph, _ = graph_of(job, settled)
    system = System(graph)
    for costs in [recorded_scenario(graph), *(data.draw(less_work(recorded_scenario(graph))) for _ in range(3))]:
        one, alone = (simulate(of, of.weights(costs)) for of in (system, System(graph)))
        assert one.step_ns == alone.step_ns
        assert np.array_equal(one.waited, alone.waited)


@given(job=jobs())
@examples(50)
def test_recorded_scenario_reproduces_recording(job: Job) -> None:
    graph, _ = graph_of(job, 60)
    # If iterations alternate in length, the graph shows only one of the lengths, so the job is skipped.
    assume(BruteForce(job).turns(TURNS) == pytest.approx(graph.length_ns))
    assert step_ns(System(graph), recorded_scenario(graph)) == pytest.approx(graph.length_ns, rel=0.01, abs=0.02)


@given(job=jobs(), settled=st.integers(0, 40), data=st.data())
@examples(50)
def test_less_work_never_takes_longer(job: Job, settled: int, data: st.DataObject) -> None:
    graph, _ = graph_of(job, settled)
    system = System(graph)
    all_work = recorded_scenario(graph)
    less = data.draw(less_work(all_work))
    still_less = data.draw(less_work(less))
    times = [step_ns(system, costs) for costs in (all_work, less, still_less)]
    assert times[1] <= times[0] * (1 + TOLERANCE) + 0.02
    assert times[2] <= times[1] * (1 + TOLERANCE) + 0.02


@given(job=jobs())
@examples(50)
def test_every_node_is_in_one_run_after_the_runs_that_it_needs(job: Job) -> None:
    graph, _ = graph_of(job, 3)
    schedule = Schedule(graph)
    host_done = np.zeros(len(graph.host.time), np.int64)
    started = np.zeros(len(graph.device.start), np.int64)
    ended = np.zeros(len(graph.device.start), np.int64)
    for run in schedule.runs:
        span = slice(run.first, run.after)
        if run.kind in {RunKind.HOST_RUN, RunKind.HOST_BLOCK}:
            targets = graph.host.block_on[span]
            targets = targets[targets != NONE]
            # If an op is launched after the node that waits for it, the wait is for the op of the previous iteration.
            assert (ended[targets] == (graph.device.launch[targets] < run.first)).all()
            host_done[span] += 1
        elif run.kind == RunKind.COLLECTIVE_END:
            assert started[graph.device.peers[run.first]].all()
            ended[span] += 1
        else:
            launches = graph.device.launch[span]
            assert host_done[launches[launches != NONE]].all()
            for column in (graph.device.wait_a, graph.device.wait_b):
                waited = column[span][column[span] != NONE]
                # Likewise, a wait for an op with a later launch is for the op of the previous iteration.
                assert (ended[waited] == (graph.device.launch[waited] < launches.max())).all()
            started[span] += 1
            ended[span] += run.kind != RunKind.COLLECTIVE_START
    assert (host_done == 1).all()
    assert (started == 1).all()
    assert (ended == 1).all()


def test_host_far_ahead_of_a_faster_device_determines_the_steady_state() -> None:
    """The host is several steps ahead when the device's work is halved, so many iterations take the device's time."""
    job = Job()
    job.nodes = [Node(0, 90)]
    job.ops = [Op(0, 0, launch=0, latency=1, gap=0, duration=100)]
    graph, _ = graph_of(job, 60)
    assert graph.device.start[0] - graph.host.time[0] > 5 * 90
    costs = recorded_scenario(graph)
    assert step_ns(System(graph), costs) == pytest.approx(100)
    assert step_ns(System(graph), replace(costs, duration=costs.duration / 2)) == pytest.approx(90)


def steps_of(*busy: float) -> System:
    """Return the simulation of a host that works `busy[i]` ns in step i."""
    host = host_of(busy=busy, time=np.cumsum(busy).tolist(), step=range(len(busy)))
    graph = msgspec.structs.replace(few_nodes_graph_of(host, steps=len(busy)), length_ns=float(sum(busy)))
    return System(graph)


def test_each_step_takes_the_time_of_its_nodes() -> None:
    system = steps_of(10, 30, 20)
    simulated = simulate(system, system.weights(recorded_scenario(system.graph)))
    assert (simulated.step_ns, simulated.steps_ns.tolist()) == (20, [10, 30, 20])


@pytest.mark.parametrize(("starts", "waited"), [([10.0, 30, 20, 99], [20, 0, 0, 0]), ([10.0, 5, 7, 99], [0, 0, 3, 0])])
def test_collective_waits_from_its_start_to_the_last_arrival(starts: list[float], waited: list[float]) -> None:
    device = device_of(start=starts, end=[100] * 4, transfer=[1, 1, 1, np.nan])
    peers = {0: np.array([0, 1, 2]), 2: np.array([0, 2]), 1: np.array([1])}
    graph = few_nodes_graph_of(host_of(time=[0]), msgspec.structs.replace(device, peers=peers))
    system = System(msgspec.structs.replace(graph, streams=((0, 1), (1, 2), (2, 4))))
    assert system.waited(np.array(system.measured)).tolist() == waited


def test_no_waiting_without_collectives() -> None:
    system = System(few_nodes_graph_of(host_of(time=[0]), device_of(row=[0])))
    assert system.waited(np.array(system.measured)).tolist() == [0]


def test_op_without_launch_starts_after_the_previous_op() -> None:
    """The host takes 10 ns per iteration. The stream has two ops of 15 and 5 ns, after gaps of 2 and 1 ns."""
    device = device_of(launch=[0, NONE], start=[2, 18], end=[17, 23], gap=[2, 1])
    graph = few_nodes_graph_of(host_of(busy=[10], time=[0]), device)
    graph = msgspec.structs.replace(graph, streams=((0, 2),), length_ns=23.0)
    assert step_ns(System(graph), recorded_scenario(graph)) == pytest.approx(23)
    faster = replace(recorded_scenario(graph), duration=np.array([3.0, 1.0]))
    assert step_ns(System(graph), faster) == pytest.approx(10)


def test_blocking_call_waits_for_its_op_and_delay() -> None:
    """The op is launched at 10 ns and takes 40 ns. The host waits for the op and 3 ns more, and then works for 5 ns."""
    host = host_of(busy=[10, 5], time=[10, 53], block_on=[NONE, 0], block_delay=[0, 3], block=[0, 1])
    device = device_of(launch=[0], start=[10], end=[50])
    graph = few_nodes_graph_of(host, device)
    graph = msgspec.structs.replace(graph, streams=((0, 1),), length_ns=53.0)
    costs = recorded_scenario(graph)
    assert step_ns(System(graph), costs) == pytest.approx(53)
    assert step_ns(System(graph), replace(costs, duration=np.array([1.0]))) == pytest.approx(15)
    assert step_ns(System(graph), replace(costs, blocking=np.zeros(2, np.bool_))) == pytest.approx(40)
