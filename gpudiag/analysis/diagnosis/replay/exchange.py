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
from gpudiag.intervals import Intervals, lengths_between, subtract, union
from gpudiag.model.event import HOST, EventKind, EventTable, Role
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


def exchange_on_host(graph: Graph, timeline: Timeline) -> NDArray[np.float64]:
    """float64[n]: of the work before each node what the host did for an exchange that it carries out itself.

    TensorFlow's executor does. It is the exchange's own spans, as long as nothing was launched beside them.
    """
    host = graph.host
    work = np.zeros(len(host.time))
    for (first, after), trace in zip(graph.chains, graph.ranks, strict=True):
        events = timeline.traces[trace].events
        nodes = np.arange(first, after)[host.row[first:after] != NONE]
        if not len(nodes):
            continue
        shift = next(lane.shift_ns for lane in timeline.lanes if lane.trace == trace)
        exchanging = (events.role == Role.EXCHANGE) & (events.device == HOST) & (events.kind != EventKind.RUNTIME)
        launching = (events.kind == EventKind.RUNTIME) & (events.role != Role.EXCHANGE)
        own = subtract(_spans(events, exchanging, shift), _spans(events, launching, shift))
        time = host.time[nodes].astype(np.int64)
        work[nodes] = lengths_between(own, np.concatenate([time[:1], time]))
    return np.minimum(work, host.busy)


def _spans(events: EventTable, chosen: NDArray[np.bool_], shift_ns: int) -> Intervals:
    return union(Intervals(events.start_ns[chosen] + shift_ns, events.end_ns[chosen] + shift_ns))
