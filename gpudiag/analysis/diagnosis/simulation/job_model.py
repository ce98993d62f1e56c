"""The immutable model of a job: its graph, its communication and contention, and its simulation.

The cost of communication is the step time saved if every rank trained by itself. Besides transfers, this cost includes:

* *Bucket copies*: DDP scales gradients and copies them into buckets, and often back (0.3 ms of VGG-16's step, 1.1 ms of
  a GPT's with `gradient_as_bucket_view=False`). The trace reader marks these operators by a role.
* *Contention*: a kernel beside a collective is slower (`contention`), and starts later after the previous kernel: in
  the mean 3.4 instead of 1.6 µs on an H200 whose all-reduces went through host memory.
* *Host work*: the work of threads in communication ranges, and the training thread's waits for this work. An op whose
  start depends on communication (an optimizer's first op, after copies from another thread's stream) has a gap or
  latency that no launch explains. The share of the gap or latency that overlaps communication is removed with
  communication.

The model does not depend on the profiler overhead, so scenarios with different overhead share one model.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import QUEUED_NS
from gpudiag.analysis.diagnosis.simulation.contention import Contention, find_contention
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, HostBlock, Scenario, Times, recorded_scenario
from gpudiag.analysis.diagnosis.simulation.imbalance import host_segments, op_segments
from gpudiag.analysis.diagnosis.simulation.profiler_cost import HostPace, host_pace
from gpudiag.analysis.diagnosis.simulation.simulate import System, simulate
from gpudiag.intervals import Intervals, distinct, intersect, lengths_inside, median, subtract, union, within
from gpudiag.model.event import HOST, EventTable, Role, any_of
from gpudiag.model.timeline import DeviceTrack, OpClass, Timeline


def bucket_copy_ops(graph: Graph, timeline: Timeline) -> NDArray[np.bool_]:
    """Return bool[m]: ops that only copy gradients into or out of communication buckets."""
    host, device = graph.host, graph.device
    node_copies = np.zeros(len(host.time), np.bool_)
    for trace in graph.ranks:
        events = timeline.traces[trace].events
        # Kernels that communication operators launch, other than collectives, copy gradients too.
        operators = np.flatnonzero(any_of(events.role, Role.BUCKET_COPY, Role.COMMUNICATION) & (events.device == HOST))
        nodes = np.flatnonzero((host.process == trace) & (host.row != NONE))
        for thread in distinct(events.thread[operators]):
            spans = _bucket_copy_spans(events, operators[events.thread[operators] == thread], thread)
            on_thread = nodes[events.thread[host.row[nodes]] == thread]
            node_copies[on_thread] = within(spans, events.start_ns[host.row[on_thread]])
    copies: NDArray[np.bool_] = node_copies[np.maximum(device.launch, 0)]
    copies &= (device.launch != NONE) & (device.op_class != OpClass.COMMUNICATION) & ~device.host_copy
    return copies


def _bucket_copy_spans(events: EventTable, operators: NDArray[np.intp], thread: np.int64) -> Intervals:
    """Return the times in which a thread is in these operators, except in optimizer updates that begin inside them.

    A parameter server's update runs inside its communication, but would also be needed without communication.
    """
    spans = union(Intervals(events.start_ns[operators], events.end_ns[operators]))
    updates = np.flatnonzero((events.role == Role.OPTIMIZER) & (events.thread == thread))
    updates = updates[within(spans, events.start_ns[updates])]
    return subtract(spans, union(Intervals(events.start_ns[updates], events.end_ns[updates])))


def contention_free_gaps(graph: Graph, timeline: Timeline) -> Times:
    """Return float64[m]: each op's gap without contention by collectives, never longer than recorded.

    A gap during a collective becomes the median gap of the device's queued ops without a collective.
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
        ops = np.flatnonzero(candidates & (device.track == index))
        # An op is beside a collective that ran at any time between the end of the previous work and the op's start.
        slot = np.searchsorted(busy.start, device.start[ops], side="left") - 1
        beside = (slot >= 0) & (busy.end[np.maximum(slot, 0)] > device.start[ops] - device.gap[ops])
        if not beside.all():
            gap[ops[beside]] = np.minimum(gap[ops[beside]], median(gap[ops[~beside]]))
    return gap


class CommunicationWork(msgspec.Struct, frozen=True, kw_only=True):
    """Host and device work caused by communication, other than collectives; times in ns.

    Attributes:
        calls: float64[n], work before each host node for enqueuing collectives and copying buckets.
        busy, waiting: float64[n], other host work and waiting for communication.
        blocks: bool[n], whether a node waits for a copy of communication, or in a call of communication.
        devices: float64[n], number of devices for which the node's process launches in turn. Without communication,
            each device would have its own process. An executor (TensorFlow, XLA) has a thread for each device, so that
            it counts as 1.
        contention_free_gap: float64[m], each op's gap without a collective beside it.
        gap, latency: float64[m], the part of each op's gap and latency during which communication was under way.
    """

    calls: Times
    busy: Times
    waiting: Times
    blocks: NDArray[np.bool_]
    devices: Times
    contention_free_gap: Times
    gap: Times
    latency: Times

    def any(self) -> bool:
        """Return whether the hosts do any work for communication."""
        return bool(self.busy.any() or self.waiting.any() or self.blocks.any())


