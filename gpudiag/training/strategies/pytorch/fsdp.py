"""Implement `fsdp`: PyTorch's FSDP2 (`fully_shard`), which shards parameters, gradients and optimizer state."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from gpudiag.model.facts import nccl_transport
from gpudiag.prediction.cost import NCCL_HOLDS, ONE_DEVICE, Cost
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Minimum number of parameters of a shard. A smaller module is gathered together with its container.
_LEAST_PARAMETERS = 100_000
#: Number of copies in GPU memory per step: two out of gathered buffers, one into and one out of scattered buffers.
_PASSES = 4
#: Host work in ms per shard, for the hooks that gather, free and scatter the shard; and host work in ms per trained
#: tensor, to launch the rest of a step. If the host is slower than the device, this work determines the step time. The
#: values fit `mlp` on 4 H200s (17.1 ms) and ResNet-50 on 2 H200s (66.8 ms) of two hosts with PyTorch 2.11. Two other
#: hosts took 0.78 and 1.2 times as long.
_SHARD_MS, _LAUNCH_STEP_MS = 3.1, 0.14
#: Minimum bytes of a tensor that counts as a shard if the number of shards is unknown.
_SHARD_BYTES = 400_000


class Fsdp(PytorchStrategy):
    """Keep 1/n of the model in each of n processes. All-gather parameters before use, and reduce-scatter gradients.

    The modules of `nn.Sequential` and `nn.ModuleList` (blocks, stages) are sharded one by one, so that gathering a
    module overlaps with computing another. Per step each process sends about three times the parameters' bytes. An
    all-reduce would send twice the parameters' bytes, but need n times the memory. `--compress` sets FSDP's
    `reduce_dtype`. In traces, FSDP marks communication (`FSDP::all_gather`, `FSDP::post_backward_reduce`).
    """

    name = "fsdp"
    summary = "FSDP2: parameters, gradients and optimizer state are spread over the devices and gathered for use."
    list_order, preference_rank = 70, 40
    scales_losses = False
    launched_ahead = True
    takes = ("compress", "accumulate", "nccl_algo")
    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Shard the model in place."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self.check_model(model)
        dtype = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.options.compress]
        policy = MixedPrecisionPolicy(reduce_dtype=dtype)
        mesh = init_device_mesh(self.device.type, (torch.distributed.get_world_size(),))
        for parameter in model.parameters():
            # FSDP supports only contiguous weights, but allows channels-last inputs.
            parameter.data = parameter.data.contiguous()
        for tensor in (*model.parameters(), *model.buffers()):  # DDP does this itself, but FSDP does not
            torch.distributed.broadcast(tensor.detach(), src=0)
        shards = [*shards_of(model), model]
        sizes = [sum(p.numel() * p.element_size() for p in shard.parameters()) for shard in shards]
        sizes[-1] -= sum(sizes[:-1])  # the model itself is gathered without the modules that are shards
        for shard in shards:
            fully_shard(shard, mesh=mesh, mp_policy=policy)
        self.exchanged_bytes = sizes[::-1]  # in the order of backward
        self._model = cast("FSDPModule", model)
        return model

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Accumulate unsharded gradients within the block. The last batch, outside the block, reduces all of them."""
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def exchange(self, model: nn.Module) -> None:
        """Check the gradients. Communicate nothing, because forward and backward have communicated."""
        self.check_gradients(model)

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Return the name of the measured all-reduce. All-gather and reduce-scatter each move half as many bytes."""
        return nccl_transport(p2p=p2p) if on_gpu else "gloo"

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of two all-gathers and a reduce-scatter, which move 1.5 times the bytes of an all-reduce.

        `now` has the model, the number of devices and the machine's rates in GB/s (1e6 bytes per ms).
        """
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        curve = now.nccl_curve
        total = now.model.total_bytes
        if curve is not None:
            half_ms = curve.time_ms(total, count) / 2  # one all-gather or one reduce-scatter
        else:
            half_ms = (count - 1) / count * total / (now.ring_rate() * 1e6)  # each link carries (n-1)/n of the bytes
        forward_ms, backward_ms = now.compute.forward_ms, now.compute.backward_ms
        backwards = [after - before for before, after in pairwise([0.0, *now.ready_ms])]  # ms per tensor
        # `sizes` and `ready_ms` are in the order of backward, which forward runs through in reverse.
        gathers = [size / total * half_ms for size in now.model.sizes]
        forwards = [duration * forward_ms / backward_ms if backward_ms else 0.0 for duration in reversed(backwards)]
        stalled_ms = _stalls(gathers[::-1], forwards, [0.0] * len(gathers)) + _stalls(gathers, backwards, gathers)
        # While NCCL's kernels run, they occupy this share of a device's compute.
        slowdown_ms = NCCL_HOLDS * (min(half_ms, forward_ms) + min(2 * half_ms, backward_ms))
        copies_ms = _PASSES * now.on_device_ms(total)
        # Each device updates only its own shard.
        added_ms = stalled_ms + slowdown_ms + copies_ms - now.compute.update_ms * (count - 1) / count
        # The model itself is one more shard. The host's work counts as far as it takes longer than the step.
        blocks = now.model.blocks or sum(size >= _SHARD_BYTES for size in now.model.sizes)
        host_ms = (blocks + 1) * _SHARD_MS + len(now.model.sizes) * _LAUNCH_STEP_MS - now.compute.step_ms
        return Cost(
            exposed_ms=max(0.0, added_ms),  # a shorter update may outweigh the rest
            exchange_ms=3 * half_ms,
            reason=f"{3 * half_ms:.1f} ms to gather {total / 1e6:.0f} MB twice and to scatter gradients once, beside "
            f"compute; saves memory more than time",
            host_ms=max(0.0, host_ms) if now.on_gpu and now.model.compute is not None else 0.0,
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return lines of plain PyTorch."""
        return (
            "from torch.distributed.fsdp import fully_shard",
            "for block in model.children():",
            "    fully_shard(block)",
            "fully_shard(model)",
        )


def shards_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules to shard: the outermost modules with enough parameters whose parent is a container."""
    from torch import nn

    containers = (nn.Sequential, nn.ModuleList)
    shards: list[nn.Module] = []
    for child in model.children():
        large = sum(p.numel() for p in child.parameters()) >= _LEAST_PARAMETERS
        if large and isinstance(model, containers) and not isinstance(child, containers):
            shards.append(child)
        else:
            shards += shards_of(child)
    return shards


def _stalls(gathers: Sequence[float], compute: Sequence[float], scatters: Sequence[float]) -> float:
    """Return how many ms longer a pass (forward or backward) takes because each shard must be gathered first.

    While a shard is computed, only the next shard is gathered. When a shard has been computed, its gradients are
    scattered over the same links as soon as the links are free. The arguments are times in ms per shard, in the order
    in which the pass computes the shards.

    >>> _stalls([4.0, 4.0], [10.0, 10.0], [0.0, 0.0])  # the second is gathered while the first computes
    4.0
    >>> _stalls([4.0, 12.0], [10.0, 1.0], [0.0, 0.0])  # gathering the second takes 2 ms longer than the first computes
    6.0
    """
    link_free = compute_begin = compute_end = last_scatter = 0.0
    for gather, duration, scatter in zip(gathers, compute, scatters, strict=True):
        arrived = link_free = max(link_free, compute_begin) + gather
        link_free = max(link_free, compute_end) + last_scatter
        compute_begin = max(compute_end, arrived)
        compute_end, last_scatter = compute_begin + duration, scatter
    return max(compute_end, max(link_free, compute_end) + last_scatter) - sum(compute)
