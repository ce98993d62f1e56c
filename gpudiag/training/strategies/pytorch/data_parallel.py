"""`data-parallel`: one process drives all GPUs of a node through `torch.nn.DataParallel`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.prediction.cost import ONE_DEVICE, Cost
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: µs of host work per tensor of a module: once a step (backward is launched by a thread per device, the update once),
#: and per device that the module is copied to and whose forward one interpreter launches in turn. A step takes this
#: long where its devices are not slower. From ResNet-50 on 2 and on 4 H200s (75.8 and 110.7 ms; two hosts, PyTorch
#: 2.11); `gpt` on 4 and `mlp` on 2 and 4 came out within 10 % of what follows.
_ONCE_US, _PER_DEVICE_US = 236.0, 115.0


class DataParallel(PytorchStrategy):
    """In each step the first GPU scatters the batch, copies its parameters to the others, and adds up their gradients.

    One Python process launches the kernels of all GPUs, and the model's parameters travel in every step, before
    forward: nothing of it overlaps with compute. It is here since much code still uses it, and as the baseline of old
    figures.
    """

    name = "data-parallel"
    summary = "torch.nn.DataParallel: one process drives all GPUs and copies the model to them in each step."
    listed, special = 60, 70
    needs_gpu = True
    one_process = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap in DataParallel over the first `devices` GPUs; its copies of inputs and parameters are ranges."""
        from torch import nn

        self.check_model(model)
        wrapped: Any = nn.DataParallel(model, device_ids=list(range(self.devices)))
        wrapped.scatter = _exchanging(wrapped.scatter)
        wrapped.replicate = _exchanging(wrapped.replicate)  # backward through it adds up the gradients
        wrapped.parallel_apply = _without_trials(wrapped.parallel_apply)
        whole: nn.Module = wrapped
        return whole

    def exchange(self, model: nn.Module) -> None:
        """The gradients came together in backward."""
        self.check_gradients(model)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """One process copies the model to every device each step, and adds the gradients on the first."""
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        total, tensors = now.model.total_bytes, len(now.model.sizes)
        # torch.nn.parallel broadcasts and reduces with NCCL, from the first GPU and to it, through buffers that are
        # queued one behind the other.
        copies = now.rooted_ms(total, spread=False)
        inputs = (count - 1) * now.model.input_bytes / (now.paths.rate(0, 1) * 1e6)
        bucket_copy = 4 * now.on_device_ms(total)
        host = tensors * (_ONCE_US + count * _PER_DEVICE_US) / 1e3
        waits = f"the host takes {host:.1f} ms to launch a step"
        return Cost(
            exposed_ms=max(copies + inputs + bucket_copy, host - now.compute.step_ms),
            exchange_ms=copies + inputs,
            reason=f"one process serves {count} devices: {copies:.1f} ms to copy parameters out and gradients back, "
            f"nothing hidden; {waits}",
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """PyTorch's own."""
        return ("model = torch.nn.DataParallel(model)",)


def _exchanging(copies: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(copies)
    def in_range(*args: Any) -> Any:
        with gpudiag.range("exchange"):
            return copies(*args)

    return in_range


def _without_trials(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Forward on every device, without cuDNN's trials.

    Each step has new threads, and PyTorch keeps the algorithms that cuDNN's trials found per thread: with
    `cudnn.benchmark` every step would try them all again (VGG-16 on 4 x H200: 844 ms a step).
    """

    @wraps(forward)
    def apply(*args: Any) -> Any:
        import torch

        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = False
        try:
            return forward(*args)
        finally:
            torch.backends.cudnn.benchmark = before

    return apply


STRATEGY = DataParallel
