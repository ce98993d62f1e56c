"""Estimate the profiler overhead on hosts: a fixed time per recorded event, and more on a host that is slow throughout.

A process that shares its core runs only for a part of each second. All work of such a process takes longer by the same
factor, the profiler's work included, and most of the additional time shows as untraced time between events. Worked
example: per step, such a rank took 75 ms of host work and 15 ms of untraced time, and its peers took 25 ms of host
work. For 7,300 events, each at 1.27 µs, the profiler took 9.3 of the peers' 25 ms. The profiler took the same share of
the rank's 90 ms: 34 ms, which leaves 56 ms. The rank's unprofiled step took 54.7 ms.

A rank with more work at one point of the step is not slow throughout, so it has the same overhead as its peers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    DENSE_NS,
    FEWEST_CALLS,
    LEAST_NS_PER_EVENT,
    MOST_NS_SEEN,
    MOST_PROFILER_SHARE,
    PARTS_OF_STEP,
    PROFILER_NS_PER_EVENT,
    PROFILER_SHARE_OF_EVENT,
    SLOW_THROUGHOUT,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, HostBlock, Index, Times
from gpudiag.analysis.diagnosis.simulation.imbalance import lower_median


def usual_ns_per_event(graph: Graph) -> float:
    """Return the profiler's cost per event on this job's hosts, in ns, or the usual cost if the trace does not show it.

    Threads of a DataLoader also slow the training thread, but they slow the profiler's work less. Therefore the cost is
    limited to `PROFILER_NS_PER_EVENT` in jobs with such threads.
    """
    if not _enough_calls(graph):
        return PROFILER_NS_PER_EVENT
    typical = typical_ns_per_event(graph)
    if not 0 < typical <= DENSE_NS:  # no events, or most of the host's work is not recorded
        return PROFILER_NS_PER_EVENT
    highest = PROFILER_NS_PER_EVENT if graph.host.input.any() else MOST_NS_SEEN
    return float(np.clip(PROFILER_SHARE_OF_EVENT * typical, LEAST_NS_PER_EVENT, highest))


def typical_ns_per_event(graph: Graph) -> float:
    """Return the lower median over hosts of the median host time per event, in ns; 0 if there are no events.

    A process that shares its core has the same median as its peers, because its lost time shows as untraced time.
    """
    host = graph.host
    medians = []
    for process in graph.ranks:
        nodes = (host.process == process) & (host.events > 0)
        if not nodes.any():
            continue
        per_event, events = host.busy[nodes] / host.events[nodes], host.events[nodes]
        order = np.argsort(per_event)
        reached = np.cumsum(events[order])
        medians.append(float(per_event[order][np.searchsorted(reached, reached[-1] / 2)]))
    return float(lower_median(np.array(medians))) if medians else 0.0


class HostPace(msgspec.Struct, frozen=True):
    """Time that hosts take for the same work, as a multiple of their peers' lower median (1.0 = as fast as usual).

    Attributes:
        by_node: float64[n], the multiple of the node's process in the node's step.
        by_process: process → multiple over all steps; 1.0 unless the process is slow throughout its steps.
    """

    by_node: Times
    by_process: dict[int, float]


class ProfilerCost(msgspec.Struct, frozen=True):
    """Profiler overhead at each host node, in ns: float64[n], the part of `busy` and of untraced time."""

    busy: Times
    untraced: Times


def profiler_cost(graph: Graph, per_event_ns: float, pace: HostPace) -> ProfilerCost:
    """Return the profiler overhead; `per_event_ns` is the cost per event on a host that is not slow.

    `Graph.host.profiler` is the overhead that the profiler itself recorded, in ns. On a host that is slow throughout,
    part of the overhead shows as untraced time (see the module's docstring).
    """
    host = graph.host
    busy = np.minimum(per_event_ns * pace.by_node * host.events + host.profiler, MOST_PROFILER_SHARE * host.busy)
    untraced = np.zeros_like(busy)
    within = _untraced_within_steps(graph)
    for process, times in pace.by_process.items():
        nodes = host.process == process
        if times <= 1.0 or not nodes.any():
            continue
        usual = np.minimum(per_event_ns * host.events + host.profiler, MOST_PROFILER_SHARE * host.busy)[nodes]
        work = float(host.busy[nodes].sum() + within[nodes].sum())
        share = min(times * float(usual.sum()) / max(work, 1.0), MOST_PROFILER_SHARE)
        busy[nodes], untraced[nodes] = share * host.busy[nodes], share * within[nodes]
    return ProfilerCost(busy, untraced)


def limited_to(graph: Graph, busy: Times, max_ns: Mapping[int, float]) -> Times:
    """Return float64[n], ns: host work, scaled down for processes whose mean step has more work than `max_ns`.

    Args:
        graph: the graph.
        busy: float64[n], each host node's work, ns.
        max_ns: process → limit of the work of a mean step.
    """
    work = np.bincount(graph.host.process, weights=busy) / max(graph.steps, 1)
    share = np.ones(len(work))
    for process, limit in max_ns.items():
        share[process] = min(limit / max(float(work[process]), 1.0), 1.0)
    return busy * share[graph.host.process] if (share < 1.0).any() else busy


def host_pace(graph: Graph) -> HostPace:
    """Return the pace of each host in each step; 1.0 if too few calls were recorded.

    Each step is divided into `PARTS_OF_STEP` sections with equal numbers of calls. Each section is compared with its
    lower median over all peers and steps. The pace of a step is the median of its sections' ratios, so that additional
    work at one point of the step hardly changes the pace.
    """
    host = graph.host
    by_process = dict.fromkeys(graph.ranks, 1.0)
    if not _enough_calls(graph):
        return HostPace(np.ones(len(host.time)), by_process)
    steps = max(graph.steps, 1)
    cell = host.process * steps + np.minimum(host.step, steps - 1)
    count = (max(graph.ranks, default=0) + 1) * steps
    slot = _section_of_step(graph) + PARTS_OF_STEP * cell
    work = host.busy + _untraced_within_steps(graph)
    sums = np.bincount(slot, weights=work, minlength=count * PARTS_OF_STEP).astype(np.float64)
    by_section: Times = sums.reshape(count, PARTS_OF_STEP)
    pace = np.ones(count)
    for peers in graph.peers:
        used = np.concatenate([np.arange(process * steps, (process + 1) * steps) for process in peers])
        pace[used] = _median_ratio(by_section[used], lower_median(by_section[used]))
        by_rank = by_section.reshape(-1, steps, PARTS_OF_STEP).sum(axis=1)[peers]
        usual = lower_median(by_rank)
        for process, times, total in zip(peers, _median_ratio(by_rank, usual), by_rank.sum(axis=1), strict=True):
            if times >= SLOW_THROUGHOUT:
                by_process[process] = float(total / max(usual.sum(), 1.0))
    return HostPace(pace[cell], by_process)


def _median_ratio(by_section: Times, usual: Times) -> Times:
    """Return for each row the median ratio of its sections to the usual time, weighted by the usual time.

    `by_section` is float64[k, sections], `usual` is float64[sections], both in ns.
    """
    times = by_section / np.maximum(usual, 1.0)
    order = np.argsort(times, axis=1)
    reached = np.cumsum(usual[order], axis=1)
    half = np.minimum((reached < reached[:, -1:] / 2).sum(axis=1), by_section.shape[1] - 1)
    rows = np.arange(len(by_section))
    median: Times = times[rows, order[rows, half]]
    return median


def _enough_calls(graph: Graph) -> bool:
    calls = int((~_is_second_node(graph)).sum())
    return calls >= FEWEST_CALLS * PARTS_OF_STEP * max(graph.steps, 1) * len(graph.ranks)


def _untraced_within_steps(graph: Graph) -> Times:
    """Return float64[n], ns: untraced time before each node; 0 at a step's first node, which may wait for a loader."""
    host = graph.host
    return np.where(_opens_step(graph), 0.0, host.before_first_op + host.untraced)


def _opens_step(graph: Graph) -> NDArray[np.bool_]:
    host = graph.host
    opens = np.ones(len(host.time), np.bool_)
    opens[1:] = (np.diff(host.step) != 0) | (np.diff(host.process) != 0)
    return opens


def _is_second_node(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[n]: the second node of a call that waits for its own copy."""
    row, block = graph.host.row, graph.host.block
    again = np.concatenate([[False], (row[1:] == row[:-1]) & (row[1:] != NONE)]) & ~_opens_step(graph)
    waits: NDArray[np.bool_] = again & ((block == HostBlock.PAGEABLE) | (block == HostBlock.SYNC))
    return waits


def _section_of_step(graph: Graph) -> Index:
    """Return int64[n]: the section of the step in which each node lies; sections have equal numbers of calls."""
    opens = np.flatnonzero(_opens_step(graph))
    nodes = np.diff(np.append(opens, len(graph.host.time)))
    calls = np.cumsum(~_is_second_node(graph))
    # Number of calls in each node's step; `+ 1` because a step after the last one would begin with the next call.
    size = np.repeat(np.diff(np.append(calls[opens], calls[-1] + 1)), nodes)
    section: Index = (calls - np.repeat(calls[opens], nodes)) * PARTS_OF_STEP // np.maximum(size, 1)
    return np.minimum(section, PARTS_OF_STEP - 1)
