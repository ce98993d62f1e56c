"""Device memory that goes back to the driver in each step."""

from __future__ import annotations

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer


class EmptiedCache(Fault[DdpTrainer]):
    """After each step the caching allocator gives back all that it keeps, and takes it again in the next."""

    def switch(self, *, on: bool) -> None:
        """Empty the cache, or keep it."""
        self.trainer.after = torch.cuda.empty_cache if on and self.mine else None

    def rest(self) -> None:
        """Keep it."""
        self.trainer.after = None
