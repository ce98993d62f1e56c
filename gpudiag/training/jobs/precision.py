"""Select the device and the precision of a training process under PyTorch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpudiag.model.job import Precision


def use_device(kind: str) -> torch.device:
    """Return the CPU, or select and return this process's GPU if `kind` is `cuda`. Let cuDNN find fast algorithms."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    return device


class Arithmetic:
    """The precision of one training run.

    `fp32` is IEEE single precision. `tf32` lets matrix units of NVIDIA Ampere and later round inputs to 10 bits of
    mantissa; on a CPU `tf32` equals `fp32`. `bf16` and `fp16` run under autocast, and `fp16` also scales gradients.
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
        """Run backward of the loss. For `fp16`, first scale the loss, which also scales the gradients."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # untyped in torch

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters. For `fp16`, wait for the gradients, and update only if all gradients are finite."""
        self._scaler.step(optimizer)
        self._scaler.update()
