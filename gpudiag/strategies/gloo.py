"""`gloo`: DistributedDataParallel with gloo all-reduce through host memory."""

from __future__ import annotations

from gpudiag.strategies.ddp import BucketedStrategy


class Gloo(BucketedStrategy):
    """Works everywhere. From GPUs, gloo copies each bucket to the host, reduces it there and copies it back."""

    backend = "gloo"


STRATEGY = Gloo
