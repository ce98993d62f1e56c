"""Extra compute: matrix products that nobody needs, before the forward pass."""

from __future__ import annotations

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: Square matrices of this side: 0.2 ms on a fast GPU in bf16, about 1 ms on one CPU core.
_GPU_SIDE, _CPU_SIDE = 4096, 384
_REPEATS = 20


class ExtraCompute(Fault[DdpTrainer]):
    """As many products as take `amount_ms`, measured on this device beforehand."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        on_gpu = trainer.device.type == "cuda"
        side, dtype = (_GPU_SIDE, torch.bfloat16) if on_gpu else (_CPU_SIDE, torch.float32)
        self._a = torch.randn(side, side, device=trainer.device, dtype=dtype)
        self._product = torch.empty_like(self._a)
        each_ms = trainer.milliseconds_of(self._multiply, repeats=_REPEATS)
        self._count = max(1, round(amount_ms / each_ms))

    def switch(self, *, on: bool) -> None:
        """Add the products to the step, or take them out."""
        self.trainer.extra = self._work if on and self.mine else None

    def _work(self) -> None:
        for _ in range(self._count):
            self._multiply()

    def _multiply(self) -> None:
        torch.mm(self._a, self._a, out=self._product)
