"""Measure the components of a step, and equalize ranks to the median of each component."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import OFTEN
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, Index, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.imbalance import Excess, excess_over_median, excess_over_peers, lower_median
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.event import any_of
from gpudiag.model.timeline import OpClass

Component = Literal["input", "stall", "operators", "allocation", "sync", "launch", "compute", "copy"]
#: Components of a step, in this order: waiting for data; untraced host time; single slow calls; waiting in
#: synchronizations; all other host work, memory allocation included; kernels; copies.
COMPONENTS: tuple[Component, ...] = ("input", "stall", "operators", "sync", "launch", "compute", "copy")
_ON_DEVICE = frozenset({"compute", "copy"})


def amount(what_if: WhatIf, scenario: Scenario, component: Component) -> Times:
    """Return the component's time in ns: float64[n], before each host node, or for device components float64[m].

    If the scenario has less waiting or work than was recorded, the component is limited to what is left.
    """
    graph = what_if.graph
    if component in _ON_DEVICE:
        op_class = OpClass.COMPUTE if component == "compute" else OpClass.COPY
        return np.where(graph.device.op_class == op_class, scenario.duration, 0.0)
    if component in {"stall", "input"}:
        untraced = np.fmin(what_if.untraced, scenario.waiting)
        return untraced if component == "stall" else scenario.waiting - untraced
    if component == "sync":
        # The waits of a rank with no more synchronizations than its peers do not count: the rank waits for a peer.
        waits = syncs(what_if) & scenario.blocking & any_of(graph.host.process, *synchronizing_more(what_if))
        between = np.diff(graph.host.time, prepend=graph.host.time[:1])
        return np.where(waits, np.maximum(between - scenario.busy - scenario.waiting, 0.0), 0.0)
    slow = np.fmin(graph.host.slow, scenario.busy)
    if component == "allocation":
        return np.fmin(graph.host.allocating, scenario.busy - slow)
    return slow if component == "operators" else scenario.busy - slow


def common(what_if: WhatIf, scenario: Scenario, component: Component) -> Times:
    """Return float64[n or m], ns: the component's time without the excess over peers that makes a rank a straggler."""
    return amount(what_if, scenario, component) - _excess_by_node(what_if, scenario, component, each_step=False)


def equalized(
    what_if: WhatIf, scenario: Scenario, components: Iterable[Component], *, each_step: bool = False
) -> Scenario:
    """Return the scenario in which no rank exceeds the lower median over ranks in these components.

    For an even number of ranks, the lower median is the smaller middle value, so that two of four ranks can be
    stragglers. With `each_step`, every step of every rank is equalized to the lower median over all steps of all ranks,
    which removes a straggler that changes with each step. The excess is removed at its location in the step
    (`imbalance`).
    """
    chosen = set(components)
    if "compute" in chosen:
        # Kernels beside a collective that waits take longer. That contention is no work of the rank, and ends with the
        # wait.
        scenario = replace(scenario, duration=what_if.model.contention.waiting_removed_from(scenario.duration))
    if "sync" in chosen:
        scenario = _without_additional_syncs(what_if, scenario)
        chosen.discard("sync")
    excess = {
        component: _excess_by_node(what_if, scenario, component, each_step=each_step)
        for component in COMPONENTS
        if component in chosen
    }
    none = np.zeros(1)  # subtracts nothing from any node
    return replace(
        scenario,
        waiting=scenario.waiting - excess.get("input", none) - excess.get("stall", none),
        busy=scenario.busy - excess.get("operators", none) - excess.get("launch", none),
        duration=scenario.duration - excess.get("compute", none) - excess.get("copy", none),
    )


def syncs(what_if: WhatIf) -> NDArray[np.bool_]:
    """Return bool[n]: host nodes that wait for the device in a synchronization outside communication."""
    host = what_if.graph.host
    waits: NDArray[np.bool_] = (host.block == HostBlock.SYNC) & (host.block_on != NONE)
    waits &= ~what_if.model.communication.blocks
    return waits


def releases(what_if: WhatIf) -> NDArray[np.bool_]:
    """Return bool[n]: host nodes that return memory to the driver and wait for the device."""
    waits: NDArray[np.bool_] = what_if.graph.host.block == HostBlock.RELEASE
    return waits


def synchronizing_more(what_if: WhatIf) -> list[int]:
    """Return the processes whose hosts synchronize with the device much more often than most of their peers."""
    return waiting_more(what_if, syncs(what_if))


