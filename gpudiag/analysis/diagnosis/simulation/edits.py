"""Edits of a job's costs, each from given costs to new ones, so that they can be put on top of one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import GAP_IN_GRAPH_NS, NOTABLE_PERCENT, QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.communication import remainder
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block, Costs
from gpudiag.analysis.diagnosis.simulation.levels import (
    PARTS,
    amount,
    common,
    levelled,
    releases,
    syncs,
    waiting_more,
    without_waiting,
)
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.event import any_of
from gpudiag.model.timeline import OpClass


def level(what_if: WhatIf, costs: Costs, *, each_step: bool = False) -> Costs:
    """All ranks need the same of everything."""
    return levelled(what_if, costs, PARTS, each_step=each_step)


def without_input(what_if: WhatIf, costs: Costs) -> Costs:
    """No waiting for data, marked or not. Waiting for the exchange stays, and so does a thread that is elsewhere."""
    stays = what_if.exchanged.waiting + amount(what_if, costs, "stall")
    return replace(costs, waiting=np.fmin(costs.waiting, stays))


def without_common_input(what_if: WhatIf, costs: Costs) -> Costs:
    """No waiting for data but what one rank waits more than its peers."""
    # What is waited for is the exchange for as long as one is under way.
    waited = np.maximum(common(what_if, costs, "input") - what_if.exchanged.waiting, 0.0)
    return replace(costs, waiting=costs.waiting - waited)


def without_stalls(what_if: WhatIf, costs: Costs) -> Costs:
    """The training thread is never elsewhere."""
    return replace(costs, waiting=costs.waiting - amount(what_if, costs, "stall"))


def without_common_stalls(what_if: WhatIf, costs: Costs) -> Costs:
    """The training thread is elsewhere only for as long as one rank's is longer than its peers'."""
    return replace(costs, waiting=costs.waiting - common(what_if, costs, "stall"))


def without_common_slow_calls(what_if: WhatIf, costs: Costs) -> Costs:
    """No call is slow by itself, or computes on the CPU, but for what one rank has more of them."""
    slow = common(what_if, costs, "operators")
    return replace(costs, busy=np.maximum(costs.busy - slow, np.fmin(costs.busy, what_if.exchanged.busy)))


def without_allocation(what_if: WhatIf, costs: Costs) -> Costs:
    """No memory is taken from the driver or given back to it, but for what one rank needs more of that."""
    taken, released = common(what_if, costs, "allocation"), releases(what_if)
    released &= ~any_of(what_if.graph.host.process, *waiting_more(what_if, released))
    return replace(
        costs,
        busy=np.maximum(costs.busy - taken, np.fmin(costs.busy, what_if.exchanged.busy)),
        blocking=costs.blocking & ~released,
    )


def without_launch_cost(what_if: WhatIf, costs: Costs) -> Costs:
    """Framework and launch calls take no time. What the exchange has the host do stays."""
    return replace(costs, busy=np.fmin(costs.busy, what_if.exchanged.busy + what_if.exchanged.calls))


def as_cuda_graph(what_if: WhatIf, costs: Costs) -> Costs:
    """Steps as CUDA graphs, of ranks that are level: one host that is slower than the others makes a straggler.

    The step is launched at once: no time on the host, and kernels that follow each other as in a CUDA graph. Closer
    together come only kernels that the device waited for. Where the device does not wait for the host that would be all
    of the gain, and is not counted.
    """
    part = what_if.exchanged
    needed = common(what_if, costs, "launch") + common(what_if, costs, "operators")
    busy = costs.busy - np.maximum(needed - part.busy - part.calls, 0.0)
    launched = replace(costs, busy=busy)
    before, after = what_if.each_step_ms([costs, launched])
    if before - after < NOTABLE_PERCENT / 100 * before:
        return launched
    host, device = what_if.graph.host, what_if.graph.device
    waited_for = (device.launch != NONE) & (device.start - host.time[np.maximum(device.launch, 0)] <= QUEUED_NS)
    waited_for &= device.op_class == OpClass.COMPUTE
    return replace(launched, gap=np.where(waited_for, np.fmin(costs.gap, GAP_IN_GRAPH_NS), costs.gap))


def without_syncs(what_if: WhatIf, costs: Costs) -> Costs:
    """The host never waits for the device in a synchronization, and nothing is copied to it to be waited for.

    Without its `.item()` a step has no copy of four bytes either, nor the gap behind it.
    """
    return without_waiting(what_if, costs, syncs(what_if))


def with_host_copies(what_if: WhatIf, costs: Costs, duration_ns: NDArray[np.float64] | float = 0.0) -> Costs:
    """Copies between host and device take `duration_ns` (at most what they took) and do not block the host.

    Of copies that follow one another the host's work for all but the first goes too: they could be one.
    """
    host, device = what_if.graph.host, what_if.graph.device
    faster = np.minimum(costs.duration, duration_ns)
    launches = device.launch[device.host_copy & (device.launch != NONE)]
    copying = np.zeros(len(host.time), np.bool_)
    copying[launches] = True
    copying |= host.block == Block.PAGEABLE
    following = copying & np.concatenate([[False], copying[:-1]])
    return replace(
        costs,
        busy=np.where(following, np.fmin(costs.busy, what_if.exchanged.busy), costs.busy),
        duration=np.where(device.host_copy, faster, costs.duration),
        blocking=costs.blocking & (what_if.graph.host.block != Block.PAGEABLE),
    )


def without_transfer(what_if: WhatIf, costs: Costs) -> Costs:
    """Collectives take no longer than their last participant takes to arrive, and their transfers slow no kernel.

    What they slow while they wait for a late rank is that rank's doing.
    """
    as_measured = what_if.measured.duration
    slowed = as_measured - what_if.baseline.relieved_of_transfer(as_measured)
    return replace(
        undisturbing(costs),
        duration=np.fmax(what_if.baseline.relieved(costs.duration), costs.duration - slowed),
    )


def undisturbing(costs: Costs) -> Costs:
    """Collectives transfer in no time; the kernels beside them take as long as they did."""
    return replace(costs, transfer=np.where(np.isnan(costs.transfer), costs.transfer, 0.0))


def without_communication(what_if: WhatIf, costs: Costs) -> Costs:
    """The ranks train each for itself: no transfer, no packing of gradients, nothing disturbed beside them, and no
    calls on the host for any of it.

    They still wait for one another, so that a late rank's lateness is not counted as the exchange's.
    """
    alone = without_transfer(what_if, without_communication_calls(what_if, costs))
    part = what_if.exchanged
    gone = what_if.bucket_copy | (what_if.graph.device.op_class == OpClass.COMMUNICATION)
    gap = np.fmin(alone.gap, part.undisturbed_gap)
    return replace(
        alone,
        busy=np.maximum(alone.busy - part.busy, 0.0) / part.devices,
        waiting=np.maximum(alone.waiting - part.waiting, 0.0),
        blocking=alone.blocking & ~part.blocks,
        latency=np.where(gone, np.fmin(alone.latency, 0.0), remainder(alone.latency, part.latency)),
        duration=np.where(gone, 0.0, alone.duration),
        gap=np.where(gone, np.fmin(alone.gap, 0.0), remainder(gap, part.gap)),
        exchanged=False,
    )


def without_bucket_copy(what_if: WhatIf, costs: Costs) -> Costs:
    """Gradients need not be moved in and out of the buckets in which they are exchanged."""
    bucket_copy = what_if.bucket_copy
    return replace(
        costs,
        duration=np.where(bucket_copy, 0.0, costs.duration),
        gap=np.where(bucket_copy, np.fmin(costs.gap, 0.0), costs.gap),
    )


def without_communication_calls(what_if: WhatIf, costs: Costs) -> Costs:
    """The host's calls for the exchange take no time; what one takes more than the others is its slowness."""
    costs = replace(costs, busy=np.maximum(costs.busy - what_if.exchanged.calls, 0.0))
    if what_if.timeline.tracks[0].is_cpu:  # there what comes before a collective's call is the training itself
        return costs
    device = what_if.graph.device
    launches = device.launch[(device.op_class == OpClass.COMMUNICATION) | what_if.bucket_copy]
    called = np.zeros(len(costs.busy), np.bool_)
    called[launches[launches != NONE]] = True
    return replace(costs, busy=np.where(called, costs.busy - common(what_if, costs, "launch"), costs.busy))
