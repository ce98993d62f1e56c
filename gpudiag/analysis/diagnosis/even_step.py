"""Compare a step with a balanced step, in which all ranks, pipeline stages and experts compute equally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.components import Component, amount
from gpudiag.analysis.diagnosis.simulation.counterfactuals import equalize_ranks
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.imbalance import lower_median
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism import Imbalance, ImbalanceCause
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds

#: Causes of `straggler` that lie in the rank's work, not in its device or host.
_OF_THE_WORK = ("sequence", "experts")


def imbalance_of(what_if: WhatIf, findings: Sequence[Finding]) -> Imbalance | None:
    """Return step time / balanced step time, for the whole imbalance and by cause; None if a step takes no time.

    The cause of imbalance between ranks is `sequence` or `experts` if a `straggler` in `findings` has it, else `rank`.
    """
    now = what_if.corrected
    now_ms = milliseconds(what_if.model.simulate(now).step_ns)
    causes = [finding.cause for finding in findings if finding.code == "straggler"]
    of_ranks = next((cause for cause in causes if cause in _OF_THE_WORK), "rank")
    # Tokens that leave one expert go to another, so that experts are equalized to their mean and not to their median.
    equal = share_tokens(what_if, now) if of_ranks == "experts" else equalize_ranks(what_if, now)
    ideal_ms = milliseconds(what_if.model.simulate(balance_stages(what_if, equal)).step_ns)
    if not now_ms or not ideal_ms:
        return None
    # Cause → step time, in ms, without this cause alone.
    without = {of_ranks: milliseconds(what_if.model.simulate(equal).step_ns)}
    if len(what_if.graph.peers) > 1:
        without["stage"] = milliseconds(what_if.model.simulate(balance_stages(what_if, now)).step_ns)
    return Imbalance(
        slowdown=now_ms / ideal_ms,
        ideal_ms=ideal_ms,
        by={
            cause: ImbalanceCause(slowdown=now_ms / other_ms, saved_ms=max(now_ms - other_ms, 0.0))
            for cause, other_ms in without.items()
            if other_ms
        },
    )


def balance_stages(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Return the scenario in which the compute of each stage is scaled to the mean of the stages."""
    share = np.ones(max(what_if.graph.ranks) + 1)
    for times, peers in zip(relative_work(what_if, scenario), what_if.graph.peers, strict=True):
        share[peers] = 1 / max(times, 1e-9)
    if what_if.timeline.tracks[0].is_cpu:  # host work is compute, except for communication
        kept = np.fmin(scenario.busy, what_if.model.communication.busy)
        return replace(scenario, busy=kept + (scenario.busy - kept) * share[what_if.graph.host.process])
    compute = what_if.graph.device.op_class == OpClass.COMPUTE
    shares = np.where(compute, share[what_if.model.process_of_op], 1.0)
    return replace(scenario, duration=scenario.duration * shares)


def work_of_processes(what_if: WhatIf, scenario: Scenario) -> Times:
    """Return float64[processes]: compute of each process in ns per step; on CPUs, host work is compute."""
    on_cpu = what_if.timeline.tracks[0].is_cpu
    work = scenario.busy if on_cpu else amount(what_if, scenario, "compute")
    process = what_if.graph.host.process if on_cpu else what_if.model.process_of_op
    count = max(what_if.graph.ranks) + 1
    total: Times = np.bincount(process, weights=work, minlength=count) / max(what_if.graph.steps, 1)
    return total


def relative_work(what_if: WhatIf, scenario: Scenario) -> list[float]:
    """Return the compute of each stage (lower median over its ranks) / mean compute of the stages."""
    work = work_of_processes(what_if, scenario)
    stages = np.array([lower_median(work[peers]) for peers in what_if.graph.peers])
    relative: list[float] = (stages / max(float(stages.mean()), 1.0)).tolist()
    return relative


def share_tokens(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Return the scenario in which each expert has its peers' mean work.

    Segments before and after each all-to-all count as experts. Other work in these segments is the same on all peers,
    so that their mean does not change it. Without experts, or if op and node segments differ, the scenario stays.
    """
    work, beside = work_by_segment(what_if, scenario), beside_all_to_alls(what_if)
    if work is None or beside is None or work.shape != beside.shape:
        return scenario
    share = np.ones(work.shape)
    for peers in what_if.graph.peers:
        of_peers, of_experts = work[peers], beside[peers].any(axis=0)
        mean = np.broadcast_to(of_peers.mean(axis=0), of_peers.shape)
        share[peers] = np.divide(mean, of_peers, out=np.ones(mean.shape), where=of_experts & (of_peers > 0))
    segment_of_node, segment_of_op = what_if.model.segments
    if what_if.timeline.tracks[0].is_cpu:
        kept = np.fmin(scenario.busy, what_if.model.communication.busy)
        shares = share[what_if.graph.host.process, segment_of_node]
        return replace(scenario, busy=kept + (scenario.busy - kept) * shares)
    shares = share[what_if.model.process_of_op, segment_of_op]
    compute = what_if.graph.device.op_class == OpClass.COMPUTE
    return replace(scenario, duration=scenario.duration * np.where(compute, shares, 1.0))


def work_by_segment(what_if: WhatIf, scenario: Scenario) -> Times | None:
    """Return float64[processes, segments]: ns of work between collectives in all steps; None without segments.

    On CPUs, work is the component `launch` of `amount`: host work besides waiting and slow calls.
    """
    component: Component = "launch" if what_if.timeline.tracks[0].is_cpu else "compute"
    graph = what_if.graph
    process = graph.host.process if component == "launch" else what_if.model.process_of_op
    segment = what_if.model.segments[0 if component == "launch" else 1]
    amounts = amount(what_if, scenario, component)
    if not len(segment):
        return None
    processes, segments = max(graph.ranks) + 1, int(segment.max()) + 1
    sums = np.bincount(process * segments + segment, weights=amounts, minlength=processes * segments)
    table: Times = sums.reshape(processes, segments).astype(np.float64)
    return table


def beside_all_to_alls(what_if: WhatIf) -> NDArray[np.bool_] | None:
    """Return bool[processes, segments]: segments next to an all-to-all of their process; None without an all-to-all."""
    graph = what_if.graph
    device = graph.device
    segment_of_node, segment_of_op = what_if.model.segments
    segment = segment_of_node if what_if.timeline.tracks[0].is_cpu else segment_of_op
    processes, segments = max(graph.ranks) + 1, int(segment.max(initial=0)) + 1
    is_all_to_all = np.zeros(len(device.start), np.bool_)
    for index, track in enumerate(what_if.timeline.tracks):
        kinds = np.array([kind[0] == "all_to_all" for kind in track.collectives.kinds], np.bool_)
        if kinds.any():
            rows = track.collectives.row[kinds[track.collectives.kind]]
            is_all_to_all |= (device.track == index) & np.isin(device.row, rows)
    if not is_all_to_all.any():
        return None
    # A collective ends the segment in which it is launched, and begins the next one, which may have no node: hence + 2.
    ends = np.zeros((processes, int(segment_of_node.max(initial=0)) + 2), np.bool_)
    launched = (device.launch != NONE) & (device.op_class == OpClass.COMMUNICATION) & is_all_to_all
    ends[what_if.model.process_of_op[launched], segment_of_node[device.launch[launched]]] = True
    begins = np.concatenate([np.zeros((processes, 1), np.bool_), ends[:, :-1]], axis=1)
    either: NDArray[np.bool_] = (ends | begins)[:, :segments]
    return either
