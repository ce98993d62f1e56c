"""The gradient exchange of the selftest's loop: DDP's communication hook, which faults set."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from typing import Literal

import torch
from torch import distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class CommunicationHook:
    """DDP's communication hook, in one of four ways.

    `plain`: PyTorch's own all-reduce of each bucket. `slow`: the same behind an all-reduce of `extra` other bytes per
    byte, as if the link were that much slower. `alone`: the trainer steps under `no_sync()`, so that no bucket is
    filled, none comes here, and each rank trains for itself. `meeting`: likewise, but ranks wait for each other after
    backward.

    On a CPU all of the other bytes go with the last bucket, when backward is over: gloo's threads would take the core
    from backward, of one rank more than of another, and the fault would be as much slow compute as slow exchange.
    """

    def __init__(self) -> None:
        self.way: Literal["plain", "slow", "alone", "meeting"] = "plain"
        self.extra = 0.0
        self._other = torch.empty(0)
        self._elements = 0

    @property
    def happens(self) -> bool:
        """Whether ranks exchange anything."""
        return self.way not in {"alone", "meeting"}

    def bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket of gradients."""
        buffer = bucket.buffer()
        if self.way == "plain":
            return allreduce_hook(group, bucket)
        self._elements += buffer.numel()
        if not (buffer.is_cuda or bucket.is_last()):
            return allreduce_hook(group, bucket)
        size, self._elements = max(1, int(self._elements * self.extra)), 0
        if self._other.numel() < size or self._other.dtype != buffer.dtype:
            self._other = torch.zeros(size, dtype=buffer.dtype, device=buffer.device)
        other = dist.all_reduce(self._other[:size], group=group, async_op=True)
        plain = allreduce_hook(group, bucket)
        if buffer.is_cuda:
            return plain  # one stream: done after the other
        both = torch.futures.collect_all([other.get_future(), plain])
        return both.then(lambda done: done.value()[1].value())

    def release(self) -> None:
        """Give the memory back."""
        self._other = torch.empty(0)
