"""`data-parallel`: one process drives all GPUs of a node through `torch.nn.DataParallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import gpudiag
from gpudiag.strategies.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence


class NamedDataParallel(nn.DataParallel[nn.Module]):
    """DataParallel whose copies of inputs, parameters and outputs are ranges."""

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Split the batch over the devices."""
        with gpudiag.range("exchange"):
            return super().scatter(inputs, kwargs, device_ids)

    def replicate(self, module: nn.Module, device_ids: Sequence[int | torch.device]) -> list[nn.Module]:
        """Copy the parameters to every device; backward through this adds up the gradients."""
        with gpudiag.range("exchange"):
            return super().replicate(module, device_ids)

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        """Forward on every device, without cuDNN's trials.

        Each step has new threads, and PyTorch keeps the algorithms that cuDNN's trials found per thread: with
        `cudnn.benchmark` every step would try them all again (VGG-16 on 4 x H200: 844 ms a step).
        """
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = False
        try:
            return super().parallel_apply(replicas, inputs, kwargs)
        finally:
            torch.backends.cudnn.benchmark = before


class DataParallel(Strategy):
    """In each step the first GPU scatters the batch, copies its parameters to the others, and adds up their gradients.

    One Python process launches the kernels of all GPUs, and the model's parameters travel in every step, before
    forward: nothing of it overlaps with compute. It is here since much code still uses it, and as the baseline of old
    figures.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap in DataParallel over the first `devices` GPUs."""
        self.check_model(model)
        return NamedDataParallel(model, device_ids=list(range(self.devices)))

    def exchange(self, model: nn.Module) -> None:
        """The gradients came together in backward."""
        self.check_gradients(model)


STRATEGY = DataParallel
