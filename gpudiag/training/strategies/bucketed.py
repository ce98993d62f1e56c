"""DistributedDataParallel, with each bucket's exchange visible as a range whenever somebody looks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import gpudiag
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
    from torch.nn.parallel import DistributedDataParallel

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.model.job import CommunicationOptions

#: Set by Nsight Systems and its like in the programs that they watch.
_NVTX_LISTENER = "NVTX_INJECTION64_PATH"


def distributed_data_parallel(candidate: Candidate, *arguments: str) -> str:
    """The line that wraps a user's own model, with further arguments as they are written."""
    if candidate.bucket_mb is not None:
        arguments = (*arguments, f"bucket_cap_mb={candidate.bucket_mb:g}")
    return f"model = torch.nn.parallel.DistributedDataParallel({', '.join(('model', *arguments))})"


class BucketedStrategy(PytorchStrategy):
    """PyTorch's DistributedDataParallel: gradients are all-reduced in buckets while backward still runs.

    A bucket's exchange can only be named from a communication hook, which costs a Python call per bucket and a
    division kernel of its own. So there is one only where it is needed: to compress, or when a profiler records or a
    tool listens to NVTX. Until then the model is bare DDP. The hook is PyTorch's `allreduce_hook`, the documented equal
    of what DDP does without.
    """

    takes: ClassVar[tuple[str, ...]] = ("bucket_mb", "compress", "accumulate")

    def __init__(self, device: torch.device, options: CommunicationOptions | None = None, devices: int = 1) -> None:
        super().__init__(device, options, devices)
        self._wrapped: DistributedDataParallel | None = None
        self._hooked = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap in DistributedDataParallel; broadcasts the parameters of rank 0."""
        from torch.nn.parallel import DistributedDataParallel

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
        import torch

        self.check_gradients(model)
        if not self._hooked and torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001  # no public way to ask
            self._attach()

    def needs_hook(self) -> bool:
        """Is a hook needed for the exchange itself?"""
        return self.options.compress is not None

    def reduce_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        compress = self.options.compress
        hook: Any = getattr(default_hooks, f"{compress}_compress_hook" if compress else "allreduce_hook")
        averaged: torch.futures.Future[torch.Tensor] = hook(group, bucket)
        return averaged

    def release(self) -> None:
        """Let go of the model, which the hook would hold forever."""
        self._wrapped = None

    def _attach(self) -> None:
        assert self._wrapped is not None  # noqa: S101  # asked after wrap
        self._hooked = True
        # DDP compares a hook's annotations with its own types, which are not imported here; a lambda has none.
        self._wrapped.register_comm_hook(None, lambda group, bucket: self._communication_bucket(group, bucket))  # noqa: PLW0108

    def _communication_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self.exchanged_bytes.clear()
        buffer = bucket.buffer()
        self.exchanged_bytes.append(buffer.numel() * buffer.element_size())
        with gpudiag.range("exchange"):
            return self.reduce_bucket(group, bucket)

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """PyTorch's own, with its hook for gradients that travel shorter than they are."""
        compression = (
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
            f"model.register_comm_hook(None, default_hooks.{candidate.compress}_compress_hook)",
        )
        return (
            f'torch.distributed.init_process_group("{cls.backend}")',
            distributed_data_parallel(candidate, *(["device_ids=[local_rank]"] if cls.needs_gpu else [])),
            *(compression if candidate.lossy else ()),
        )
