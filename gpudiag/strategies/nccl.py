"""`nccl`: DistributedDataParallel with NCCL all-reduce between GPUs."""

from __future__ import annotations

from gpudiag.strategies.ddp import BucketedStrategy


class Nccl(BucketedStrategy):
    """Gradients never leave the GPUs' own links, where there are such."""

    backend = "nccl"


STRATEGY = Nccl
