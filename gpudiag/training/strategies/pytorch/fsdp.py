"""`fsdp`: PyTorch's FSDP2 (`fully_shard`): parameters, gradients and optimizer state are spread over the processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
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

#: A part of a container with fewer parameters than this is gathered together with what is around it.
_LEAST_PARAMETERS = 100_000
#: Passes over a GPU's memory per byte of parameters: out of each gathered buffer, twice, and into and out of the
#: scattered one.
_PASSES = 4
#: ms of host work per part of a model whose hooks gather, free and scatter it, and per trained tensor of launching the
#: rest of a step: where the host is slower than the device, FSDP's hooks are what the step takes. From `mlp` on 4 and
#: ResNet-50 on 2 H200s (17.1 and 66.8 ms; two hosts, PyTorch 2.11); another host took 0.78 and one 1.2 times as long.
_SHARD_MS, _LAUNCH_STEP_MS = 3.1, 0.14
#: Bytes of a tensor that stands for a part of its own where the parts are not known.
_PART_BYTES = 400_000


class Fsdp(PytorchStrategy):
    """Each process keeps 1/n of everything; parameters are gathered before use and gradients reduce-scattered after.

    The parts of `nn.Sequential` and `nn.ModuleList` (blocks, stages) are sharded one by one, so that gathering one runs
    beside computing another. What travels is three times the parameters per step against twice in all-reduce, for n
    times less memory. `--compress` is FSDP's `reduce_dtype`. In traces the exchange has FSDP's own ranges
    (`FSDP::all_gather`, `FSDP::post_backward_reduce`).
    """

    name = "fsdp"
    summary = "FSDP2: parameters, gradients and optimizer state are spread over the devices and gathered for use."
    listed, special = 70, 40
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
            # FSDP knows no other layout of weights; channels-last inputs stay what they are.
            parameter.data = parameter.data.contiguous()
        for tensor in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(tensor.detach(), src=0)
        units = [*parts(model), model]
        counted = 0
        for unit in units:
            whole = sum(p.numel() * p.element_size() for p in unit.parameters())
            if unit is model:
                whole -= counted
            counted += whole
            self.exchanged_bytes.append(whole)
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        self.exchanged_bytes.reverse()  # the order of backward
        self._model = cast("FSDPModule", model)
        return model

    def accumulating(self) -> AbstractContextManager[object]:
        """Keep whole gradients, and reduce them with the last batch."""
        return self._keeping()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def exchange(self, model: nn.Module) -> None:
        """All of it happened in forward and backward."""
        self.check_gradients(model)

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Gathers and scatters have half of an all-reduce's bytes each; this is what is measured for them."""
        return nccl_transport(p2p=p2p) if on_gpu else "gloo"

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Parameters are gathered for forward and again for backward, gradients scattered: 1.5 all-reduces' bytes."""
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        curve = now.nccl_curve
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
        slower = NCCL_HOLDS * (min(half, forward) + min(2 * half, backward))
        bucket_copy = _PASSES * now.on_device_ms(total)
        # Every device updates its own part only.
        exposed = stalled + slower + bucket_copy - now.compute.update_ms * (count - 1) / count
        blocks = now.model.blocks or sum(size >= _PART_BYTES for size in now.model.sizes)
        host = (blocks + 1) * _SHARD_MS + len(now.model.sizes) * _LAUNCH_STEP_MS - now.compute.step_ms
        return Cost(
            exposed_ms=max(0.0, exposed),
            exchange_ms=3 * half,
            reason=f"{3 * half:.1f} ms to gather {total / 1e6:.0f} MB twice and to scatter gradients once, beside "
            f"compute; saves memory more than time",
            host_ms=max(0.0, host) if now.on_gpu and now.model.compute is not None else 0.0,
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """PyTorch's own."""
        return (
            "from torch.distributed.fsdp import fully_shard",
            "for block in model.children():",
            "    fully_shard(block)",
            "fully_shard(model)",
        )


def parts(model: nn.Module) -> list[nn.Module]:
    """The outermost parts of containers in the model that are worth sharding by themselves, innermost last."""
    from torch import nn

    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            big = sum(p.numel() for p in child.parameters()) >= _LEAST_PARAMETERS
            container = isinstance(child, nn.Sequential | nn.ModuleList)
            if big and isinstance(module, nn.Sequential | nn.ModuleList) and not container:
                found.append(child)
            else:
                look(child)

    look(model)
    return found


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


STRATEGY = Fsdp
