"""The gradient exchange, and what makes it slow: more bytes, or no peer access (which is the launch's doing)."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from typing import TYPE_CHECKING, Literal

import torch
from torch import distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gpudiag.workloads.faults.fault import Fault, milliseconds_of

if TYPE_CHECKING:
    from gpudiag.workloads.faults.trainer import Trainer

_TRIAL_BYTES = 32 << 20
_REPEATS = 5
#: Extra bytes per byte at most: they lie in memory, one bucket's at a time.
_MOST_EXTRA = 200.0


class Exchange:
    """DDP's communication hook, in one of four ways.

    `plain`: PyTorch's own all-reduce of each bucket. `slow`: the same behind an all-reduce of `extra` other bytes per
    byte, as if the link were that much slower. `barely`: of one element per bucket: ranks still wait for each other,
    but hardly anything is transferred. `alone`: the trainer steps under `no_sync()`, so that no bucket is filled, none
    comes here, and each rank trains for itself.

    On a CPU all of the other bytes go with the last bucket, when backward is over: gloo's threads would take the core
    from backward, of one rank more than of another, and the fault would be as much slow compute as slow exchange.
    """

    def __init__(self) -> None:
        self.way: Literal["plain", "slow", "barely", "alone"] = "plain"
        self.extra = 0.0
        self._other = torch.empty(0)
        self._elements = 0

    def bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket of gradients."""
        buffer = bucket.buffer()
        if self.way == "barely":
            one = dist.all_reduce(buffer[:1], group=group, async_op=True)
            done: torch.futures.Future[torch.Tensor] = one.get_future().then(lambda _: buffer)
            return done
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


def _without(trainer: "Trainer") -> Literal["barely", "alone"]:
    """How the ranks train when the exchange is to cost nothing.

    What the diagnosis calls recoverable is the whole of it, packing and all, but no waiting for a late rank. GPUs of a
    clean job are level, so each may go alone. Processes on shared cores never are: they go on waiting for each other.
    """
    return "alone" if trainer.device.type == "cuda" else "barely"


class SlowExchange(Fault):
    """The exchange takes `amount_ms` longer, measured beforehand. Without the fault there is none."""

    def __init__(self, trainer: "Trainer", amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._extra = min(amount_ms / self._plain_ms(), _MOST_EXTRA)

    def switch(self, *, on: bool) -> None:
        """Exchange slowly, or not."""
        self.trainer.exchange.extra = self._extra
        self.trainer.exchange.way = "slow" if on else _without(self.trainer)

    def rest(self) -> None:
        """Exchange as PyTorch does."""
        self.trainer.exchange.way = "plain"
        self.trainer.exchange.release()

    def _plain_ms(self) -> float:
        """How long it takes to exchange all gradients, by the speed of one large all-reduce; the same on all ranks."""
        trial = torch.zeros(_TRIAL_BYTES, dtype=torch.uint8, device=self.trainer.device)
        trial_ms = milliseconds_of(lambda: dist.all_reduce(trial), self.trainer.device, repeats=_REPEATS)
        mean_ms = self.trainer.agree(trial_ms)
        return mean_ms * self.trainer.gradient_bytes / _TRIAL_BYTES


class WholeExchange(Fault):
    """The exchange as it is, against none: for launches whose transport is the fault, and for the clean job."""

    def switch(self, *, on: bool) -> None:
        """Exchange as PyTorch does, or not."""
        self.trainer.exchange.way = "plain" if on else _without(self.trainer)

    def rest(self) -> None:
        """Exchange as PyTorch does."""
        self.trainer.exchange.way = "plain"
