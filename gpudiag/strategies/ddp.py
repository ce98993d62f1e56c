"""DistributedDataParallel, with each bucket's exchange visible as a range."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gpudiag
from gpudiag.strategies.strategy import Strategy


class BucketedStrategy(Strategy):
    """PyTorch's DistributedDataParallel: gradients are all-reduced in buckets while backward still runs.

    The exchange is PyTorch's own `allreduce_hook`, the documented equal of what DDP does without a hook (divide by the
    number of processes, then sum). Installing it is the one way to name each bucket's exchange, also to NVTX, and it
    tells the buckets' sizes. It costs one Python call per bucket and step, of which models have one to some dozens.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap in DistributedDataParallel; broadcasts the parameters of rank 0."""
        on_gpu = self.device.type == "cuda"
        wrapped = DistributedDataParallel(model, device_ids=[self.device] if on_gpu else None, process_group=self.group)
        wrapped.register_comm_hook(self.group, self._exchange_bucket)
        return wrapped

    def _exchange_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self.exchanged_bytes.clear()
        buffer = bucket.buffer()
        self.exchanged_bytes.append(buffer.numel() * buffer.element_size())
        with gpudiag.range("exchange"):
            return allreduce_hook(group, bucket)
