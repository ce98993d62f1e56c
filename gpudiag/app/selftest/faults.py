"""The faults that the selftest injects into a clean job."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry

UNMARKED = "unmarked time at the start of the step"
SYNCHRONIZATIONS = ("aten::item", "aten::_local_scalar_dense", "cudaStreamSynchronize")
IMAGES = ("resnet50", "resnet20-cifar")

#: Entries of `--quick`.
QUICK = (
    CatalogueEntry(
        name="none",
        summary="nothing: no alarm may be raised",
        code=None,
        gpu_amount=0.0,
        cpu_amount=0.0,
    ),
    # On a GPU the host runs ahead by most of a step. A late batch costs only the time by which it exceeds this lead.
    CatalogueEntry(
        name="late-loader",
        summary="each batch comes late on all ranks, from a loader without marks",
        code="input-bound",
        causes=("loader", UNMARKED),
        gpu_amount=1.2,
        cpu_amount=0.8,
    ),
    CatalogueEntry(
        name="late-loader-marked",
        summary="each batch comes late on all ranks, from a loader that gpudiag.profile marks",
        injected="late-loader",
        code="input-bound",
        causes=("loader",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        marked=True,
    ),
    CatalogueEntry(
        name="late-loader-one",
        summary="each batch comes late on one rank",
        injected="late-loader",
        code="straggler",
        causes=("input",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        one_rank=True,
        several=True,
    ),
    CatalogueEntry(
        name="slow-compute-one",
        summary="one rank computes more than the others",
        injected="extra-compute",
        code="straggler",
        causes=("compute",),
        gpu_amount=0.6,
        cpu_amount=0.8,
        one_rank=True,
        several=True,
    ),
    CatalogueEntry(
        name="pageable-copies",
        summary="a tensor is copied to the GPU from pageable memory each step",
        code="slow-copy",
        causes=("pageable memory",),
        gpu_amount=0.4,
    ),
    # The cost follows from the number of layers, not from the value of `gpu_amount`.
    CatalogueEntry(
        name="sync",
        summary="an .item() before and after each layer's forward",
        injected="syncs",
        code="host-sync",
        causes=SYNCHRONIZATIONS,
        gpu_amount=1.0,
        # TensorFlow's functions on a CPU end when their work is complete. Hence .item() costs nothing there, and the
        # diagnosis must raise no alarm.
        cpu_amount_in={"tensorflow": 1.0},
    ),
    CatalogueEntry(
        name="tiny-kernels",
        summary="a stack of tiny layers is launched one by one, not as a CUDA graph",
        code="launch-bound",
        causes=("tiny kernels",),
        gpu_amount=1.2,
    ),
    CatalogueEntry(
        name="slow-exchange",
        summary="gradients are exchanged with extra data of many times their size",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=1.0,
        cpu_amount=0.8,
        several=True,
    ),
    # The amounts are numbers of busy programs on the shared core.
    CatalogueEntry(
        name="pinned-core-one",
        summary="one rank shares a single core with busy programs",
        injected="pinned-core",
        code="straggler",
        causes=("launch",),
        cpu_causes=("compute",),
        gpu_amount=3.0,
        cpu_amount=1.0,
        one_rank=True,
        several=True,
    ),
    CatalogueEntry(
        name="no-p2p",
        summary="gradients are exchanged without peer access",
        injected="whole-exchange",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=0.0,
        several=True,
        p2p=False,
    ),
)

#: Entries that `--quick` leaves out.
MORE = (
    # Each sample waits for storage, so the workers supply batches more slowly than training takes them.
    CatalogueEntry(
        name="too-few-workers",
        summary="a DataLoader's workers cannot keep up",
        code="input-bound",
        causes=("loader", "too few workers", UNMARKED),
        gpu_amount=0.8,
        cpu_amount=2.0,
        workloads=IMAGES,
    ),
    CatalogueEntry(
        name="rank0-logs",
        summary="rank 0 writes metrics to a file after each step",
        injected="logs",
        code="straggler",
        causes=("stall",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        first_rank=True,
        several=True,
        workloads=IMAGES,
    ),
    # On a GPU, saving starts with a copy of the checkpoint to the host.
    CatalogueEntry(
        name="rank0-saves",
        summary="rank 0 saves a checkpoint after each step",
        injected="saves",
        code="straggler",
        causes=("stall", "copy"),
        cpu_causes=("stall",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        first_rank=True,
        several=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="gc-one-rank",
        summary="one rank collects garbage in a large heap before each update",
        injected="collections",
        code="straggler",
        causes=("stall",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        one_rank=True,
        several=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="item-between-layers",
        summary="the largest value of each block's output is read on the host at once",
        injected="between-layers",
        code="host-sync",
        causes=SYNCHRONIZATIONS,
        gpu_amount=1.0,
        workloads=("gpt",),
    ),
    # The straggler changes in each step. If there are two ranks, they take turns.
    CatalogueEntry(
        name="varying-lengths",
        summary="in each step another rank has the longest sequences, or the most images",
        code="straggler",
        causes=("compute",),
        gpu_amount=0.5,
        cpu_amount=0.6,
        several=True,
        workloads=("gpt", "resnet20-cifar"),
    ),
    CatalogueEntry(
        name="looped-optimizer",
        summary="an optimizer updates many small parameters one by one (foreach=False)",
        code="launch-bound",
        causes=("tiny kernels", "Python and framework overhead"),
        gpu_amount=1.2,
        workloads=("resnet50",),
    ),
    # The cost follows from the size of the batch, not from the value of `gpu_amount`.
    CatalogueEntry(
        name="float64-batches",
        summary="batches come in float64 from pageable memory, and the device converts them",
        injected="double-batches",
        code="slow-copy",
        causes=("pageable memory",),
        gpu_amount=1.0,
        workloads=("resnet50",),
    ),
    # Each copy waits for the device. One copy of all tensors from pinned memory would cost nothing.
    CatalogueEntry(
        name="many-small-copies",
        summary="hundreds of small tensors are copied to the GPU one by one each step",
        injected="small-copies",
        code="slow-copy",
        or_else={
            "host-sync": ("aten::to", "aten::copy_", "aten::_to_copy", "cudaMemcpyAsync", "cudaStreamSynchronize")
        },
        gpu_amount=0.5,
        workloads=("resnet50",),
    ),
    CatalogueEntry(
        name="busy-core-one",
        summary="one rank shares a single core with one busy program",
        injected="pinned-core",
        code="straggler",
        causes=("launch",),
        gpu_amount=1.0,
        one_rank=True,
        several=True,
        workloads=("gpt",),
    ),
    # PyTorch's layer gathers the number of samples of each rank. The host waits for the result before the next launch.
    CatalogueEntry(
        name="sync-batchnorm",
        summary="SyncBatchNorm in place of each batch norm",
        code="host-sync",
        or_else={"communication-bound": (), "launch-bound": ()},
        gpu_amount=1.0,
        several=True,
        workloads=("resnet50",),
    ),
    # The cost follows from the model's memory, not from the value of `gpu_amount`.
    CatalogueEntry(
        name="emptied-cache",
        summary="free memory is returned to the driver after each step and allocated again in the next",
        code="memory-allocation",
        causes=("cudaMalloc", "cudaFree"),
        gpu_amount=1.0,
        workloads=("gpt",),
    ),
)