def communication_work(graph: Graph, timeline: Timeline) -> CommunicationWork:
    """Find the host and device work caused by communication, other than collectives."""
    host, device = graph.host, graph.device
    work = CommunicationWork(
        calls=np.zeros(len(host.time)),
        busy=np.zeros(len(host.time)),
        waiting=np.zeros(len(host.time)),
        blocks=np.zeros(len(host.time), np.bool_),
        devices=_devices(timeline)[host.process],
        contention_free_gap=contention_free_gaps(graph, timeline),
        gap=np.zeros(len(device.start)),
        latency=np.zeros(len(device.start)),
    )
    tracks = {track.trace: track for track in reversed(timeline.tracks)}  # the first track of each process
    for first, after in graph.chains:
        if first < after:
            _add_host_work(graph, timeline, tracks[int(host.process[first])], slice(first, after), work)
    for index in distinct(device.track).tolist():
        track = timeline.tracks[index]
        if track.is_cpu:
            continue
        # The time of a waiting thread is excluded, because the awaited work counts instead.
        at_work = subtract(track.host_communication, union(*(thread.blocked for thread in track.threads.values())))
        collectives = Intervals(track.collectives.start, track.collectives.end)
        under_way = union(track.ops.intervals(OpClass.COMMUNICATION), collectives, at_work)
        ops = np.flatnonzero((device.track == index) & (device.op_class != OpClass.COMMUNICATION))
        start = device.start[ops].astype(np.int64)
        for column, recorded in ((work.gap, device.gap), (work.latency, device.latency)):
            length = np.maximum(recorded[ops], 0.0).astype(np.int64)
            # Without communication, a gap or latency of the usual length remains.
            usual = np.minimum(length, median(length))
            column[ops] = np.minimum(_covered(under_way, start - length, start), length - usual)
    return work


def remainder(amount: Times, taken: Times) -> Times:
    """Return float64[n]: positive amounts minus `taken`, at least 0; negative amounts are unchanged."""
    return np.where(amount > 0, np.maximum(amount - taken, 0.0), amount)


def _devices(timeline: Timeline) -> Times:
    """Return float64[traces]: the number of devices for which a thread of each process launches in turn."""
    driven = np.bincount([track.trace for track in timeline.tracks], minlength=len(timeline.traces))
    return np.where([trace.waits_in_collectives for trace in timeline.traces], 1.0, np.maximum(driven, 1))


def _add_host_work(graph: Graph, timeline: Timeline, track: DeviceTrack, nodes: slice, work: CommunicationWork) -> None:
    """Fill in the host columns of `work` for the `nodes` of one chain, whose process has the `track`.

    Communication of the chain's threads is work while they are busy, else waiting. The chain waits for communication of
    other threads while its own threads are not busy. No node gets more work or waiting than was recorded for it.
    """
    host = graph.host
    events = timeline.traces[track.trace].events
    rows = host.row[nodes]
    called = np.where(rows != NONE, events.start_ns[np.maximum(rows, 0)] + track.shift_ns, 0)
    threads = {track.steps.thread, *distinct(events.thread[rows[rows != NONE]]).tolist()}
    busy = union(*(track.threads[thread].busy for thread in threads if thread in track.threads))
    on_chain = union(*(spans for thread, spans in track.communication.items() if thread in threads))
    calls = union(*(spans for thread, spans in track.communication_calls.items() if thread in threads))
    calls = subtract(calls, on_chain)  # enqueues and bucket copies outside of communication
    elsewhere = union(*(spans for thread, spans in track.communication.items() if thread not in threads))
    elsewhere = subtract(subtract(elsewhere, busy), on_chain)
    until = host.time[nodes].astype(np.int64)
    before = np.concatenate([until[:1], until[:-1]])
    blocked = host.block_on[nodes] != NONE
    until = np.where(blocked & (rows != NONE), np.maximum(called, before), until)  # a blocking call is no work
    work.calls[nodes] = np.minimum(_covered(calls, before, until), host.busy[nodes])
    in_ranges = _covered(intersect(on_chain, busy), before, until)
    work.busy[nodes] = np.minimum(in_ranges, host.busy[nodes] - work.calls[nodes])
    idle = union(subtract(on_chain, busy), elsewhere)
    waiting = (host.input + host.before_first_op + host.untraced)[nodes]
    work.waiting[nodes] = np.minimum(_covered(idle, before, until), waiting)
    # Communication that is no matched collective, such as copies.
    unmatched = np.isnan(graph.device.transfer) & (graph.device.op_class == OpClass.COMMUNICATION)
    inside = (rows != NONE) & within(on_chain, called)
    inside[blocked] |= unmatched[host.block_on[nodes][blocked]]
    # An executor (TensorFlow, XLA) waits for communication. On a CPU the awaited collective is removed, not the wait.
    inside |= (host.block[nodes] == HostBlock.COLLECTIVE) & (not track.is_cpu)
    work.blocks[nodes] = blocked & inside


