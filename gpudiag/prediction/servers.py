"""Parameters that live in one place and are fetched from there: parameter servers, DataParallel, FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.prediction import patterns
from gpudiag.prediction.all_reduce import Cost
from gpudiag.prediction.overlap import exposed_after
from gpudiag.prediction.paths import HOST
from gpudiag.prediction.transfers import run

if TYPE_CHECKING:
    from gpudiag.model.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Passes over host memory per byte of parameters of an update with momentum: gradient, state and parameter are read,
#: state and parameter are written.
_UPDATE_PASSES = 5
#: µs of host work per tensor of a module that one process copies to every device (replicate, gather, threads).
_REPLICATE_US = 25.0
#: Passes over a GPU's memory per byte of parameters: out of each gathered buffer, twice, and into and out of the
#: scattered one; and µs of host work per tensor of the hooks that gather and free.
_FSDP_PASSES, _SHARD_US = 4, 15.0
#: Share of multiprocessors that collectives hold beside compute; as in `all_reduce`.
_NCCL_HOLDS = 0.15


def ps_cpu(now: Situation, candidate: Candidate) -> Cost:
    """Gradients go to the host while backward runs; it adds and updates; parameters come back before the next step."""
    sizes, wire = now.model.sizes, 0.5 if candidate.lossy else 1.0
    owners = [HOST] * len(sizes)
    pushed = run(patterns.deliver(now.paths, sizes, owners, now.ready_ms, wire))
    push = exposed_after(pushed, now.compute.backward_ms)
    pull = exposed_after(run(patterns.fetch(now.paths, sizes, owners, wire)), 0.0)
    passes = now.devices + 1 + _UPDATE_PASSES
    host = passes * now.model.total_bytes / (now.paths.host_memory() * 1e6)
    alone = exposed_after(run(patterns.deliver(now.paths, sizes, owners, [0.0] * len(sizes), wire)), 0.0)
    exposed = push + host + pull - now.compute.update_ms
    megabytes = now.model.total_bytes / 1e6
    rate = now.paths.all_rate("host_to_device") if now.on_gpu else now.paths.host_memory()
    return Cost(
        max(0.0, exposed),
        alone + host + pull,
        f"{megabytes:.0f} MB of parameters come from the host at {rate:.3g} GB/s each step ({pull:.1f} ms), after the "
        f"CPUs have updated them ({host:.1f} ms)",
    )


def ps_gpu(now: Situation, candidate: Candidate) -> Cost:
    """The same with parameters on the GPUs: spread over all, or all on one."""
    sizes, wire = now.model.sizes, 0.5 if candidate.lossy else 1.0
    if now.devices < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    if candidate.ps_device is None:
        owners = patterns.owners_by_size(sizes, now.devices)
        where = f"{now.devices} GPUs share the parameters"
    else:
        owners = [min(candidate.ps_device, now.devices - 1)] * len(sizes)
        where = (
            f"GPU {owners[0]} is a hub: {2 * (now.devices - 1)} x {now.model.total_bytes / 1e6:.0f} MB over its links"
        )
    pushed = run(patterns.deliver(now.paths, sizes, owners, now.ready_ms, wire))
    push = exposed_after(pushed, now.compute.backward_ms)
    pull = exposed_after(run(patterns.fetch(now.paths, sizes, owners, wire)), 0.0)
    alone = exposed_after(run(patterns.deliver(now.paths, sizes, owners, [0.0] * len(sizes), wire)), 0.0)
    return Cost(push + pull, alone + pull, f"{where}; fetching them takes {pull:.1f} ms and hides behind nothing")


def data_parallel(now: Situation, candidate: Candidate) -> Cost:
    """One process copies the model to every device each step, and adds the gradients on the first."""
    del candidate
    if now.devices < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    sizes = now.model.sizes
    # torch.nn.parallel broadcasts and reduces with NCCL where it can: every link carries the bytes once.
    rate = now.paths.ring_rate() * 1e6
    copies = now.model.total_bytes / rate
    adds = now.model.total_bytes / rate
    inputs = (now.devices - 1) * now.model.input_bytes / (now.paths.rate(0, 1) * 1e6)
    host = now.devices * len(sizes) * _REPLICATE_US / 1e3
    exposed = copies + adds + inputs + host
    return Cost(
        exposed,
        exposed,
        f"one process serves {now.devices} devices: {copies + adds:.1f} ms to copy parameters out and gradients back, "
        f"{host:.1f} ms of host work, nothing hidden",
    )


def fsdp(now: Situation, candidate: Candidate) -> Cost:
    """Parameters are gathered for forward and again for backward, gradients are scattered: 1.5 all-reduces' bytes."""
    del candidate
    count = now.devices
    if count < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    curve = now.curve("nccl" if now.p2p else "nccl-no-p2p")
    total = now.model.total_bytes
    if curve is not None:
        half = curve.time_ms(total, count) / 2
    else:
        half = (count - 1) / count * total / (now.paths.ring_rate() * 1e6)
    forward, backward = now.compute.forward_ms, now.compute.backward_ms
    # The largest part is gathered while a smaller one is computed, or none at all when it comes first or last.
    largest = max(now.model.sizes) / total * half
    slower = _NCCL_HOLDS * (min(half, forward) + min(2 * half, backward))
    packing = _FSDP_PASSES * now.on_device_ms(total)
    host = len(now.model.sizes) * _SHARD_US / 1e3
    exposed = max(largest, half - forward) + max(largest, 2 * half - backward) + slower + packing + host
    # Every device updates its own part only.
    exposed -= now.compute.update_ms * (count - 1) / count
    return Cost(
        max(0.0, exposed),
        3 * half,
        f"{3 * half:.1f} ms to gather {total / 1e6:.0f} MB twice and to scatter gradients once, beside compute; saves "
        f"memory more than time",
    )
