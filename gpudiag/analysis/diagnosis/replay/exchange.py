"""What the exchange of gradients costs a step besides its transfers.

The cost of communication is what the step would be shorter if the ranks trained each for itself. That is more than its
transfers:

* *Packing*: DDP scales gradients and copies them into buckets, and often back out of them (0.3 ms of VGG-16's step,
  1.1 ms of a GPT's with views off). The reader tells the operators that do so.
* *Disturbance*: a kernel that runs beside a collective is slower (`undisturbed_baseline`), and starts later after the
  one before it:
  3.4 against 1.6 µs in the mean on an H200 whose all-reduces went through host memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.replay.graph import NONE, Graph
from gpudiag.intervals import Intervals, union
from gpudiag.model.event import Role
from gpudiag.model.timeline import OpClass, Timeline
from gpudiag.units import NS_PER_US

#: An op launched this long before it started stood in a queue: its gap is the device's own.
QUEUED_NS = 20 * NS_PER_US


def packing_ops(graph: Graph, timeline: Timeline) -> NDArray[np.bool_]:
    """bool[m]: the ops that only move gradients in and out of the buckets in which they are exchanged."""
    host, device = graph.host, graph.device
    node_packs = np.zeros(len(host.time), np.bool_)
    for trace in graph.ranks:
        events = timeline.traces[trace].events
        operators = np.flatnonzero(events.role == Role.PACKING)
        nodes = np.flatnonzero((host.process == trace) & (host.row != NONE))
        for thread in np.unique(events.thread[operators]):
            mine = operators[events.thread[operators] == thread]
            spans = union(Intervals(events.start_ns[mine], events.end_ns[mine]))
            of_thread = nodes[events.thread[host.row[nodes]] == thread]
            called = events.start_ns[host.row[of_thread]]
            slot = np.searchsorted(spans.start, called, side="right") - 1
            node_packs[of_thread] = (slot >= 0) & (called < spans.end[np.maximum(slot, 0)])
    packs: NDArray[np.bool_] = node_packs[np.maximum(device.launch, 0)]
    packs &= (device.launch != NONE) & (device.op_class != OpClass.COMMUNICATION) & ~device.host_copy
    return packs


def undisturbed_gaps(graph: Graph, timeline: Timeline) -> NDArray[np.float64]:
    """float64[m]: gaps as they would be beside no collective; never longer than they were.

    A gap beside a collective is taken to be what is usual on that device for ops out of a full queue beside none.
    """
    host, device = graph.host, graph.device
    gap = device.gap.copy()
    reached = np.where(device.launch != NONE, host.time[np.maximum(device.launch, 0)], -np.inf)
    queued = (device.launch != NONE) & (device.start - reached > QUEUED_NS)
    candidates = queued & (device.op_class != OpClass.COMMUNICATION)
    for index in np.unique(device.lane):
        table = timeline.lanes[index].collectives
        busy = union(Intervals(table.start, table.end))
        if len(busy) == 0:
            continue
        mine = np.flatnonzero(candidates & (device.lane == index))
        # Beside a collective when one ran at any time from the end of the work before to the start.
        slot = np.searchsorted(busy.start, device.start[mine], side="left") - 1
        beside = (slot >= 0) & (busy.end[np.maximum(slot, 0)] > device.start[mine] - device.gap[mine])
        if beside.all():
            continue
        usual = float(np.median(gap[mine[~beside]]))
        gap[mine[beside]] = np.minimum(gap[mine[beside]], usual)
    return gap
