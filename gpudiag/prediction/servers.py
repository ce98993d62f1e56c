"""Parameters that live in one place and are fetched from there: parameter servers, DataParallel, FSDP."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpudiag.prediction import patterns
from gpudiag.prediction.all_reduce import Cost
from gpudiag.prediction.overlap import exposed_after
from gpudiag.prediction.paths import HOST
from gpudiag.prediction.transfers import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Passes over host memory per byte of parameters of an update with momentum and weight decay by PyTorch's operators:
#: gradient + decay x parameter into new memory (two read, one written after it was zeroed and fetched), momentum scaled
#: (2) and added to (3), parameter (3).
_UPDATE_PASSES = 13
#: Passes per byte to add one more gradient to a sum (two are read, one is written), and to divide the sum.
_ADD_PASSES, _DIVIDE_PASSES = 3, 2
#: µs of host work per tensor of a module that one process copies to every device (replicate, gather, threads), and of
#: launching what computes with it, which one interpreter does for all devices in turn.
_REPLICATE_US, _LAUNCH_US = 25.0, 40.0
#: Passes over a GPU's memory per byte of parameters: out of each gathered buffer, twice, and into and out of the
#: scattered one.
_FSDP_PASSES = 4
#: ms of host work per part of a model whose hooks gather, free and scatter it, and per trained tensor of launching the
#: rest of a step: where the host is slower than the device, FSDP's hooks are what the step takes.
_SHARD_MS, _LAUNCH_STEP_MS = 2.3, 0.1
#: Bytes of a tensor that stands for a part of its own where the parts are not known.
_PART_BYTES = 400_000
#: Share of multiprocessors that collectives hold beside compute; as in `all_reduce`.
_NCCL_HOLDS = 0.15


def ps_cpu(now: Situation, candidate: Candidate) -> Cost:
    """Gradients go to the host while backward runs; it adds and updates; parameters come back before the next step."""
    sizes, wire = now.model.sizes, 0.5 if candidate.lossy else 1.0
    owners = [HOST] * len(sizes)
    pushed = run(patterns.deliver(now.paths, sizes, owners, now.ready_ms, wire))
    push = exposed_after(pushed, now.compute.backward_ms)
    pull = exposed_after(run(patterns.fetch(now.paths, sizes, owners, wire)), 0.0)
    passes = _ADD_PASSES * (now.devices - 1) + _DIVIDE_PASSES + _UPDATE_PASSES
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
    """Gradients are reduced to their homes after backward, updated there and broadcast: two times over each link."""
    count = now.devices
    if count < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    total = now.model.total_bytes
    spread = candidate.ps_device is None
    curve = now.curve("nccl" if now.p2p else "nccl-no-p2p")
    rate = curve.busbw(total / count if spread else total) if curve is not None else now.ring_rate()
    exchange = 2 * total / (rate * 1e6)
    # Gradients are added to zeros where they lie, as their memory is what is sent.
    packing = 2 * now.on_device_ms(total)
    saved = now.compute.update_ms * (count - 1) / count if spread else 0.0
    where = f"{count} GPUs share the parameters" if spread else f"all parameters are on GPU {candidate.ps_device}"
    return Cost(
        max(0.0, exchange + packing - saved),
        exchange,
        f"{where}: {total / 1e6:.0f} MB to their homes and back at {rate:.3g} GB/s, {exchange:.1f} ms after backward",
    )


def data_parallel(now: Situation, candidate: Candidate) -> Cost:
    """One process copies the model to every device each step, and adds the gradients on the first."""
    del candidate
    count = now.devices
    if count < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    total, tensors = now.model.total_bytes, len(now.model.sizes)
    # torch.nn.parallel broadcasts and reduces with NCCL, through buffers of 10 MB: every link carries the bytes once.
    curve = now.curve("nccl" if now.p2p else "nccl-no-p2p")
    rate = curve.busbw(10e6) if curve is not None else now.ring_rate()
    copies = 2 * total / (rate * 1e6)
    inputs = (count - 1) * now.model.input_bytes / (now.paths.rate(0, 1) * 1e6)
    host = count * tensors * _REPLICATE_US / 1e3
    launching = max(0.0, count * tensors * _LAUNCH_US / 1e3 - now.compute.forward_ms)
    packing = 4 * now.on_device_ms(total)
    exposed = copies + inputs + host + launching + packing
    return Cost(
        exposed,
        copies + inputs,
        f"one process serves {count} devices: {copies:.1f} ms to copy parameters out and gradients back, "
        f"{host + launching:.1f} ms of host work, nothing hidden",
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
        half = (count - 1) / count * total / (now.ring_rate() * 1e6)
    forward, backward = now.compute.forward_ms, now.compute.backward_ms
    back = [after - before for before, after in pairwise([0.0, *now.ready_ms])]
    gathers = [size / total * half for size in now.model.sizes]
    ahead = [takes * forward / backward if backward else 0.0 for takes in reversed(back)]
    stalled = _stalls(gathers[::-1], ahead, [0.0] * len(gathers)) + _stalls(gathers, back, gathers)
    slower = _NCCL_HOLDS * (min(half, forward) + min(2 * half, backward))
    packing = _FSDP_PASSES * now.on_device_ms(total)
    # Every device updates its own part only.
    exposed = stalled + slower + packing - now.compute.update_ms * (count - 1) / count
    blocks = now.model.blocks or sum(size >= _PART_BYTES for size in now.model.sizes)
    host = (blocks + 1) * _SHARD_MS + len(now.model.sizes) * _LAUNCH_STEP_MS - now.compute.step_ms
    return Cost(
        max(0.0, exposed),
        3 * half,
        f"{3 * half:.1f} ms to gather {total / 1e6:.0f} MB twice and to scatter gradients once, beside compute; saves "
        f"memory more than time",
        host_ms=max(0.0, host) if now.on_gpu and now.model.compute is not None else 0.0,
    )


def _stalls(gathers: Sequence[float], work: Sequence[float], scatters: Sequence[float]) -> float:
    """How much longer a pass over parts takes that have to be gathered first, in ms.

    While one part computes the next one is gathered, and none further; what a part leaves is scattered over the same
    links when it is done, behind whatever is under way. All three in ms by part, in the order of the pass.

    >>> _stalls([4.0, 4.0], [10.0, 10.0], [0.0, 0.0])  # the second is gathered beside the first
    4.0
    >>> _stalls([4.0, 12.0], [10.0, 1.0], [0.0, 0.0])  # 2 ms of the second are left when the first is done
    6.0
    """
    link = began = done = 0.0
    left = 0.0
    for gather, takes, scatter in zip(gathers, work, scatters, strict=True):
        arrived = link = max(link, began) + gather
        link = max(link, done) + left
        began = max(done, arrived)
        done, left = began + takes, scatter
    return max(done, max(link, done) + left) - sum(work)