def waiting_more(what_if: WhatIf, waits: NDArray[np.bool_]) -> list[int]:
    """Return the processes that have at least `OFTEN` times as many of the nodes `waits`, bool[n], as most peers."""
    process = what_if.graph.host.process
    more = []
    for peers in what_if.graph.peers:
        count = {peer: int(waits[process == peer].sum()) for peer in peers}
        usual = float(lower_median(np.array(list(count.values()), np.float64)))
        more += [peer for peer, times in count.items() if times > 0 and times >= OFTEN * usual]
    return more


def without_waiting(what_if: WhatIf, scenario: Scenario, nodes: NDArray[np.bool_]) -> Scenario:
    """Return the scenario in which these host nodes do not wait, and the copies that they wait for are gone."""
    host, device = what_if.graph.host, what_if.graph.device
    removed = np.zeros(len(device.start), np.bool_)
    removed[host.block_on[nodes & (host.block_on != NONE)]] = True
    removed &= device.host_copy
    return replace(
        scenario,
        blocking=scenario.blocking & ~nodes,
        duration=np.where(removed, 0.0, scenario.duration),
        gap=np.where(removed, 0.0, scenario.gap),
    )


def _without_additional_syncs(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove synchronizations and memory releases of ranks that have many more of them than most of their peers."""
    process = what_if.graph.host.process
    for waits in (syncs(what_if), releases(what_if)):
        more = waiting_more(what_if, waits)
        if more:
            scenario = without_waiting(what_if, scenario, waits & any_of(process, *more))
    return scenario


def excess(what_if: WhatIf, component: Component) -> Excess:
    """Return the excess of each rank's time in a component of the step over the lower median of the rank's peers."""
    scenario = what_if.corrected
    if component == "compute":  # contention would make the ranks that wait for others seem to compute longer
        scenario = replace(scenario, duration=what_if.model.contention.removed_from(scenario.duration))
    process, step = _process_and_step(what_if, component)
    amounts = amount(what_if, scenario, component)
    if component == "input" and what_if.later_input_ns:  # unprofiled steps limit the excess
        recorded = _recorded_excess(what_if, amounts, component, each_step=False)
        amounts = amounts - recorded + _limited_to_unprofiled(what_if, recorded)
    return excess_over_peers(what_if.graph, amounts, process, step)


def _process_and_step(what_if: WhatIf, component: Component) -> tuple[Index, Index]:
    if component in _ON_DEVICE:
        return what_if.model.process_of_op, what_if.graph.device.step
    return what_if.graph.host.process, what_if.graph.host.step


def _excess_by_node(what_if: WhatIf, scenario: Scenario, component: Component, *, each_step: bool) -> Times:
    """Return each node's or op's part of its rank's excess over peers, in ns; unprofiled steps limit excess input."""
    recorded = _recorded_excess(what_if, amount(what_if, scenario, component), component, each_step=each_step)
    return _limited_to_unprofiled(what_if, recorded) if component == "input" else recorded


def _recorded_excess(what_if: WhatIf, amounts: Times, component: Component, *, each_step: bool) -> Times:
    """Return float64[n or m], ns: the part of a rank's excess over its peers that falls on each node or op.

    With `each_step`, each step is compared with all steps of the peers.
    """
    if not amounts.any():
        return amounts
    process, step = _process_and_step(what_if, component)
    segment = what_if.model.segments[1 if component in _ON_DEVICE else 0]
    steps = what_if.graph.steps if each_step else 1
    # A cell is what is compared: a process, or a step of a process. A track may have more steps than the job.
    cell = process * steps + np.minimum(step, steps - 1) if each_step else process
    excess = np.zeros_like(amounts)
    for peers in what_if.graph.peers:
        used = np.concatenate([np.arange(peer * steps, (peer + 1) * steps) for peer in peers])
        of_peers = any_of(process, *peers)
        excess[of_peers] = excess_over_median(amounts[of_peers], cell[of_peers], segment[of_peers], used)
    return excess


def _limited_to_unprofiled(what_if: WhatIf, excess: Times) -> Times:
    """Limit each process's excess of input waits, in ns, to its excess in the more numerous unprofiled steps."""
    process, steps = what_if.graph.host.process, what_if.graph.steps
    share = np.ones(int(process.max(initial=0)) + 1)
    for later_process, limit_ns in what_if.later_input_ns.items():
        recorded_ns = float(excess[process == later_process].sum())
        share[later_process] = min(1.0, limit_ns * steps / max(recorded_ns, 1.0))
    return excess * share[process]
