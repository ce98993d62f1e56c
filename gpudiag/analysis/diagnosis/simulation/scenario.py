"""A scenario: what every host call and device op of a graph costs, as recorded or under an assumption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, Times


@dataclass(frozen=True, eq=False)
class Scenario:
    """The durations that a simulation runs with, in ns; shapes as in the graph: n host nodes, m device ops.

    Attributes:
        busy: float64[n], host work before each node.
        waiting: float64[n], time before each node in which the host waited for data or recorded nothing.
        blocking: bool[n], whether the node waits for its op.
        latency: float64[m], from the end of the launching call to the earliest start.
        gap: float64[m], from the end of the work before the op to the earliest start.
        duration: float64[m], of ops that are no matched collectives.
        transfer: float64[m], of matched collectives from last arrival to end; NaN elsewhere.
        communicates: False if the ranks do not communicate; it labels the scenario and does not change the simulation.
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
