"""The simulation graph: the dependencies and durations of host calls and device ops, as columns.

Two kinds of nodes, in program order:

* A *host node* is the end of a call on a host chain that launches device work or waits for it. A chain is the training
  thread together with the threads that take turns with it (PyTorch's autograd thread). Node i is reached at

      t[i] = max(t[i - 1] + work[i],  end[block_on[i]] + block_delay[i])

  where the second term exists only for calls that wait for the device.

* A *device op* j starts and ends at

      start[j] = max(t[launch[j]] + latency[j],  max(end before it in its stream, end of its waits) + gap[j])
      end[j]   = start[j] + duration[j],  or for a collective  max(start of the participants) + transfer[j]

If the launch determined the recorded start, the latency explains the start exactly, and the gap is the device's usual
gap. If the previous op determined the start, the gap explains the start exactly, and the latency is the usual latency.
On an H200, a launch reaches an idle device in 2.4 µs, and kernels of a full queue are 1.2 µs apart. If the host becomes
faster, the queue fills and hides the latency. The unchanged graph reproduces the recording.

The graph holds the analysed steps. The steps are simulated in a loop, in which each iteration begins at the end of the
previous iteration, until two iterations take the same time: the steady state of the job. A node that needs a later node
of the same iteration uses that node's time in the previous iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Index = NDArray[np.int64]

NONE = -1


class HostBlock(IntEnum):
    """The reason why a host call may wait for the device."""

    NOT = 0
    SYNC = 1
    """A synchronization."""
    PAGEABLE = 2
    """A copy to the device that blocks the host: from pageable memory, or followed by a synchronization."""
    QUEUE = 3
    """A launch while the launch queue was full."""
    COLLECTIVE = 4
    """A collective on the host (gloo) that the training thread waits for, or communication of TensorFlow's executor."""
    RELEASE = 5
    """Memory returned to the driver, which waits for all queued device work."""


class HostNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Host nodes of all chains, each chain's nodes together and in order; times in ns, on the common clock.

    Attributes:
        time: float64[n], at which the node was reached.
        busy: float64[n], framework and Python work since the previous node.
        input: float64[n], waiting for data since the previous node.
        before_first_op: float64[n], untraced host time between a step's mark and its first op, since the previous node.
        untraced: float64[n], other untraced host time since the previous node, garbage collection included.
        slow: float64[n], the part of `busy` in calls that are slow by themselves (`slow_calls`).
        allocating: float64[n], the part of `busy` in calls that allocate from the driver or return memory to it.
        profiler: float64[n], the part of `busy` that overhead events attribute to the profiler.
        events: int64[n], number of events that the profiler recorded on the chain since the previous node.
        block: uint8[n], a `HostBlock`.
        block_on: int64[n], the op that a blocking call waits for, or `NONE`.
        block_delay: float64[n], from the end of the awaited op to the node.
        row: int64[n], row of the call in its trace's event table.
        process: int64[n], index of the trace of the chain's process.
        step: int64[n], index of the analysed step.
    """

    time: Times
    busy: Times
    input: Times
    before_first_op: Times
    untraced: Times
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
    """Device ops of all streams, each stream's ops together and in order; times in ns, on the common clock.

    Attributes:
        start, end: float64[m], as recorded.
        launch: int64[m], host node of the call that launched the op, or `NONE`.
        latency: float64[m], from the end of that call to the earliest start; negative if the op could start before the
            call returned.
        gap: float64[m], from the end of the previous work to the earliest start; negative if ops of one stream
            overlapped (programmatic dependent launch).
        wait_a, wait_b: int64[m], up to two ops of other streams that the op waits for, or `NONE`.
        transfer: float64[m], time from the last arrival at a matched collective to its end; NaN for other ops.
        peers: op of a matched collective → the ops, itself included, whose start it waits for.
        op_class: uint8[m], a `model.timeline.OpClass`.
        host_copy: bool[m], True for copies between host and device.
        track: int64[m], index of the device track.
        step: int64[m], index of the analysed step.
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
    """The analysed steps of a job.

    Attributes:
        host, device: the nodes.
        chains: (first, after last) host node of each chain.
        streams: (first, after last) op of each stream.
        steps: number of steps.
        length_ns: recorded duration of these steps.
        ranks: rank of each process, by index of its trace.
        stages: pipeline stage of each process, by index of its trace; empty without a pipeline.
    """

    host: HostNodes
    device: DeviceNodes
    chains: tuple[tuple[int, int], ...]
    streams: tuple[tuple[int, int], ...]
    steps: int
    length_ns: float
    ranks: dict[int, int]
    stages: dict[int, int] = {}

    @property
    def peers(self) -> list[list[int]]:
        """Return the processes of each stage, which do the same work and are compared only with each other."""
        by_stage: dict[int, list[int]] = {}
        for process in self.ranks:
            by_stage.setdefault(self.stages.get(process, 0), []).append(process)
        return list(by_stage.values())


@dataclass(frozen=True, eq=False)
class Scenario:
    """The durations of a simulation, in ns, as columns of the graph's n host nodes and m device ops.

    Attributes:
        busy: float64[n], host work before each node.
        waiting: float64[n], time before each node in which the host waited for data or recorded nothing.
        blocking: bool[n], whether the node waits for its op.
        latency: float64[m], from the end of the launching call to the earliest start.
        gap: float64[m], from the end of the previous work to the earliest start.
        duration: float64[m], duration of each op that is no matched collective.
        transfer: float64[m], time from the last arrival at a matched collective to its end; NaN for other ops.
        communicates: False if the ranks do not communicate; a label, which does not change the simulation.
    """

    busy: Times
    waiting: Times
    blocking: NDArray[np.bool_]
    latency: Times
    gap: Times
    duration: Times
    transfer: Times
    communicates: bool = True


def recorded_scenario(graph: Graph) -> Scenario:
    """Return the durations as recorded, profiler overhead included."""
    host, device = graph.host, graph.device
    return Scenario(
        busy=host.busy,
        waiting=host.input + host.before_first_op + host.untraced,
        blocking=host.block_on != NONE,
        latency=device.latency,
        gap=device.gap,
        duration=device.end - device.start,
        transfer=device.transfer,
    )
