"""Edits to what the probes measured of this machine: collectives over another transport, copies from pinned memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.edits import with_host_copies
from gpudiag.analysis.diagnosis.simulation.graph import Costs
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.event import HostMemory
from gpudiag.model.facts import QUEUED, Facts
from gpudiag.model.probed import pinned_to_device, probed_time_us
from gpudiag.units import NS_PER_US


def transports(facts: Facts) -> tuple[str, ...]:
    """The transports whose collectives were measured, as `with_transport` takes them."""
    return tuple(dict.fromkeys(collective.strategy.removesuffix(QUEUED) for collective in facts.collectives))


def with_transport(what_if: WhatIf, costs: Costs, facts: Facts, transport: str) -> Costs | None:
    """Each collective's transfer takes what a collective of its kind and size took alone over this transport.

    What disturbs the kernels beside them grows or shrinks with the time that is transferred; it is only let shrink.

    Returns:
        None where that was measured of none of the job's collectives; those of which it was not stay as they are.
    """
    transfer = costs.transfer.copy()
    known: dict[tuple[str, int, int], float | None] = {}
    for op, kind in _kinds(what_if):
        if kind not in known:
            operation, size, ranks = kind
            known[kind] = probed_time_us(facts, operation, size, ranks, transport)
        time_us = known[kind]
        if time_us is not None:
            transfer[op] = time_us * NS_PER_US
    if not any(time_us is not None for time_us in known.values()):
        return None
    track = what_if.graph.device.track
    before = np.bincount(track, weights=np.nan_to_num(costs.transfer))
    after = np.bincount(track, weights=np.nan_to_num(transfer))
    gone = np.clip(1 - after / np.maximum(before, 1.0), 0.0, 1.0)[track]
    return replace(costs, transfer=transfer, duration=what_if.baseline.relieved_of_transfer(costs.duration, gone))


def with_pinned_copies(what_if: WhatIf, costs: Costs, facts: Facts) -> Costs | None:
    """Copies from and to pageable memory run at what pinned ones were measured at, and do not hold the host.

    Returns:
        None where the probes did not measure that, or the job has no pageable copies of known size.
    """
    rate = pinned_to_device(facts)
    if rate is None:
        return None
    size = _pageable_bytes(what_if)
    if not size.any():
        return None
    return with_host_copies(what_if, costs, np.where(size > 0, size / rate, costs.duration))


def _kinds(what_if: WhatIf) -> Iterator[tuple[int, tuple[str, int, int]]]:
    """(op, (operation, bytes, ranks)) of each matched collective whose size is known."""
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
    """float64[m]: the bytes of each copy from or to pageable memory; 0 for other ops and where unknown."""
    device, timeline = what_if.graph.device, what_if.timeline
    size = np.zeros(len(device.start))
    for op in np.flatnonzero(device.host_copy).tolist():
        events = timeline.traces[timeline.tracks[device.track[op]].trace].events
        row = int(device.row[op])
        if events.host_memory[row] == HostMemory.PAGEABLE:
            size[op] = max(int(events.size_bytes[row]), 0)
    return size
