"""What the profiler cost the hosts: so much for each recorded event, and more on a host that is slow throughout.

A process that shares its core with others gets a part of each second. Everything that it does takes so many times
longer, the profiler's own work included, and most of that shows as stalls between events, not in them: 75 + 15 ms of
host work and stalls were measured on such a rank beside 25 ms on its peers, and 54.7 ms of step unprofiled. 7,300
events at 1.27 µs are 9.3 of the peers' 25 ms; of its 90 ms they are as large a share, 34 ms, and not 9.3.

A rank whose loop does something more than the others, in one place of the step, is not slow throughout: the profiler
costs it what it costs the others.
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
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block, Graph
from gpudiag.analysis.diagnosis.simulation.level_between_ranks import lower_median

Amounts = NDArray[np.float64]


class ProfilerCost(msgspec.Struct, frozen=True):
    """Of each host node's work what was the profiler's, in ns: of its `busy` and of its `silent` time (float64[n])."""

    busy: Amounts
    silent: Amounts


def usual_ns_per_event(graph: Graph) -> float:
    """What the profiler costs for each event on this job's hosts, as far as the trace tells, in ns.

    A DataLoader's threads slow the training thread down too, and the profiler's work less: beside one, the cost is at
    most what it was on hosts that nothing slowed down.
    """
    host = graph.host
    if not _enough_calls(graph):
        return PROFILER_NS_PER_EVENT
    typical = typical_ns_per_event(graph)
    if not 0 < typical <= DENSE_NS:
        return PROFILER_NS_PER_EVENT
    most = PROFILER_NS_PER_EVENT if host.input.any() else MOST_NS_SEEN
    return float(np.clip(PROFILER_SHARE_OF_EVENT * typical, LEAST_NS_PER_EVENT, most))


def typical_ns_per_event(graph: Graph) -> float:
    """What a host takes per event in the median over its events, in ns: the lower median of the hosts; 0 of no events.

    Of a process that shares its core the median says the same as of its peers, and what lies above it is stalls.
    """
    host = graph.host
    takes = []
    for process in graph.ranks:
        mine = (host.process == process) & (host.events > 0)
        if not mine.any():
            continue
        per_event, events = host.busy[mine] / host.events[mine], host.events[mine]
        order = np.argsort(per_event)
        reached = np.cumsum(events[order])
        takes.append(float(per_event[order][np.searchsorted(reached, reached[-1] / 2)]))
    return float(lower_median(np.array(takes))) if takes else 0.0


class HostPace(msgspec.Struct, frozen=True):
    """How much slower than usual the hosts are, as far as that shows throughout a step and not in one place of it.

    Attributes:
        of_node: float64[n], of each host node's process in that step: how many times longer it takes than usual.
        slow: by process, how many times longer it takes in all steps, where it is so slow that it stalls; else 1.0.
    """

    of_node: Amounts
    slow: dict[int, float]


def profiler_cost(graph: Graph, per_event_ns: float, pace: HostPace) -> ProfilerCost:
    """What the profiler cost.

    Args:
        graph: the replay graph.
        per_event_ns: its cost per recorded event on a host that is not slow.
        pace: of the hosts (`host_pace`).
    """
    host = graph.host
    recording = per_event_ns * pace.of_node * host.events + host.profiler
    busy = np.minimum(recording, MOST_PROFILER_SHARE * host.busy)
    silent = np.zeros_like(busy)
    within = _within_steps(graph)
    for process, times in pace.slow.items():
        mine = host.process == process
        if times <= 1.0 or not mine.any():
            continue
        usual = np.minimum(per_event_ns * host.events + host.profiler, MOST_PROFILER_SHARE * host.busy)[mine]
        work = float(host.busy[mine].sum() + within[mine].sum())
        share = min(times * float(usual.sum()) / max(work, 1.0), MOST_PROFILER_SHARE)
        busy[mine], silent[mine] = share * host.busy[mine], share * within[mine]
    return ProfilerCost(busy, silent)


def no_longer_than(graph: Graph, busy: Amounts, most_ns: Mapping[int, float]) -> Amounts:
    """Host work; throughout the step as much less as a process has more of it in the mean step than it may.

    Args:
        graph: the replay graph.
        busy: float64[n], each host node's work, ns.
        most_ns: by process, the most work of a step; none for one that may have any.
    """
    work = np.bincount(graph.host.process, weights=busy) / max(graph.steps, 1)
    share = np.ones(len(work))
    for process, most in most_ns.items():
        share[process] = min(most / max(float(work[process]), 1.0), 1.0)
    return busy * share[graph.host.process] if (share < 1.0).any() else busy


def host_pace(graph: Graph) -> HostPace:
    """The pace of each host in each step; 1.0 where too few calls were recorded to tell.

    Each step's calls are divided into parts of as many calls each, and each part is compared with what it takes in
    the lower median of all ranks and steps. The pace is the median of that over a step: what a host does more of in
    one place moves it little.
    """
    host = graph.host
    slow = dict.fromkeys(graph.ranks, 1.0)
    if not _enough_calls(graph):
        return HostPace(np.ones(len(host.time)), slow)
    steps = max(graph.steps, 1)
    work: Amounts = host.busy + _within_steps(graph)
    cell = host.process * steps + np.minimum(host.step, steps - 1)
    count = (max(graph.ranks, default=0) + 1) * steps
    slot = _part_of_step(graph) + PARTS_OF_STEP * cell
    flat: Amounts = np.bincount(slot, weights=work, minlength=count * PARTS_OF_STEP).astype(np.float64)
    by_part = flat.reshape(count, PARTS_OF_STEP)
    used = np.concatenate([np.arange(q * steps, (q + 1) * steps) for q in graph.ranks])
    pace = np.ones(count)
    pace[used] = _typical(by_part[used], lower_median(by_part[used]))
    by_rank = by_part.reshape(-1, steps, PARTS_OF_STEP).sum(axis=1)[list(graph.ranks)]
    usual = lower_median(by_rank)
    for process, times, total in zip(graph.ranks, _typical(by_rank, usual), by_rank.sum(axis=1), strict=True):
        if times >= SLOW_THROUGHOUT:
            slow[process] = float(total / max(usual.sum(), 1.0))
    return HostPace(pace[cell], slow)


def _typical(by_part: Amounts, usual: Amounts) -> Amounts:
    """Of each row, how many times what is usual its parts are, in the median over what is usual."""
    times = by_part / np.maximum(usual, 1.0)
    order = np.argsort(times, axis=1)
    reached = np.cumsum(usual[order], axis=1)
    half = np.minimum((reached < reached[:, -1:] / 2).sum(axis=1), by_part.shape[1] - 1)
    rows = np.arange(len(by_part))
    found: Amounts = times[rows, order[rows, half]]
    return found


def _enough_calls(graph: Graph) -> bool:
    return int((~_again(graph)).sum()) >= FEWEST_CALLS * PARTS_OF_STEP * max(graph.steps, 1) * len(graph.ranks)


def _within_steps(graph: Graph) -> Amounts:
    """The silent time before each node but the first of a step, which may have waited for an unmarked loader."""
    host = graph.host
    return np.where(_opens_step(graph), 0.0, host.silent + host.stall)


def _opens_step(graph: Graph) -> NDArray[np.bool_]:
    host = graph.host
    opens = np.ones(len(host.time), np.bool_)
    opens[1:] = (np.diff(host.step) != 0) | (np.diff(host.process) != 0)
    return opens


def _again(graph: Graph) -> NDArray[np.bool_]:
    """bool[n]: the second node of a call that waits for its own copy."""
    row, block = graph.host.row, graph.host.block
    again = np.concatenate([[False], (row[1:] == row[:-1]) & (row[1:] != NONE)]) & ~_opens_step(graph)
    waits: NDArray[np.bool_] = again & ((block == Block.PAGEABLE) | (block == Block.SYNC))
    return waits


def _part_of_step(graph: Graph) -> NDArray[np.int64]:
    """Which of the step's parts, of as many calls each, every node lies in."""
    opens = np.flatnonzero(_opens_step(graph))
    nodes = np.diff(np.append(opens, len(graph.host.time)))
    calls = np.cumsum(~_again(graph))
    size = np.repeat(np.diff(np.append(calls[opens], calls[-1] + 1)), nodes)
    place: NDArray[np.int64] = calls - np.repeat(calls[opens], nodes)
    part: NDArray[np.int64] = place * PARTS_OF_STEP // np.maximum(size, 1)
    return np.minimum(part, PARTS_OF_STEP - 1)
