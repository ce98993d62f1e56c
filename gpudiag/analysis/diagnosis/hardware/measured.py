"""Look up the measured bandwidths of a machine, and the nominal rates of PCIe links."""

from __future__ import annotations

from collections import defaultdict

from gpudiag.model.facts import Bandwidth, Facts

TO_DEVICE = "host_to_device"
FROM_DEVICE = "device_to_host"

#: Payload before protocol overhead, per lane and direction: transfers per second minus line coding, which is 8b/10b up
#: to generation 2, 128b/130b from 3 to 5, and flit mode with its checksum in 6 (PCI-SIG, PCI Express Base
#: Specification).
_GB_PER_S_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def raw_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """Return a PCIe link's GB/s one way, before headers and flow control; None if generation or width is unknown."""
    lane = _GB_PER_S_PER_LANE.get(generation) if generation is not None else None
    return None if lane is None or not width else lane * width


def gpu_index(end: str) -> int | None:
    """Return the index in `gpu:<i>`; None for any other endpoint of a copy."""
    kind, _, number = end.partition(":")
    return int(number) if kind == "gpu" and number.isascii() and number.isdigit() else None


def host_rates(facts: Facts, direction: str = "one_way") -> dict[int, dict[str, Bandwidth]]:
    """Return each GPU's pinned copies from and to the host, by path; if there are several NUMA nodes, the fastest."""
    rates: dict[int, dict[str, Bandwidth]] = defaultdict(dict)
    for record in _pinned(facts, direction):
        index = gpu_index(record.dst if record.path == TO_DEVICE else record.src)
        if index is None:
            continue
        known = rates[index].get(record.path)
        if known is None or record.gb_per_s > known.gb_per_s:
            rates[index][record.path] = record
    return dict(rates)


def all_at_once(facts: Facts) -> list[Bandwidth]:
    """Return the one-way copies between the host and all GPUs at once, with each GPU's share."""
    return [r for r in _pinned(facts, "one_way") if "all" in {r.src, r.dst} and r.per_device]


def _pinned(facts: Facts, direction: str) -> list[Bandwidth]:
    return [
        record
        for record in facts.bandwidth
        if record.path in {TO_DEVICE, FROM_DEVICE} and record.memory == "pinned" and record.direction == direction
    ]


def peer_rates(facts: Facts, *, peer_access: bool, direction: str) -> dict[tuple[int, int], Bandwidth]:
    """Return the copies between GPUs by (source, destination), with peer access on or off; the faster initiator's."""
    rates: dict[tuple[int, int], Bandwidth] = {}
    for record in facts.bandwidth:
        source, destination = gpu_index(record.src), gpu_index(record.dst)
        if record.path != "peer" or record.direction != direction or bool(record.peer_access) != peer_access:
            continue
        if source is None or destination is None or source == destination:
            continue
        known = rates.get((source, destination))
        if known is None or record.gb_per_s > known.gb_per_s:
            rates[source, destination] = record
    return rates
