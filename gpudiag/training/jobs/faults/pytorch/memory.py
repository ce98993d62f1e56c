"""Memory that goes back to the driver each step, as in loops that want to see it free, or fear that it runs out."""

from __future__ import annotations

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer


class EmptiedCache(Fault[DdpTrainer]):
    """`torch.cuda.empty_cache()` after each update; its size is what the model's memory takes to come and go."""

    def switch(self, *, on: bool) -> None:
        """Give memory back, or keep it."""
        self.trainer.after = torch.cuda.empty_cache if on and self.mine else None
