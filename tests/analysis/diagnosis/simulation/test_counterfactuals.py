"""Test counterfactual scenarios and step components, with a few nodes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation import counterfactuals
from gpudiag.analysis.diagnosis.simulation.components import (
    amount,
    common,
    equalized,
    excess,
    synchronizing_more,
    syncs,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, recorded_scenario
from gpudiag.analysis.diagnosis.simulation.job_model import CommunicationWork, remainder
from gpudiag.model.timeline import OpClass
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpudiag.analysis.diagnosis.simulation.graph import DeviceNodes, Graph, HostNodes

COMPUTE, COMMUNICATION, COPY = OpClass
SYNC, PAGEABLE = HostBlock.SYNC, HostBlock.PAGEABLE


def job(
    host: HostNodes,
    device: DeviceNodes | None = None,
    *,
    steps: int = 1,
    slowed: Sequence[float] = (0.0,),
    waited: Sequence[float] = (0.0,),
    bucket_copy: Sequence[bool] = (False,),
    is_cpu: bool = False,
    step_ms: Callable[[Any], float] = lambda _: 1.0,
    **communication: Sequence[float],
) -> Any:
    """Return a fake what-if.

    Args:
        host, device, steps: the nodes of its graph, and the number of steps in it.
        slowed, waited: ns by which transferring and waiting collectives lengthen each op.
        bucket_copy: whether each op is a bucket copy.
        step_ms: function that returns the step of a scenario in ms.
        communication: columns of `CommunicationWork`; all others have defaults.
    """
    graph: Graph = graph_of(host, device, steps=steps)
    nodes, ops = len(graph.host.time), len(graph.device.start)
    columns: dict[str, Any] = {name: np.zeros(nodes) for name in ("calls", "busy", "waiting")}
    columns |= {"blocks": np.zeros(nodes, np.bool_), "devices": np.ones(nodes)}
    columns |= {"contention_free_gap": graph.device.gap, "gap": np.zeros(ops), "latency": np.zeros(ops)}
    columns |= {name: np.array(column) for name, column in communication.items()}
    recorded = recorded_scenario(graph)
    transferring, waiting = np.array(slowed), np.array(waited)
    work = CommunicationWork(**columns)
    return SimpleNamespace(
        graph=graph,
        model=SimpleNamespace(
            recorded=recorded,
            communication=work,
            contention=SimpleNamespace(
                removed_from=lambda duration: np.maximum(duration - transferring - waiting, 0.0),
                transfer_removed_from=lambda duration: duration - transferring,
                waiting_removed_from=lambda duration: duration - waiting,
            ),
            bucket_copy=np.array(bucket_copy) & np.ones(ops, np.bool_),
            segments=(np.zeros(nodes, np.int64), np.zeros(ops, np.int64)),
            process_of_op=graph.device.track,
        ),
        corrected=recorded,
        untraced=np.fmin(graph.host.untraced, np.maximum(recorded.waiting - work.waiting, 0.0)),
        timeline=SimpleNamespace(tracks=[SimpleNamespace(is_cpu=is_cpu)]),
        each_step_ms=lambda many: [step_ms(costs) for costs in many],
        later_input_ns={},
    )


def apart(**more: Any) -> Any:
    """Make two ranks.

    Compared with rank 0, rank 1 has 30 ns more of input wait, 4 ns untraced, 5 ns in launches and 7 ns in operators.
    """
    host = host_of(
        process=[0, 1], busy=[20, 32], slow=[3, 10], input=[10, 40], untraced=[6, 10], time=[36, 82],
    )  # fmt: skip
    return job(host, **more)


def test_host_time_is_split_into_components() -> None:
    of = apart()
    amounts = {part: amount(of, of.corrected, part).tolist() for part in ("input", "stall", "operators", "launch")}
    assert amounts == {"input": [10, 40], "stall": [6, 10], "operators": [3, 10], "launch": [17, 22]}
    # A component never exceeds the remaining time.
    less = replace(of.corrected, busy=np.array([2.0, 32]), waiting=np.array([5.0, 50]))
    amounts = {part: amount(of, less, part).tolist() for part in ("input", "stall", "operators", "launch")}
    assert amounts == {"input": [0, 40], "stall": [5, 10], "operators": [2, 10], "launch": [0, 22]}


def test_common_amount_is_the_lower_median_over_ranks() -> None:
    of = apart()
    assert common(of, of.corrected, "input").tolist() == [10, 10]
    assert common(of, of.corrected, "launch").tolist() == pytest.approx([17, 17])


@pytest.mark.parametrize(("most", "waits"), [({}, 30), ({1: 12.0}, 12), ({0: 5.0, 1: 0.0}, 0), ({1: 99.0}, 30)])
def test_input_excess_is_limited_by_unprofiled_steps(most: dict[int, float], waits: float) -> None:
    of = apart()
    of.later_input_ns = most
    assert common(of, of.corrected, "input").tolist() == pytest.approx([10, 40 - waits])
    assert excess(of, "input").by_rank == pytest.approx({0: 0, 1: waits})
    assert excess(of, "launch").by_rank == pytest.approx({0: 0, 1: 5})


def test_equalized_ranks_need_the_median_of_given_components() -> None:
    of = apart()
    assert equalized(of, of.corrected, ("input",)).waiting.tolist() == [16, 20]
    assert equalized(of, of.corrected, ("stall",)).waiting.tolist() == [16, 46]
    assert equalized(of, of.corrected, ("launch",)).busy.tolist() == pytest.approx([20, 27])
    assert equalized(of, of.corrected, ("operators",)).busy.tolist() == [20, 25]
    every = counterfactuals.equalize_ranks(of, of.corrected)
    assert (every.waiting.tolist(), every.busy.tolist()) == ([16, 16], pytest.approx([20, 20]))


def kernels(**more: Any) -> Any:
    """Make two ranks. Rank 1 computes for 5 ns longer, of which 2 ns while collectives waited, and copies for 4 ns
    longer."""
    device = device_of(
        start=[0, 0, 0, 0], end=[10, 15, 3, 7], op_class=[COMPUTE, COMPUTE, COPY, COPY], track=[0, 1, 0, 1]
    )
    return job(host_of(process=[0, 1], busy=[1, 1]), device, waited=[0, 2, 0, 0], **more)


def test_kernels_are_equalized_without_contention() -> None:
    of = kernels()
    assert amount(of, of.corrected, "compute").tolist() == [10, 15, 0, 0]
    assert amount(of, of.corrected, "copy").tolist() == [0, 0, 3, 7]
    assert equalized(of, of.corrected, ("compute",)).duration.tolist() == pytest.approx([10, 10, 3, 7])
    assert equalized(of, of.corrected, ("copy",)).duration.tolist() == [10, 15, 3, 3]
    assert excess(of, "compute").by_rank == {0: 0, 1: 3}
    assert excess(of, "copy").by_rank == {0: 0, 1: 4}


def test_each_step_is_equalized_to_the_median_of_all_steps() -> None:
    of = job(host_of(process=[0, 0, 1, 1], step=[0, 1, 0, 1], busy=[10, 30, 30, 10]), steps=2)
    assert equalized(of, of.corrected, ("launch",)).busy.tolist() == [10, 30, 30, 10]
    assert equalized(of, of.corrected, ("launch",), each_step=True).busy.tolist() == [10, 10, 10, 10]


def synchronizing(*counts: int, **more: Any) -> Any:
    """Make one rank for each of `counts`, the number of times that the rank waits for its copy."""
    process = [rank for rank, count in enumerate(counts) for _ in range(count + 1)]
    block = [SYNC if at and process[at] == process[at - 1] else HostBlock.NOT for at in range(len(process))]
    on = [rank if block[at] else NONE for at, rank in enumerate(process)]
    device = device_of(
        start=[0.0] * len(counts), end=[5.0] * len(counts), gap=[2.0] * len(counts), host_copy=[True] * len(counts),
        track=range(len(counts)),
    )  # fmt: skip
    host = host_of(
        process=process, block=block, block_on=on, time=[10 * at for at in range(len(process))], busy=[1] * len(process)
    )
    return job(host, device, **more)


@pytest.mark.parametrize(
    ("counts", "more"), [((2, 4), [1]), ((2, 3), []), ((0, 1), [1]), ((0, 0), []), ((1, 1, 2, 9), [2, 3]), ((3, 3), [])]
)
def test_rank_synchronizes_more_if_twice_as_often(counts: tuple[int, ...], more: list[int]) -> None:
    assert synchronizing_more(synchronizing(*counts)) == more


def test_removing_synchronizations_removes_their_copies() -> None:
    of = synchronizing(1, 3)
    assert syncs(of).tolist() == [False, True, False, True, True, True]
    left = equalized(of, of.corrected, ("sync",))
    assert left.blocking.tolist() == [False, True, False, False, False, False]
    assert (left.duration.tolist(), left.gap.tolist()) == ([5, 0], [2, 0])
    without = counterfactuals.without_syncs(of, of.corrected)
    assert not without.blocking.any()
    assert (without.duration.tolist(), without.gap.tolist()) == ([0, 0], [0, 0])
    # If all ranks synchronize equally often, no rank synchronizes more than its peers; waits for communication do not
    # count.
    alike = synchronizing(2, 2)
    assert equalized(alike, alike.corrected, ("sync",)).blocking.sum() == 4
    exchanging = synchronizing(1, 3, blocks=[False, True, False, True, True, True])
    assert not syncs(exchanging).any()
    # Synchronization takes the time between two nodes (10 ns), minus the work between the nodes (1 ns).
    assert amount(of, of.corrected, "sync").tolist() == [0, 0, 0, 9, 9, 9]


def test_without_input_keeps_communication_and_untraced_time() -> None:
    of = apart(waiting=[4.0, 0.0])
    assert counterfactuals.without_input(of, of.corrected).waiting.tolist() == [10, 10]
    assert counterfactuals.without_untraced(of, of.corrected).waiting.tolist() == [10, 40]
    assert counterfactuals.without_common_untraced(of, of.corrected).waiting.tolist() == [10, 44]
    assert counterfactuals.without_common_input(of, of.corrected).waiting.tolist() == [10, 40]
    assert counterfactuals.without_common_input(apart(), of.corrected).waiting.tolist() == [6, 40]


def test_without_launch_cost_keeps_communication_work() -> None:
    of = apart(busy=[2.0, 31.0], calls=[1.0, 3.0])
    assert counterfactuals.without_launch_cost(of, of.corrected).busy.tolist() == [3, 32]
    assert counterfactuals.without_common_slow_calls(of, of.corrected).busy.tolist() == [17, 31]


def graphed(saved: float) -> Any:
    """Make a step of 100 ms that is `saved` ms shorter as a CUDA graph; ops start 20 or 21 µs after their launch."""
    host = host_of(process=[0], busy=[30], time=[0])
    device = device_of(
        start=[20_000, 20_001, 20_000, 0, 5], end=[21_000] * 5, gap=[900, 900, 900, 900, 200],
        launch=[0, 0, 0, NONE, 0], op_class=[COMPUTE, COMPUTE, COPY, COMPUTE, COMPUTE],
    )  # fmt: skip
    return job(host, device, calls=[4.0], step_ms=lambda costs: 100.0 if costs.busy[0] == 30 else 100 - saved)


@pytest.mark.parametrize(("saved", "gaps"), [(1.0, [450, 900, 900, 900, 200]), (0.995, [900, 900, 900, 900, 200])])
def test_cuda_graph_shortens_gaps_where_the_device_waited(saved: float, gaps: list[float]) -> None:
    of = graphed(saved)
    scenario = counterfactuals.as_cuda_graph(of, of.corrected)
    assert (scenario.busy.tolist(), scenario.gap.tolist()) == ([4], gaps)


def test_host_copies_do_not_block_and_consecutive_ones_merge() -> None:
    host = host_of(
        process=[0] * 5, busy=[8, 8, 8, 8, 8], block=[PAGEABLE, 0, SYNC, 0, 0], block_on=[0, NONE, 0, NONE, NONE]
    )
    device = device_of(
        start=[0, 0, 0, 0], end=[10, 20, 30, 40], host_copy=[True, True, False, True], launch=[NONE, 1, 2, 4]
    )
    of = job(host, device, busy=[0.0, 3.0, 0.0, 0.0, 0.0])
    scenario = counterfactuals.with_host_copies(of, of.corrected, 15.0)
    assert scenario.busy.tolist() == [8, 3, 8, 8, 8]
    assert scenario.duration.tolist() == [10, 15, 30, 15]
    assert scenario.blocking.tolist() == [False, False, True, False, False]
    assert counterfactuals.with_host_copies(of, of.corrected).duration.tolist() == [0, 0, 30, 0]


def exchanging(**more: Any) -> Any:
    """Make a kernel that is lengthened by 3 and 1 ns, a bucket copy of 5 ns, and a collective of 10 ns with 6 ns of
    transfer."""
    device = device_of(
        start=[0, 0, 0], end=[20, 5, 10], gap=[4, 2, 3], latency=[7, 5, -2], transfer=[np.nan, np.nan, 6],
        op_class=[COMPUTE, COMPUTE, COMMUNICATION], launch=[0, 1, 2],
    )  # fmt: skip
    host = host_of(process=[0, 0, 0, 0], busy=[9, 9, 9, 9], input=[5, 5, 5, 5], block_on=[NONE, NONE, 2, 0])
    return job(host, device, slowed=[3, 0, 0], waited=[1, 0, 0], bucket_copy=[False, True, False], **more)


def test_without_transfer_removes_its_contention() -> None:
    of = exchanging()
    assert counterfactuals.without_transfer_time(of.corrected).transfer.tolist() == pytest.approx(
        [np.nan, np.nan, 0], nan_ok=True
    )
    assert counterfactuals.without_transfer_time(of.corrected).duration.tolist() == [20, 5, 10]
    scenario = counterfactuals.without_transfer(of, of.corrected)
    assert scenario.duration.tolist() == [17, 5, 10]
    assert scenario.transfer[2] == 0
    # A kernel that is already shorter still loses its contention during transfers.
    shorter = replace(of.corrected, duration=np.array([18.0, 5, 10]))
    assert counterfactuals.without_transfer(of, shorter).duration.tolist() == [15, 5, 10]


def test_without_bucket_copy_removes_the_copies() -> None:
    of = exchanging()
    scenario = counterfactuals.without_bucket_copy(of, of.corrected)
    assert (scenario.duration.tolist(), scenario.gap.tolist()) == ([20, 0, 10], [4, 0, 3])


def test_without_communication_calls_removes_their_launches() -> None:
    of = exchanging(calls=[0.0, 2.0, 1.0, 12.0])
    # The cost of launching bucket copies and collectives counts as communication, not as launching.
    assert counterfactuals.without_communication_calls(of, of.corrected).busy.tolist() == [9, 0, 0, 0]
    on_cpu = exchanging(calls=[0.0, 2.0, 1.0, 12.0], is_cpu=True)
    assert counterfactuals.without_communication_calls(on_cpu, of.corrected).busy.tolist() == [9, 7, 8, 0]


def test_without_communication_removes_all_communication() -> None:
    of = exchanging(
        busy=[4.0, 0, 0, 0], waiting=[0.0, 2, 0, 9], blocks=[False, False, True, False], devices=[2.0] * 4,
        contention_free_gap=[3.0, 2, 3], gap=[1.0, 1, 1], latency=[2.0, 2, 2],
    )  # fmt: skip
    scenario = counterfactuals.without_communication(of, of.corrected)
    assert scenario.busy.tolist() == [2.5, 0, 0, 4.5]
    assert scenario.waiting.tolist() == [5, 3, 5, 0]
    assert scenario.blocking.tolist() == [False, False, False, True]
    assert scenario.duration.tolist() == [17, 0, 0]
    assert scenario.gap.tolist() == [2, 0, 0]
    assert scenario.latency.tolist() == [5, 0, -2]
    assert not scenario.communicates


def test_subtraction_stops_at_zero() -> None:
    left = remainder(np.array([5.0, 5, 0, -3]), np.array([2.0, 9, 1, 1]))
    assert left.tolist() == [3, 0, 0, -3]
