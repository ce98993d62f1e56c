"""What the exchange of gradients costs a step besides the transfers of its collectives.

The cost of communication is what the step would be shorter if the ranks trained each for itself. That is more than its
transfers:

* *Packing*: DDP scales gradients and copies them into buckets, and often back out of them (0.3 ms of VGG-16's step,
  1.1 ms of a GPT's with views off). The reader tells the operators that do so.
* *Disturbance*: a kernel that runs beside a collective is slower (`undisturbed_baseline`), and starts later after the
  one before it:
  3.4 against 1.6 µs in the mean on an H200 whose all-reduces went through host memory.
* *The host's part*: what its threads do in ranges of the exchange, and what the training thread waits meanwhile. An op
  that starts when the exchange lets it (an optimizer's first, after copies from another thread's stream) has a gap or a
  latency that no launch explains: what of it the exchange covers goes with the exchange.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block, Graph
from gpudiag.intervals import Intervals, distinct, intersect, lengths_inside, median, subtract, union, within
from gpudiag.model.event import HOST, Role, any_of
from gpudiag.model.timeline import DeviceTrack, OpClass, Timeline


def bucket_copy_ops(graph: Graph, timeline: Timeline) -> NDArray[np.bool_]:
    """bool[m]: the ops that only move gradients in and out of the buckets in which they are exchanged."""
    host, device = graph.host, graph.device
    node_packs = np.zeros(len(host.time), np.bool_)
    for trace in graph.ranks:
        events = timeline.traces[trace].events
        operators = np.flatnonzero(any_of(events.role, Role.BUCKET_COPY, Role.COMMUNICATION) & (events.device == HOST))
        nodes = np.flatnonzero((host.process == trace) & (host.row != NONE))
        for thread in distinct(events.thread[operators]):
            mine = operators[events.thread[operators] == thread]
            spans = union(Intervals(events.start_ns[mine], events.end_ns[mine]))
            updates = np.flatnonzero((events.role == Role.OPTIMIZER) & (events.thread == thread))
            # A parameter server's update, inside its exchange, would be made without one too.
            updates = updates[within(spans, events.start_ns[updates])]
            spans = subtract(spans, union(Intervals(events.start_ns[updates], events.end_ns[updates])))
            of_thread = nodes[events.thread[host.row[nodes]] == thread]
            node_packs[of_thread] = within(spans, events.start_ns[host.row[of_thread]])
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
    for index in distinct(device.track):
        table = timeline.tracks[index].collectives
        busy = union(Intervals(table.start, table.end))
        if len(busy) == 0:
            continue
        mine = np.flatnonzero(candidates & (device.track == index))
        # Beside a collective when one ran at any time from the end of the work before to the start.
        slot = np.searchsorted(busy.start, device.start[mine], side="left") - 1
        beside = (slot >= 0) & (busy.end[np.maximum(slot, 0)] > device.start[mine] - device.gap[mine])
        if beside.all():
            continue
        usual = median(gap[mine[~beside]])
        gap[mine[beside]] = np.minimum(gap[mine[beside]], usual)
    return gap


class HostPart(msgspec.Struct, frozen=True, kw_only=True):
    """What of a graph's nodes and ops is the exchange's, besides its collectives; times in ns.

    Attributes:
        calls: float64[n], of each host node's work handing collectives over and packing gradients.
        busy, waiting: float64[n], what else of it is the exchange's.
        blocks: bool[n], whether a node waits for the exchange: for one of its copies, or in one of its calls.
        devices: float64[n], how many devices the node's process drives: without an exchange each has a process of its
            own, which launches for it alone (an executor has a thread for each anyhow).
        undisturbed_gap: float64[m], each op's gap as it would be beside no collective.
        gap, latency: float64[m], what of each op's gap and latency passed while an exchange was under way.
    """

    calls: NDArray[np.float64]
    busy: NDArray[np.float64]
    waiting: NDArray[np.float64]
    blocks: NDArray[np.bool_]
    devices: NDArray[np.float64]
    undisturbed_gap: NDArray[np.float64]
    gap: NDArray[np.float64]
    latency: NDArray[np.float64]

    def any(self) -> bool:
        """Whether the hosts take part at all."""
        return bool(self.busy.any() or self.waiting.any() or self.blocks.any())


def host_part(graph: Graph, timeline: Timeline) -> HostPart:
    """What the exchange has the hosts do and wait for, and the ops whose starts it held up."""
    host, device = graph.host, graph.device
    part = HostPart(
        calls=np.zeros(len(host.time)),
        busy=np.zeros(len(host.time)),
        waiting=np.zeros(len(host.time)),
        blocks=np.zeros(len(host.time), np.bool_),
        devices=_devices(timeline)[host.process],
        undisturbed_gap=undisturbed_gaps(graph, timeline),
        gap=np.zeros(len(device.start)),
        latency=np.zeros(len(device.start)),
    )
    tracks = {track.trace: track for track in reversed(timeline.tracks)}
    for first, after in graph.chains:
        if first < after:
            _host_nodes(graph, timeline, tracks[int(host.process[first])], slice(first, after), part)
    for index in distinct(device.track).tolist():
        track = timeline.tracks[index]
        if track.is_cpu:
            continue
        moved = track.ops.intervals(OpClass.COMMUNICATION)
        # While a thread only waits, what it waits for is under way, and known by itself.
        at_work = subtract(track.host_communication, union(*(thread.blocked for thread in track.threads.values())))
        under_way = union(moved, Intervals(track.collectives.start, track.collectives.end), at_work)
        mine = np.flatnonzero((device.track == index) & (device.op_class != OpClass.COMMUNICATION))
        start = device.start[mine].astype(np.int64)
        for column, before in ((part.gap, device.gap), (part.latency, device.latency)):
            length = np.maximum(before[mine], 0.0).astype(np.int64)
            # A full queue or a launch takes its time with or without an exchange.
            least = np.minimum(length, median(length))
            column[mine] = np.minimum(_covered(under_way, start - length, start), length - least)
    return part


def remainder(amount: NDArray[np.float64], taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n]: amounts less what is taken of them; what is negative stays."""
    return np.where(amount > 0, np.maximum(amount - taken, 0.0), amount)


