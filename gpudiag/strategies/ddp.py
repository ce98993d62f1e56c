"""DistributedDataParallel, with each bucket's exchange visible as a range whenever somebody looks."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

import os
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

import gpudiag
from gpudiag.model.job import ExchangeOptions
from gpudiag.strategies.strategy import Strategy

_HOOKS = {None: allreduce_hook, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}

#: Set by Nsight Systems and its like in the programs that they watch.
_NVTX_LISTENER = "NVTX_INJECTION64_PATH"


class BucketedStrategy(Strategy):
    """PyTorch's DistributedDataParallel: gradients are all-reduced in buckets while backward still runs.

    A bucket's exchange can only be named from a communication hook, which costs a Python call per bucket and a
    division kernel of its own. So there is one only where it is needed: to compress, or when a profiler records or a
    tool listens to NVTX. Until then the model is bare DDP. The hook is PyTorch's `allreduce_hook`, the documented equal
    of what DDP does without.
    """

    def __init__(self, device: torch.device, options: ExchangeOptions | None = None, devices: int = 1) -> None:
        super().__init__(device, options, devices)
        self._wrapped: DistributedDataParallel | None = None
        self._hooked = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap in DistributedDataParallel; broadcasts the parameters of rank 0."""
        self.check_model(model)
        on_gpu = self.device.type == "cuda"
        devices: Any = [self.device] if on_gpu else None
        size: Any = self.options.bucket_mb
        self._wrapped = DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=size)
        if self.needs_hook() or _NVTX_LISTENER in os.environ:
            self._attach()
        return self._wrapped

    def accumulating(self) -> AbstractContextManager[object]:
        """DDP's `no_sync`."""
        assert self._wrapped is not None  # noqa: S101  # asked after wrap
        return self._wrapped.no_sync()

    def exchange(self, model: nn.Module) -> None:
        """The buckets have travelled during backward; from the first recorded step on they are named."""
        self.check_gradients(model)
        if not self._hooked and torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001  # no public way to ask
            self._attach()

    def needs_hook(self) -> bool:
        """Is a hook needed for the exchange itself?"""
        return self.options.compress is not None

    def reduce_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket."""
        return _HOOKS[self.options.compress](group, bucket)

    def _attach(self) -> None:
        assert self._wrapped is not None  # noqa: S101  # asked after wrap
        self._hooked = True
        self._wrapped.register_comm_hook(None, self._exchange_bucket)

    def _exchange_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self.exchanged_bytes.clear()
        buffer = bucket.buffer()
        self.exchanged_bytes.append(buffer.numel() * buffer.element_size())
        with gpudiag.range("exchange"):
            return self.reduce_bucket(group, bucket)
