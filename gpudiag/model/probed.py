"""What the probes measured of this machine, looked up for what a job did: the same transport, operation and size."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from gpudiag.model.analysis import CollectiveSummary
from gpudiag.model.facts import QUEUED, Facts, nccl_transport
from gpudiag.model.run import RunRecord
from gpudiag.units import NS_PER_US, bus_factor, gb_per_s


def transport_of(run: RunRecord | None) -> str:
    """The probed transport (`Collective.strategy`) that this run's collectives take; `nccl` where no run is known."""
    if run is None:
        return nccl_transport()
    devices = {rank.device for rank in run.ranks if rank.device}
    if run.strategy == "gloo" or (devices and not any(device.startswith("cuda") for device in devices)):
        return "gloo"
    return nccl_transport(p2p=peer_access_of(run))


def peer_access_of(run: RunRecord) -> bool:
    """False where the run switched peer access off; whether the machine has any is another question."""
    # A function of the user's own leaves no options, but its command line does.
    return run.options.get("p2p") != "off" and "--no-p2p" not in run.command


def probed_time_us(facts: Facts, operation: str, size_bytes: int, ranks: int, transport: str) -> float | None:
    """How long a collective takes alone on this machine, in µs.

    Between two measured sizes time grows in a straight line, as latency and bandwidth make it do. Where a size was
    measured queued, that counts: a training step launches its collectives ahead. None outside of the measured sizes,
    and where this operation, transport or number of ranks was not measured. A corrupted result has no time.
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
    """The bus bandwidth in GB/s that belongs to `probed_time_us`; None where that is, and for other operations."""
    time_us = probed_time_us(facts, operation, size_bytes, ranks, transport)
    factor = bus_factor(operation, ranks)
    if time_us is None or factor is None:
        return None
    return gb_per_s(size_bytes, time_us * NS_PER_US) * factor


def beside_probe(
    collectives: Iterable[CollectiveSummary], facts: Facts | None, transport: str
) -> tuple[CollectiveSummary, ...]:
    """The collectives of a job, each with what the probe reached at its size."""
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
    """GB/s of copies from pinned host memory to one GPU at a time, one way: the median GPU's; None if unmeasured."""
    rates = [
        copy.gb_per_s
        for copy in facts.bandwidth
        if (copy.path, copy.memory, copy.direction) == ("host_to_device", "pinned", "one_way")
        and copy.dst != "all"
        and copy.verified is not False
    ]
    return statistics.median(rates) if rates else None


def gpu_of_rank(facts: Facts, run: RunRecord | None, rank: int) -> int | None:
    """The inventory's index of a rank's GPU, None where the job does not say it or ran on several nodes.

    Rank r of a node takes the GPU that CUDA shows it as number `local_rank`: CUDA_VISIBLE_DEVICES gives their order.
    """
    if run is None or run.nodes > 1:
        return None
    local = next((told.local_rank for told in run.ranks if told.rank == rank and told.device.startswith("cuda")), None)
    shown = [gpu.index for gpu in facts.gpus if gpu.visible]
    chosen = facts.host.environment.get("CUDA_VISIBLE_DEVICES", "")
    order = [int(part) for part in chosen.split(",") if part.strip().isdecimal()]
    if order and sorted(order) == shown:
        shown = order
    return shown[local] if local is not None and 0 <= local < len(shown) else None
