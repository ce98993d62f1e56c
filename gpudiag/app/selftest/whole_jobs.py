"""Whole jobs that the selftest trains instead of the clean job: some communicate more, and some are well built."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry

_SMALL = ("gpt", "resnet20-cifar")


def _well_built(
    name: str, summary: str, *, workloads: tuple[str, ...], cpu_amount: float | None = None
) -> CatalogueEntry:
    """Return a whole job without a fault; without `cpu_amount` it runs on GPUs only."""
    return CatalogueEntry(
        name=name,
        summary=f"well built: {summary}",
        code=None,
        gpu_amount=0.0,
        cpu_amount=cpu_amount,
        job=True,
        workloads=workloads,
    )


JOBS = (
    # The communication of this job needs hooks on the host. The hooks slow launching, so `launch-bound` is right too.
    CatalogueEntry(
        name="fsdp2",
        summary="parameters, gradients and optimizer state are sharded (fully_shard)",
        code="communication-bound",
        causes=("transfer",),
        or_else={"launch-bound": ()},
        gpu_amount=0.0,
        cpu_amount=0.0,
        several=True,
        job=True,
        workloads=_SMALL,
    ),
    CatalogueEntry(
        name="tensor-parallel",
        summary="each layer of a feed-forward stack is shared by two ranks, in addition to data parallelism",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=0.0,
        cpu_amount=0.0,
        several=True,
        in_pairs=True,
        job=True,
        workloads=_SMALL,
    ),
    _well_built("cuda-graph", "forward and backward are one CUDA graph", workloads=("resnet50",)),
    _well_built("compiled", "each block is compiled (torch.compile)", workloads=("gpt",)),
    _well_built(
        "side-stream-copies", "batches are copied one step ahead, on their own stream", workloads=("resnet50",)
    ),
    _well_built(
        "accumulation", "gradients of two batches are accumulated under no_sync()", workloads=_SMALL, cpu_amount=0.0
    ),
    _well_built(
        "checkpointing",
        "blocks are computed again in backward (activation checkpointing)",
        workloads=_SMALL,
        cpu_amount=0.0,
    ),
)
