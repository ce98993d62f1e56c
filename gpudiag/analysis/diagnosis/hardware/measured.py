"""The measured figures of a machine, looked up by what they say."""

from __future__ import annotations

from collections import defaultdict

from gpudiag.model.facts import Bandwidth, Facts

TO_DEVICE = "host_to_device"
FROM_DEVICE = "device_to_host"


def gpu_index(place: str) -> int | None:
    """The index in `gpu:<i>`; None for any other place."""
    kind, _, number = place.partition(":")
    return int(number) if kind == "gpu" and number.isascii() and number.isdigit() else None


def host_rates(facts: Facts, direction: str = "one_way") -> dict[int, dict[str, Bandwidth]]:
    """Per GPU, the pinned copies between it and the host, by path; the best NUMA node's where several were measured."""
    found: dict[int, dict[str, Bandwidth]] = defaultdict(dict)
    for record in facts.bandwidth:
        if record.path not in {TO_DEVICE, FROM_DEVICE} or record.memory != "pinned" or record.direction != direction:
            continue
        index = gpu_index(record.dst) if record.path == TO_DEVICE else gpu_index(record.src)
        if index is None:
            continue
        known = found[index].get(record.path)
        if known is None or record.gb_per_s > known.gb_per_s:
            found[index][record.path] = record
    return dict(found)


def all_at_once(facts: Facts) -> tuple[Bandwidth, ...]:
    """Pinned one-way copies between the host and all GPUs at once, with each GPU's own share."""
    return tuple(
        record
        for record in facts.bandwidth
        if record.path in {TO_DEVICE, FROM_DEVICE}
        and record.memory == "pinned"
        and record.direction == "one_way"
        and "all" in {record.src, record.dst}
        and record.per_device
    )


def peer_rates(facts: Facts, *, peer_access: bool, direction: str) -> dict[tuple[int, int], Bandwidth]:
    """Copies between two GPUs by (source, destination), peer access on or off; of two initiators the faster."""
    found: dict[tuple[int, int], Bandwidth] = {}
    for record in facts.bandwidth:
        source, destination = gpu_index(record.src), gpu_index(record.dst)
        if record.path != "peer" or record.direction != direction or bool(record.peer_access) != peer_access:
            continue
        if source is None or destination is None or source == destination:
            continue
        known = found.get((source, destination))
        if known is None or record.gb_per_s > known.gb_per_s:
            found[source, destination] = record
    return found
