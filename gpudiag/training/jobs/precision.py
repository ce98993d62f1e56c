"""Select the device and the precision of a training process under PyTorch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpudiag.model.job import Precision


def use_device(kind: str) -> torch.device:
    """Select and return this process's GPU for `cuda`, otherwise the CPU. Let cuDNN choose the fastest algorithms."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    return device


class Arithmetic:
    """The precision of one training run.

    `fp32` is IEEE single precision. `tf32` lets matrix units round inputs to 10 bits of mantissa (NVIDIA Ampere and
    later; on a CPU it equals `fp32`). `bf16` and `fp16` run under autocast, and `fp16` also scales gradients.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._type = device.type
        tf32 = precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        self._autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def forward(self) -> AbstractContextManager[object]:
        """Return a context for forward and loss."""
        return nullcontext() if self._autocast is None else torch.autocast(self._type, dtype=self._autocast)

    def backward(self, loss: Tensor) -> None:
        """Run backward of the loss. If gradients are scaled, first scale the loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's own

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters. If gradients are scaled, wait for them, and update only if all of them are finite."""
        self._scaler.step(optimizer)
        self._scaler.update()
