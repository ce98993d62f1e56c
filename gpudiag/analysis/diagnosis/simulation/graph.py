"""The replay graph: what each host call and each device op waits for, as columns.

Two kinds of nodes, in program order:

* A *host node* is the end of a call on a host chain that launches device work or waits for it. A chain is the training
  thread together with the threads that take turns with it (PyTorch's autograd thread). Node i is reached at

      t[i] = max(t[i - 1] + work[i],  end[block_on[i]] + block_delay[i])

  where the second part is there only for calls that wait for the device.

* A *device op* j starts and ends at

      start[j] = max(t[launch[j]] + latency[j],  max(end before it in its stream, end of its waits) + gap[j])
      end[j]   = start[j] + duration[j],  or for a collective  max(start of the participants) + transfer[j]

Whatever bound an op when it was measured, its launch or the work before it, is given what explains its start exactly;
the other is given what is usual on that device: a launch reaches an idle device in 2.4 µs and kernels of a full queue
follow each other 1.2 µs apart (H200), so latency that an idle device showed is hidden once the host is faster. A graph
replayed unchanged gives back what was measured.

The graph holds the *body*: the analysed steps. It is replayed in a circle, the end of one turn being what the next
begins from, until a turn takes the same time as the last: the step time that the job would settle at. What a node needs
from one that comes after it in the body is that of the turn before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct

Times = NDArray[np.float64]
Index = NDArray[np.int64]

NONE = -1


class Block(IntEnum):
    """Why a host call may wait for the device."""

    NOT = 0
    SYNC = 1
    """A synchronization."""
    PAGEABLE = 2
    """A copy to the device that holds the host: from pageable memory, or synchronized right behind it."""
    QUEUE = 3
    """A launch while the device's queue was full: the host was far ahead."""
    COLLECTIVE = 4
    """A host-side collective (gloo) that the training thread waited for, or an exchange that an executor did."""
    RELEASE = 5
    """Memory given back to the driver, which waits for all that the device was given."""


class HostNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Host nodes of all chains, each chain's nodes together and in order. Times in ns, on the common clock.

    Attributes:
        time: float64[n], when the node was reached.
        busy, input, silent, stall: float64[n], what the work since the node before was: framework and Python; waiting
            for data; and time in which the thread recorded nothing for longer than a pause: `silent` between a step's
            mark and its first op, `stall` elsewhere, or collecting garbage.
        slow: float64[n], what of `busy` was spent in calls that are slow by themselves (`slow_calls`).
        allocating: float64[n], what of `busy` was spent in calls that take memory from the driver or give it back.
        profiler: float64[n], what of `busy` was the profiler's own doing, as its overhead events say.
        events: int64[n], events that the profiler recorded on the chain since the node before.
        block: uint8[n], a `Block`.
        block_on: int64[n], the op that a blocking call waits for, or `NONE`.
        block_delay: float64[n], from that op's end to the node.
        row: int64[n], row of the call in its trace's event table.
        process: int64[n], index of the process (trace) that the chain belongs to.
        step: int64[n], which of the body's steps, from 0.
    """

    time: Times
    busy: Times
    input: Times
    silent: Times
    stall: Times
    slow: Times
    allocating: Times
    profiler: Times
    events: Index
    block: NDArray[np.uint8]
    block_on: Index
    block_delay: Times
    row: Index
    process: Index
    step: Index


class DeviceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Device ops of all streams, each stream's ops together and in order. Times in ns, on the common clock.

    Attributes:
        start, end: float64[m], as measured.
        launch: int64[m], host node of the call that launched the op, or `NONE`.
        latency: float64[m], from the end of that call to the earliest start; negative where the op could start before
            the call returned.
        gap: float64[m], from the end of the work before it to the earliest start; negative where ops of one stream
            overlapped (programmatic dependent launch).
        wait_a, wait_b: int64[m], up to two ops of other streams that must have ended first, or `NONE`.
        transfer: float64[m], of a matched collective the time from the last arrival to its end; else NaN.
        peers: for each matched collective the ops (its own included) whose start it waits for.
        op_class: uint8[m], a `model.timeline.OpClass`.
        host_copy: bool[m], True for copies between host and device.
        lane: int64[m], index of the lane.
        step: int64[m], which of the body's steps, from 0.
        row: int64[m], row in the trace's event table.
    """

    start: Times
    end: Times
    launch: Index
    latency: Times
    gap: Times
    wait_a: Index
    wait_b: Index
    transfer: Times
    peers: dict[int, Index]
    op_class: NDArray[np.uint8]
    host_copy: NDArray[np.bool_]
    track: Index
    step: Index
    row: Index


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A job's analysed steps.

    Attributes:
        host, device: the nodes.
        chains: (first, after last) host node of each chain.
        streams: (first, after last) op of each stream.
        steps: how many steps the body holds.
        length_ns: how long the body took, as measured.
        ranks: rank of each process, by index of its trace.
    """

    host: HostNodes
    device: DeviceNodes
    chains: tuple[tuple[int, int], ...]
    streams: tuple[tuple[int, int], ...]
    steps: int
    length_ns: float
    ranks: dict[int, int]

    def processes(self) -> NDArray[np.int64]:
        """The distinct processes."""
        return distinct(self.host.process)


@dataclass(frozen=True, eq=False)
class Costs:
    """What an edit may change. Shapes as in the graph: host nodes n, device ops m; times in ns.

    Attributes:
        busy: float64[n], host work before each node.
        waiting: float64[n], what the host waited for data before each node.
        blocking: bool[n], whether the node still waits for its op.
        latency: float64[m], from the end of the call that launched each op to its earliest start.
        gap: float64[m], from the end of the work before each op to its earliest start.
        duration: float64[m], of ops that are no matched collectives.
        transfer: float64[m], of matched collectives from last arrival to end; NaN elsewhere.
        exchanged: False where the ranks exchange nothing; the replay itself does not hang on it.
    """

    busy: Times
    waiting: Times
    blocking: NDArray[np.bool_]
    latency: Times
    gap: Times
    duration: Times
    transfer: Times
    exchanged: bool = True


def unchanged(graph: Graph) -> Costs:
    """The costs as measured, the profiler's own included."""
    host, device = graph.host, graph.device
    return Costs(
        busy=host.busy,
        waiting=host.input + host.silent + host.stall,
        blocking=host.block_on != NONE,
        latency=device.latency,
        gap=device.gap,
        duration=device.end - device.start,
        transfer=device.transfer,
    )
