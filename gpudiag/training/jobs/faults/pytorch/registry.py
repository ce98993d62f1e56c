"""List the faults under PyTorch by kind, and run the job that injects them."""

from __future__ import annotations

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.jobs.faults.fault import Fault, LateLoader, NoFault, PinnedCore
from gpudiag.training.jobs.faults.job import run_faults
from gpudiag.training.jobs.faults.parallel_layouts import PARALLEL_WORKLOAD
from gpudiag.training.jobs.faults.pytorch import host, loading, step_faults, variants
from gpudiag.training.jobs.faults.pytorch.parallel_faults import PARALLEL_KINDS
from gpudiag.training.jobs.faults.pytorch.parallel_trainer import ParallelTrainer
from gpudiag.training.jobs.faults.pytorch.tensor_parallel import TensorParallel
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer
from gpudiag.training.loop.launched import Launched

KINDS: dict[str, type[Fault[DdpTrainer]]] = {
    "none": NoFault,
    "late-loader": LateLoader,
    "extra-compute": step_faults.ExtraCompute,
    "pageable-copies": step_faults.PageableCopies,
    "syncs": step_faults.LayerSyncs,
    "tiny-kernels": step_faults.TinyKernels,
    "slow-exchange": step_faults.SlowCommunication,
    "whole-exchange": step_faults.WholeCommunication,
    "pinned-core": PinnedCore,
    "too-few-workers": loading.TooFewWorkers,
    "logs": host.Logs,
    "saves": host.Saves,
    "collections": host.Collections,
    "between-layers": step_faults.BetweenLayers,
    "varying-lengths": loading.VaryingLengths,
    "looped-optimizer": step_faults.LoopedOptimizer,
    "double-batches": loading.DoubleBatches,
    "small-copies": step_faults.SmallCopies,
    "sync-batchnorm": step_faults.SyncBatchNorms,
    "emptied-cache": step_faults.EmptiedCache,
    "fsdp2": variants.Sharded,
    "tensor-parallel": TensorParallel,
    "cuda-graph": variants.Graphed,
    "compiled": variants.Compiled,
    "side-stream-copies": variants.SideStreamCopies,
    "accumulation": variants.Accumulation,
    "checkpointing": variants.Checkpointing,
}


def run(plan: SelftestPlan, started: Launched) -> None:
    """Run the faults of one launch in this process."""
    if plan.workload == PARALLEL_WORKLOAD:
        run_faults(plan, started, ParallelTrainer, PARALLEL_KINDS)
    else:
        run_faults(plan, started, DdpTrainer, KINDS)
