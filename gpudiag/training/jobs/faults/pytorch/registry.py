"""PyTorch's faults by kind, and the program that puts them in."""

from __future__ import annotations

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.jobs.faults.core import PinnedCore
from gpudiag.training.jobs.faults.fault import Fault, LateLoader, NoFault
from gpudiag.training.jobs.faults.job import run_faults
from gpudiag.training.jobs.faults.pytorch.batchnorm import SyncBatchNorms
from gpudiag.training.jobs.faults.pytorch.communication import SlowCommunication, WholeCommunication
from gpudiag.training.jobs.faults.pytorch.compute import ExtraCompute
from gpudiag.training.jobs.faults.pytorch.copies import PageableCopies, SmallCopies
from gpudiag.training.jobs.faults.pytorch.host import Collections, Logs, Saves
from gpudiag.training.jobs.faults.pytorch.jobs.graphed import Graphed
from gpudiag.training.jobs.faults.pytorch.jobs.job import Accumulation, SideStreamCopies
from gpudiag.training.jobs.faults.pytorch.jobs.parts import Checkpointing, Compiled
from gpudiag.training.jobs.faults.pytorch.jobs.sharded import Sharded
from gpudiag.training.jobs.faults.pytorch.jobs.tensor_parallel import TensorParallel
from gpudiag.training.jobs.faults.pytorch.loading import DoubleBatches, TooFewWorkers, VaryingLengths
from gpudiag.training.jobs.faults.pytorch.looped import LoopedOptimizer
from gpudiag.training.jobs.faults.pytorch.memory import EmptiedCache
from gpudiag.training.jobs.faults.pytorch.syncs import BetweenLayers, Syncs
from gpudiag.training.jobs.faults.pytorch.tiny import TinyKernels
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer
from gpudiag.training.session.launched import Launched

KINDS: dict[str, type[Fault[DdpTrainer]]] = {
    "none": NoFault,
    "late-loader": LateLoader,
    "extra-compute": ExtraCompute,
    "pageable-copies": PageableCopies,
    "syncs": Syncs,
    "tiny-kernels": TinyKernels,
    "slow-exchange": SlowCommunication,
    "whole-exchange": WholeCommunication,
    "pinned-core": PinnedCore,
    "too-few-workers": TooFewWorkers,
    "logs": Logs,
    "saves": Saves,
    "collections": Collections,
    "between-layers": BetweenLayers,
    "varying-lengths": VaryingLengths,
    "looped-optimizer": LoopedOptimizer,
    "double-batches": DoubleBatches,
    "small-copies": SmallCopies,
    "sync-batchnorm": SyncBatchNorms,
    "emptied-cache": EmptiedCache,
    "fsdp2": Sharded,
    "tensor-parallel": TensorParallel,
    "cuda-graph": Graphed,
    "compiled": Compiled,
    "side-stream-copies": SideStreamCopies,
    "accumulation": Accumulation,
    "checkpointing": Checkpointing,
}


def run(plan: SelftestPlan, started: Launched) -> None:
    """Run this process's share of one launch."""
    run_faults(plan, started, DdpTrainer, KINDS)