def _devices(timeline: Timeline) -> NDArray[np.float64]:
    """float64: for how many devices a thread of each process launches in turn."""
    driven = np.bincount([track.trace for track in timeline.tracks], minlength=len(timeline.traces))
    return np.where([trace.waits_in_collectives for trace in timeline.traces], 1.0, np.maximum(driven, 1))


def _host_nodes(graph: Graph, timeline: Timeline, track: DeviceTrack, nodes: slice, part: HostPart) -> None:
    host = graph.host
    events = timeline.traces[track.trace].events
    rows = host.row[nodes]
    called = np.where(rows != NONE, events.start_ns[np.maximum(rows, 0)] + track.shift_ns, 0)
    threads = {track.steps.thread, *distinct(events.thread[rows[rows != NONE]]).tolist()}
    busy = union(*(track.threads[thread].busy for thread in threads if thread in track.threads))
    own = union(*(spans for thread, spans in track.communication.items() if thread in threads))
    calls = subtract(union(*(spans for thread, spans in track.communication_calls.items() if thread in threads)), own)
    others = union(*(spans for thread, spans in track.communication.items() if thread not in threads))
    others = subtract(subtract(others, busy), own)
    until = host.time[nodes].astype(np.int64)
    before = np.concatenate([until[:1], until[:-1]])
    blocked = host.block_on[nodes] != NONE
    until = np.where(blocked & (rows != NONE), np.maximum(called, before), until)
    part.calls[nodes] = np.minimum(_covered(calls, before, until), host.busy[nodes])
    part.busy[nodes] = np.minimum(_covered(intersect(own, busy), before, until), host.busy[nodes] - part.calls[nodes])
    silent = union(subtract(own, busy), others)
    part.waiting[nodes] = np.minimum(_covered(silent, before, until), (host.input + host.silent + host.stall)[nodes])
    unmatched = np.isnan(graph.device.transfer) & (graph.device.op_class == OpClass.COMMUNICATION)
    inside = (rows != NONE) & within(own, called)
    inside[blocked] |= unmatched[host.block_on[nodes][blocked]]
    # An executor's wait for an exchange; on a CPU what is waited for is gone and not the wait.
    inside |= (host.block[nodes] == Block.COLLECTIVE) & (not track.is_cpu)
    part.blocks[nodes] = blocked & inside


def _covered(spans: Intervals, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[n]: length of the set inside each [begin, end); these may overlap and come in any order."""
    return np.maximum(lengths_inside(spans, begin, end), 0).astype(np.float64)