def _covered(spans: Intervals, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Times:
    """Return float64[n], ns: length of `spans` inside each [begin, end), which may overlap and come in any order."""
    return np.maximum(lengths_inside(spans, begin, end), 0).astype(np.float64)


class SimulatedStep(msgspec.Struct, frozen=True):
    """The mean step time, the time of each step, and the total wait of each track's collectives for peers, in ns."""

    step_ns: float
    steps_ns: NDArray[np.float64]
    waited_ns: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JobModel:
    """A graph and the timeline from which it was built; derived data is computed once, on first use."""

    graph: Graph
    timeline: Timeline
    _by_scenario: MutableMapping[Scenario, SimulatedStep] = field(default_factory=WeakKeyDictionary, init=False)
    _by_weights: dict[bytes, SimulatedStep] = field(default_factory=dict, init=False)

    @cached_property
    def recorded(self) -> Scenario:
        """Return the durations as recorded."""
        return recorded_scenario(self.graph)

    @cached_property
    def contention(self) -> Contention:
        """Return the contention of kernels beside collectives."""
        return find_contention(self.graph, self.timeline)

    @cached_property
    def communication(self) -> CommunicationWork:
        """Return the host and device work caused by communication, other than collectives."""
        return communication_work(self.graph, self.timeline)

    @cached_property
    def bucket_copy(self) -> NDArray[np.bool_]:
        """Return bool[m]: ops that only copy gradients into or out of communication buckets."""
        return bucket_copy_ops(self.graph, self.timeline)

    @cached_property
    def process_of_op(self) -> NDArray[np.int64]:
        """Return int64[m]: index of the process that drives each op's device."""
        return np.array([track.trace for track in self.timeline.tracks], np.int64)[self.graph.device.track]

    @cached_property
    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (int64[n], int64[m]): each host node's and each op's segment between collectives (`imbalance`)."""
        segment_of_node = host_segments(self.graph)
        return segment_of_node, op_segments(self.graph, segment_of_node)

    @cached_property
    def host_pace(self) -> HostPace:
        """Return the pace of each host."""
        return host_pace(self.graph)

    @cached_property
    def system(self) -> System:
        """Return the graph compiled for simulation."""
        return System(self.graph)

    def simulate(self, scenario: Scenario) -> SimulatedStep:
        """Simulate a scenario; if collectives wait less than recorded, kernels during these waits are slowed less."""
        return self._simulate(self.with_less_contention(scenario))

    def with_less_contention(self, scenario: Scenario) -> Scenario:
        """Shorten kernels during collectives in proportion to the wait that the scenario removes."""
        if not self.contention.waiting_share.any():
            return scenario
        waited = self._simulate(scenario).waited_ns
        removed = np.clip(1 - waited / np.maximum(self._recorded_waits_ns, 1.0), 0.0, 1.0)[self.graph.device.track]
        recorded = self.recorded.duration
        shorter = self.contention.waiting_removed_from(recorded, removed)
        # A kernel that the scenario lengthens is shortened by the same share as the recorded kernel.
        lengthened = scenario.duration > recorded
        share = shorter / np.maximum(recorded, 1.0)
        duration = np.where(lengthened, scenario.duration * share, np.fmin(scenario.duration, shorter))
        return scenario if np.array_equal(duration, scenario.duration) else replace(scenario, duration=duration)

    def _simulate(self, scenario: Scenario) -> SimulatedStep:
        """Simulate the scenario exactly as given, or return the result of a scenario with equal weights."""
        if scenario not in self._by_scenario:
            weights = self.system.weights(scenario)
            key = weights.tobytes()
            if key not in self._by_weights:
                steady = simulate(self.system, weights)
                self._by_weights[key] = SimulatedStep(steady.step_ns, steady.steps_ns, self._by_track(steady.waited))
            self._by_scenario[scenario] = self._by_weights[key]
        return self._by_scenario[scenario]

    @cached_property
    def _recorded_waits_ns(self) -> NDArray[np.float64]:
        return self._by_track(self.system.waited(np.array(self.system.measured)))

    def _by_track(self, op_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(self.graph.device.track, weights=op_ns).astype(np.float64)
