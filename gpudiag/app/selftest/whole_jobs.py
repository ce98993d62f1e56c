"""Whole jobs that the selftest trains instead of the clean one: with other communication, or well built."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry

JOBS = (
    # Its hooks on the host disappear with the communication.
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
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="tensor-parallel",
        summary="each layer of a feed-forward stack is shared by two ranks, beside data parallelism",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=0.0,
        cpu_amount=0.0,
        several=True,
        in_pairs=True,
        job=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="cuda-graph",
        summary="well built: forward and backward are one CUDA graph",
        code=None,
        gpu_amount=0.0,
        job=True,
        workloads=("resnet50",),
    ),
    CatalogueEntry(
        name="compiled",
        summary="well built: each block is compiled (torch.compile)",
        code=None,
        gpu_amount=0.0,
        job=True,
        workloads=("gpt",),
    ),
    CatalogueEntry(
        name="side-stream-copies",
        summary="well built: batches are copied one step ahead, on their own stream",
        code=None,
        gpu_amount=0.0,
        job=True,
        workloads=("resnet50",),
    ),
    CatalogueEntry(
        name="accumulation",
        summary="well built: gradients of two batches are accumulated under no_sync()",
        code=None,
        gpu_amount=0.0,
        cpu_amount=0.0,
        job=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="checkpointing",
        summary="well built: blocks are computed again in backward (activation checkpointing)",
        code=None,
        gpu_amount=0.0,
        cpu_amount=0.0,
        job=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
)
