"""Simulate work of a given duration without using a CPU core, so that more processes than cores run without delays."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

#: Duration of backward as a multiple of forward. For matrix products it is 2.
BACKWARD_SHARE = 2.0


class ArtificialWork(torch.autograd.Function):
    """Return the input unchanged. Take `forward_ms` in forward and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_ms: float) -> Tensor:
        """Wait, and return `x`."""
        occupy(x.device, forward_ms)
        ctx.forward_ms = forward_ms
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Wait, and return the gradient."""
        occupy(gradients[0].device, BACKWARD_SHARE * ctx.forward_ms)
        return gradients[0], None


def occupy(device: torch.device, milliseconds: float) -> None:
    """Keep a GPU busy for at least this time, or let a CPU process wait for this time."""
    if device.type == "cuda":
        # `_sleep` counts clock cycles, and no GPU's clock is above 2 GHz. PyTorch has no public equivalent.
        torch.cuda._sleep(int(2e6 * milliseconds))  # type: ignore[no-untyped-call]  # noqa: SLF001
    else:
        time.sleep(milliseconds / 1e3)


def artificial_work(x: Tensor, forward_ms: float) -> Tensor:
    """Return `x` after `forward_ms`. Backward takes twice as long."""
    done: Tensor = ArtificialWork.apply(x, forward_ms)  # type: ignore[no-untyped-call]  # untyped in torch
    return done
