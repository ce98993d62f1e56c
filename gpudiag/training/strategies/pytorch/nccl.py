"""`nccl`: DistributedDataParallel with NCCL all-reduce between GPUs."""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.facts import nccl_transport
from gpudiag.prediction.cost import NCCL_HOLDS, Cost, bucketed
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.bucketed import BucketedStrategy


class Nccl(BucketedStrategy):
    """Gradients never leave the GPUs' own links, where there are such."""

    name = "nccl"
    summary = "DistributedDataParallel over NCCL: each gradient bucket is all-reduced between the GPUs."
    listed, special = 10, 10
    default_on = "cuda"
    needs_gpu = True
    rounding_pays = True
    launched_ahead = True
    takes = (*BucketedStrategy.takes, "nccl_algo")
    backend = "nccl"

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """With peer access or without; gradients that travel as bf16 are shorter messages of the same."""
        return nccl_transport(p2p=p2p)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """All-reduce between the GPUs, over whatever links there are between them."""
        curve = now.nccl_curve
        if curve is not None:
            reason = f"{curve.busbw(25e6):.3g} GB/s of bus bandwidth at 25 MB"
        else:
            rate = now.ring_rate()
            curve = now.ring_curve()
            links = " of NVLink" if now.paths.ring_is_nvlink else ""
            reason = f"{rate:.3g} GB/s around the slowest link of the ring{links}"
        if not now.peer_access:
            reason = f"there is no peer access, and {reason}, through the host"
        return bucketed(now, candidate, curve, candidate.wire, reason, holds=NCCL_HOLDS)


STRATEGY = Nccl
