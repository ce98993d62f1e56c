"""Implement strategies in which one process drives all devices: `data-parallel` and `copies`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.prediction.cost import ONE_DEVICE, Cost
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from gpudiag.model.benchmarks.prediction import Candidate, Compress
    from gpudiag.prediction.situation import Situation

#: Host work in µs per tensor of the model. The first value is work once per step: the update, and backward, which one
#: thread per device launches. The second value is work per device: copying the model and launching forward, one device
#: after the other. A step takes at least the sum of both. The values fit ResNet-50 on 2 H200s (75.8 ms) and on 4 H200s
#: (110.7 ms) of two hosts with PyTorch 2.11. The values predict `gpt` on 4, and `mlp` on 2 and 4 H200s within 10 %.
_ONCE_US, _PER_DEVICE_US = 236.0, 115.0


class DataParallel(PytorchStrategy):
    """Use `torch.nn.DataParallel`: scatter the batch and the parameters from the first GPU, and sum gradients there.

    One Python process launches the kernels of all GPUs, and parameters are copied before every forward, so nothing
    overlaps with compute. The strategy is supported because much code and older publications use it.
    """

    name = "data-parallel"
    summary = "torch.nn.DataParallel: one process drives all GPUs and copies the model to them in each step."
    list_order, preference_rank = 60, 70
    needs_gpu = True
    one_process = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model in DataParallel over the first `devices` GPUs. Mark its copies as ranges."""
        from torch import nn

        self.check_model(model)
        wrapped: Any = nn.DataParallel(model, device_ids=list(range(self.devices)))
        wrapped.scatter = _in_range(wrapped.scatter)
        wrapped.replicate = _in_range(wrapped.replicate)  # its backward function sums the gradients
        wrapped.parallel_apply = _without_autotuning(wrapped.parallel_apply)
        data_parallel: nn.Module = wrapped
        return data_parallel

    def exchange(self, model: nn.Module) -> None:
        """Check the gradients, which backward has summed."""
        self.check_gradients(model)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of copying the model to every device and summing gradients on the first device.

        `now` has the model, the number of devices and the machine's rates in GB/s (1e6 bytes per ms).
        """
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        total, tensors = now.model.total_bytes, len(now.model.sizes)
        # DataParallel uses NCCL to broadcast from the first GPU and to reduce to it, one buffer after the other.
        copies_ms = now.rooted_ms(total, spread=False)
        inputs_ms = (count - 1) * now.model.input_bytes / (now.paths.rate(0, 1) * 1e6)  # to one device after the other
        # Parameters and gradients are each copied into buffers and out of them.
        bucket_copy_ms = 4 * now.on_device_ms(total)
        host_ms = tensors * (_ONCE_US + count * _PER_DEVICE_US) / 1e3
        # The host's work counts only as far as it takes longer than the step.
        return Cost(
            exposed_ms=max(copies_ms + inputs_ms + bucket_copy_ms, host_ms - now.compute.step_ms),
            exchange_ms=copies_ms + inputs_ms,
            reason=f"one process serves {count} devices: {copies_ms:.1f} ms to copy parameters out and gradients back, "
            f"nothing hidden; the host takes {host_ms:.1f} ms to launch a step",
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return the line of code that wraps a user's model."""
        return ("model = torch.nn.DataParallel(model)",)


class Copies(PytorchStrategy):
    """Keep a replica on each device. Copy gradients to the first device, sum them there, and copy the sums back.

    TensorFlow 1's benchmarks called this replicated variables without NCCL. Unlike in `data-parallel`, parameters are
    not copied, because every replica updates its own parameters. Without peer access, the driver copies through host
    memory. Nothing overlaps, and all data passes over the first device's link. The strategy exists for comparisons with
    published figures.
    """

    name = "copies"
    summary = "Replicas in one process, without NCCL: gradients are copied to the first device, added, and copied back."
    list_order, preference_rank = 65, 75
    one_process = True
    least_devices = 2

    def wrap(self, model: nn.Module) -> nn.Module:
        """Make a replica on each device. Divide batches equally between replicas; gather outputs on the first."""
        import torch

        self.check_model(model)
        kind = self.device.type  # PyTorch has only one CPU device
        others = [torch.device(kind, number) if kind != "cpu" else self.device for number in range(1, self.devices)]
        return _replicated(model, (self.device, *others))

    def exchange(self, model: nn.Module) -> None:
        """Sum the gradients of all replicas, because the loss is a mean over the batch, and copy the sums back."""
        import torch

        self.check_gradients(model)
        replicas: Any = model.get_submodule("replicas")
        same_parameters = zip(*(replica.parameters() for replica in replicas), strict=True)
        gradients = [[parameter.grad for parameter in same] for same in same_parameters if same[0].requires_grad]
        with gpudiag.range("exchange"), torch.no_grad():
            for first, *others in gradients:
                for gradient in others:
                    first.add_(gradient.to(first.device, non_blocking=True))
            for first, *others in gradients:
                for gradient in others:
                    gradient.copy_(first, non_blocking=True)
        self.exchanged_bytes = [first.numel() * first.element_size() for first, *_ in gradients]

    @classmethod
    def candidates(cls, compress: Compress | None) -> tuple[Candidate, ...]:
        """Return no candidate, because this strategy is never the fastest and its cost on GPUs is unknown."""
        return ()


def _in_range(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def in_range(*args: Any) -> Any:
        with gpudiag.range("exchange"):
            return function(*args)

    return in_range


def _without_autotuning(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Run forward on every device without `cudnn.benchmark`.

    DataParallel starts new threads in each step, and PyTorch stores cuDNN's chosen algorithms per thread. With
    `cudnn.benchmark` cuDNN would try all algorithms again in every step (844 ms per step for VGG-16 on 4 H200s).
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


def _replicated(model: nn.Module, devices: Sequence[torch.device]) -> nn.Module:
    """Return a module that splits a batch over the model and its copies, and gathers the outputs."""
    import copy

    import torch
    from torch import nn

    class Replicas(nn.Module):
        """The model and its copies on the other devices."""

        def __init__(self) -> None:
            super().__init__()
            self.replicas = nn.ModuleList([model, *(copy.deepcopy(model).to(device) for device in devices[1:])])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # This thread launches the kernels of all devices, because other threads would not use autocast.
            shares = zip(self.replicas, x.chunk(len(devices)), devices, strict=True)
            outputs = [replica(share.to(device, non_blocking=True)) for replica, share, device in shares]
            return torch.cat([output.to(devices[0], non_blocking=True) for output in outputs])

    return Replicas()
