"""Counterfactual scenarios, each derived from another scenario, so that they can be combined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import GAP_IN_GRAPH_NS, NOTABLE_PERCENT, QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.components import (
    COMPONENTS,
    amount,
    common,
    equalized,
    releases,
    syncs,
    waiting_more,
    without_waiting,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.job_model import remainder
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.event import HostMemory, any_of
from gpudiag.model.facts import QUEUED, Facts
from gpudiag.model.probed import pinned_to_device, probed_time_us
from gpudiag.model.timeline import OpClass
from gpudiag.units import NS_PER_US


def equalize_ranks(what_if: WhatIf, scenario: Scenario, *, each_step: bool = False) -> Scenario:
    """Equalize all ranks to the median in every component."""
    return equalized(what_if, scenario, COMPONENTS, each_step=each_step)


def without_input(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove all waiting for data, marked or not; waiting for communication and untraced host time remain."""
    remaining = what_if.model.communication.waiting + amount(what_if, scenario, "stall")
    return replace(scenario, waiting=np.fmin(scenario.waiting, remaining))


def without_common_input(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove waiting for data, except a rank's excess over its peers."""
    # While communication is under way, the host waits for communication and not for data.
    waited = np.maximum(common(what_if, scenario, "input") - what_if.model.communication.waiting, 0.0)
    return replace(scenario, waiting=scenario.waiting - waited)


def without_untraced(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove untraced host time."""
    return replace(scenario, waiting=scenario.waiting - amount(what_if, scenario, "stall"))


def without_common_untraced(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove untraced host time, except a rank's excess over its peers."""
    return replace(scenario, waiting=scenario.waiting - common(what_if, scenario, "stall"))


def _with_less_work(what_if: WhatIf, scenario: Scenario, removed: Times) -> Scenario:
    """Subtract `removed`, float64[n] ns, from host work, but not from work for communication."""
    kept = np.fmin(scenario.busy, what_if.model.communication.busy)
    return replace(scenario, busy=np.maximum(scenario.busy - removed, kept))


def without_common_slow_calls(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove single slow calls and computing on the CPU, except a rank's excess over its peers."""
    return _with_less_work(what_if, scenario, common(what_if, scenario, "operators"))


def without_allocation(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove driver allocations and releases, except a rank's excess over its peers."""
    released = releases(what_if)
    released &= ~any_of(what_if.graph.host.process, *waiting_more(what_if, released))
    scenario = _with_less_work(what_if, scenario, common(what_if, scenario, "allocation"))
    return replace(scenario, blocking=scenario.blocking & ~released)


def without_launch_cost(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove framework and launch calls; host work for communication remains."""
    communication = what_if.model.communication
    return replace(scenario, busy=np.fmin(scenario.busy, communication.busy + communication.calls))


def as_cuda_graph(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Launch each step as a CUDA graph; a rank's excess of launch work remains, because it makes the rank a straggler.

    Launching takes no host time, and kernels for which the device waited follow each other as closely as in a CUDA
    graph. If launching without host time saves less than 1 % of the step, no kernel moves, because closer kernels would
    then be the only savings.
    """
    communication = what_if.model.communication
    needed = common(what_if, scenario, "launch") + common(what_if, scenario, "operators")
    busy = scenario.busy - np.maximum(needed - communication.busy - communication.calls, 0.0)
    launched = replace(scenario, busy=busy)
    before, after = what_if.each_step_ms([scenario, launched])
    if before - after < NOTABLE_PERCENT / 100 * before:
        return launched
    host, device = what_if.graph.host, what_if.graph.device
    awaited = (device.launch != NONE) & (device.start - host.time[np.maximum(device.launch, 0)] <= QUEUED_NS)
    awaited &= device.op_class == OpClass.COMPUTE
    return replace(launched, gap=np.where(awaited, np.fmin(scenario.gap, GAP_IN_GRAPH_NS), scenario.gap))


def without_syncs(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove synchronizations, and the copies to the host that they wait for.

    A step without `.item()` has neither the copy of four bytes nor the gap after this copy.
    """
    return without_waiting(what_if, scenario, syncs(what_if))


def with_host_copies(what_if: WhatIf, scenario: Scenario, duration_ns: Times | float = 0.0) -> Scenario:
    """Shorten copies between host and device to at most `duration_ns` (one value, or float64[m]); none blocks the host.

    Of consecutive copies only the first keeps its host work, because consecutive copies could be one copy.
    """
    host, device = what_if.graph.host, what_if.graph.device
    copying = host.block == HostBlock.PAGEABLE
    copying[device.launch[device.host_copy & (device.launch != NONE)]] = True
    consecutive = copying & np.concatenate([[False], copying[:-1]])
    kept = np.fmin(scenario.busy, what_if.model.communication.busy)
    return replace(
        scenario,
        busy=np.where(consecutive, kept, scenario.busy),
        duration=np.where(device.host_copy, np.minimum(scenario.duration, duration_ns), scenario.duration),
        blocking=scenario.blocking & (host.block != HostBlock.PAGEABLE),
    )


def without_transfer(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """End collectives when their last participant arrives, and remove the contention of their transfers.

    Contention of collectives that wait for a straggler remains, because the straggler causes it.
    """
    recorded, contention = what_if.model.recorded.duration, what_if.model.contention
    # The scenario may already lack the contention of waiting collectives. No kernel gets shorter than without
    # contention.
    slowed = recorded - contention.transfer_removed_from(recorded)
    duration = np.fmax(contention.removed_from(scenario.duration), scenario.duration - slowed)
    return replace(without_transfer_time(scenario), duration=duration)


def without_transfer_time(scenario: Scenario) -> Scenario:
    """Let transfers take no time; kernels beside the collectives are unchanged."""
    return replace(scenario, transfer=np.minimum(scenario.transfer, 0.0))  # unmatched collectives stay NaN


def without_communication(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Let every rank train by itself: no transfers, bucket copies, contention, or host calls for communication.

    Ranks still wait for one another, so that a straggler's lateness is not attributed to communication.
    """
    alone = without_transfer(what_if, without_communication_calls(what_if, scenario))
    work = what_if.model.communication
    removed = what_if.model.bucket_copy | (what_if.graph.device.op_class == OpClass.COMMUNICATION)
    gap = np.fmin(alone.gap, work.contention_free_gap)
    return replace(
        alone,
        busy=np.maximum(alone.busy - work.busy, 0.0) / work.devices,  # each device would have its own process
        waiting=np.maximum(alone.waiting - work.waiting, 0.0),
        blocking=alone.blocking & ~work.blocks,
        latency=np.where(removed, np.fmin(alone.latency, 0.0), remainder(alone.latency, work.latency)),
        duration=np.where(removed, 0.0, alone.duration),
        gap=np.where(removed, np.fmin(alone.gap, 0.0), remainder(gap, work.gap)),
        communicates=False,
    )


def without_bucket_copy(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove copies of gradients into and out of communication buckets."""
    bucket_copy = what_if.model.bucket_copy
    return replace(
        scenario,
        duration=np.where(bucket_copy, 0.0, scenario.duration),
        gap=np.where(bucket_copy, np.fmin(scenario.gap, 0.0), scenario.gap),  # negative gaps (overlap) remain
    )


def without_communication_calls(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Remove host calls for communication, except a rank's excess over its peers."""
    scenario = replace(scenario, busy=np.maximum(scenario.busy - what_if.model.communication.calls, 0.0))
    if what_if.timeline.tracks[0].is_cpu:  # work before a collective's call is the training itself
        return scenario
    device = what_if.graph.device
    launches = device.launch[(device.op_class == OpClass.COMMUNICATION) | what_if.model.bucket_copy]
    called = np.zeros(len(scenario.busy), np.bool_)
    called[launches[launches != NONE]] = True
    return replace(scenario, busy=np.where(called, scenario.busy - common(what_if, scenario, "launch"), scenario.busy))


def transports(facts: Facts) -> tuple[str, ...]:
    """Return the names of the transports whose collectives the probes measured; `with_transport` accepts each name."""
    return tuple(dict.fromkeys(collective.strategy.removesuffix(QUEUED) for collective in facts.collectives))


def with_transport(what_if: WhatIf, scenario: Scenario, facts: Facts, transport: str) -> Scenario | None:
    """Give each collective the transfer time that the probes measured for its operation, size and number of ranks.

    Collectives without a measurement keep their time. If a device track's total transfer time falls, the contention
    of its transfers falls by the same share; if the time rises, contention stays the same.

    Returns:
        None if no collective of the job was measured over this transport.
    """
    transfer = scenario.transfer.copy()
    probed_us: dict[tuple[str, int, int], float | None] = {}
    for op, signature in _collectives_of_known_size(what_if):
        if signature not in probed_us:
            operation, size_bytes, ranks = signature
            probed_us[signature] = probed_time_us(facts, operation, size_bytes, ranks, transport)
        time_us = probed_us[signature]
        if time_us is not None:
            transfer[op] = time_us * NS_PER_US
    if all(time_us is None for time_us in probed_us.values()):
        return None
    track = what_if.graph.device.track
    before = np.bincount(track, weights=np.nan_to_num(scenario.transfer))
    after = np.bincount(track, weights=np.nan_to_num(transfer))
    removed = np.clip(1 - after / np.maximum(before, 1.0), 0.0, 1.0)[track]
    duration = what_if.model.contention.transfer_removed_from(scenario.duration, removed)
    return replace(scenario, transfer=transfer, duration=duration)


def with_pinned_copies(what_if: WhatIf, scenario: Scenario, facts: Facts) -> Scenario | None:
    """Copy from and to pageable memory at the measured rate of pinned memory, without blocking the host.

    Returns:
        None if the probes did not measure the rate, or the job has no pageable copies of known size.
    """
    rate, size = pinned_to_device(facts), _pageable_bytes(what_if)
    if rate is None or not size.any():
        return None
    return with_host_copies(what_if, scenario, np.where(size > 0, size / rate, scenario.duration))


def _collectives_of_known_size(what_if: WhatIf) -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield (op, (operation, bytes, ranks)) of each matched collective whose size is known."""
    device, timeline = what_if.graph.device, what_if.timeline
    matched = np.flatnonzero(~np.isnan(device.transfer))
    for index in set(device.track[matched].tolist()):
        table = timeline.tracks[index].collectives
        kind_of_row = dict(zip(table.row.tolist(), table.kind.tolist(), strict=True))
        for op in matched[device.track[matched] == index].tolist():
            operation, _, ranks, size = table.kinds[kind_of_row[int(device.row[op])]]
            if size is not None:
                yield op, (operation, size, ranks or timeline.world_size)


def _pageable_bytes(what_if: WhatIf) -> NDArray[np.float64]:
    """Return float64[m]: bytes of each copy from or to pageable memory; 0 for other ops and if unknown."""
    device, timeline = what_if.graph.device, what_if.timeline
    size = np.zeros(len(device.start))
    for op in np.flatnonzero(device.host_copy).tolist():
        events = timeline.traces[timeline.tracks[device.track[op]].trace].events
        row = int(device.row[op])
        if events.host_memory[row] == HostMemory.PAGEABLE:
            size[op] = max(int(events.size_bytes[row]), 0)
    return size
