"""Look up the rates and times that probes measured on this machine, for a job's transport, operation and size."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from gpudiag.model.analysis import CollectiveSummary
from gpudiag.model.facts import QUEUED, Facts, nccl_transport
from gpudiag.model.run import RunRecord
from gpudiag.units import NS_PER_US, bus_factor, gb_per_s


def transport_of(run: RunRecord | None) -> str:
    """Return the transport of a run's collectives, as in `Collective.strategy`; `nccl` if no run is known."""
    if run is None:
        return nccl_transport()
    devices = {rank.device for rank in run.ranks if rank.device}
    if run.strategy == "gloo" or (devices and not any(device.startswith("cuda") for device in devices)):
        return "gloo"
    return nccl_transport(p2p=peer_access_of(run))


def peer_access_of(run: RunRecord) -> bool:
    """Return whether the run left peer access on; the machine may still lack it."""
    # The record of a user-defined function has a command line instead of options.
    return run.options.get("p2p") != "off" and "--no-p2p" not in run.command


def probed_time_us(facts: Facts, operation: str, size_bytes: int, ranks: int, transport: str) -> float | None:
    """Return the time of a collective alone on this machine, in µs.

    The time is interpolated linearly between measured sizes, because it is about latency + size / bandwidth. A size
    measured with queued launches takes precedence, because a training step launches its collectives ahead. The time is
    None outside of the measured sizes, and if this operation, transport or number of ranks was not measured.
    Measurements with corrupted results are ignored.
    """
    times: dict[int, float] = {}
    for name in (transport, transport + QUEUED):
        for call in facts.collectives:
            same = call.operation == operation and call.ranks == ranks and call.strategy == name
            if same and call.verified is not False and call.time_us > 0:
                times[call.bytes] = call.time_us
    below = max((size for size in times if size <= size_bytes), default=None)
    above = min((size for size in times if size >= size_bytes), default=None)
    if below is None or above is None:
        return None
    if below == above:
        return times[below]
    share = (size_bytes - below) / (above - below)
    return times[below] + share * (times[above] - times[below])


def probed_busbw(facts: Facts, operation: str, size_bytes: int, ranks: int, transport: str) -> float | None:
    """Return the bus bandwidth in GB/s that follows from `probed_time_us`; None if time or bus factor is unknown."""
    time_us = probed_time_us(facts, operation, size_bytes, ranks, transport)
    factor = bus_factor(operation, ranks)
    if time_us is None or factor is None:
        return None
    return gb_per_s(size_bytes, time_us * NS_PER_US) * factor


def beside_probe(
    collectives: Iterable[CollectiveSummary], facts: Facts | None, transport: str
) -> tuple[CollectiveSummary, ...]:
    """Return the collectives of a job, each with the bandwidth that probes measured at its size, None if unknown."""
    if facts is None:
        return tuple(collectives)
    return tuple(
        msgspec.structs.replace(
            call,
            probe_busbw_gb_per_s=None
            if call.size_bytes is None
            else probed_busbw(facts, call.operation, call.size_bytes, call.ranks, transport),
        )
        for call in collectives
    )


def pinned_to_device(facts: Facts) -> float | None:
    """Return GB/s of one-way copies from pinned memory to one GPU at a time, median over GPUs; None if unmeasured."""
    rates = [
        copy.gb_per_s
        for copy in facts.bandwidth
        if (copy.path, copy.memory, copy.direction) == ("host_to_device", "pinned", "one_way")
        and copy.dst != "all"
        and copy.verified is not False
    ]
    return statistics.median(rates) if rates else None


def gpu_of_rank(facts: Facts, run: RunRecord | None, rank: int) -> int | None:
    """Return the index of a rank's GPU in `Facts.gpus`; None if it was not recorded or the job ran on several nodes.

    CUDA numbers this GPU `local_rank`, in the order that CUDA_VISIBLE_DEVICES defines. If the variable lists no numbers
    (but UUIDs), or other GPUs than the facts, the order of indices is assumed.
    """
    if run is None or run.nodes > 1:
        return None
    on_gpu = (record for record in run.ranks if record.device.startswith("cuda"))
    local = next((record.local_rank for record in on_gpu if record.rank == rank), None)
    visible = [gpu.index for gpu in facts.gpus if gpu.visible]
    setting = facts.host.environment.get("CUDA_VISIBLE_DEVICES", "")
    order = [int(word) for word in setting.split(",") if word.strip().isdecimal()]
    if order and sorted(order) == visible:
        visible = order
    return visible[local] if local is not None and 0 <= local < len(visible) else None
