"""Build graphs of a few nodes from columns; omitted columns have defaults."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gpudiag.analysis.diagnosis.simulation.graph import NONE, DeviceNodes, Graph, HostBlock, HostNodes
from gpudiag.model.timeline import OpClass

if TYPE_CHECKING:
    from collections.abc import Sequence


def host_of(**columns: Sequence[float]) -> HostNodes:
    """Return host nodes with `columns`; all other columns have defaults."""
    count = len(next(iter(columns.values())))
    zeros = ("time", "busy", "input", "before_first_op", "untraced", "slow", "allocating", "profiler", "block_delay")
    whole = ("events", "row", "process", "step")
    host: dict[str, Any] = {name: np.zeros(count) for name in zeros}
    host |= {name: np.zeros(count, np.int64) for name in whole}
    host |= {"block": np.full(count, HostBlock.NOT, np.uint8), "block_on": np.full(count, NONE, np.int64)}
    return HostNodes(**host | {name: np.array(column, host[name].dtype) for name, column in columns.items()})


def device_of(**columns: Sequence[float]) -> DeviceNodes:
    """Return device ops with `columns`, without peers; all other columns have defaults."""
    count = len(next(iter(columns.values()), ()))
    device: dict[str, Any] = {name: np.zeros(count) for name in ("start", "end", "latency", "gap")}
    device |= {name: np.full(count, NONE, np.int64) for name in ("launch", "wait_a", "wait_b")}
    device |= {name: np.zeros(count, np.int64) for name in ("track", "step", "row")}
    device |= {
        "transfer": np.full(count, np.nan),
        "op_class": np.full(count, OpClass.COMPUTE, np.uint8),
        "host_copy": np.zeros(count, np.bool_),
    }
    given = {name: np.array(column, device[name].dtype) for name, column in columns.items()}
    return DeviceNodes(peers={}, **device | given)


def graph_of(
    host: HostNodes, device: DeviceNodes | None = None, *, steps: int = 1, ranks: dict[int, int] | None = None
) -> Graph:
    """Return a graph with a host chain per process; `ranks` is process → rank, by default the process."""
    process = host.process.tolist()
    edges = [at for at in range(len(process)) if at == 0 or process[at] != process[at - 1]]
    return Graph(
        host=host,
        device=device_of() if device is None else device,
        chains=tuple(pairwise([*edges, len(process)])),
        streams=(),
        steps=steps,
        length_ns=1.0,
        ranks={number: number for number in sorted({*process})} if ranks is None else ranks,
    )
