"""PyTorch's faults by kind, and the program that puts them in."""

from __future__ import annotations

from gpudiag.training.jobs.faults.core import PinnedCore
from gpudiag.training.jobs.faults.fault import Fault, LateLoader, NoFault
from gpudiag.training.jobs.faults.job import run_faults
from gpudiag.training.jobs.faults.pytorch.compute import ExtraCompute
from gpudiag.training.jobs.faults.pytorch.copies import PageableCopies
from gpudiag.training.jobs.faults.pytorch.exchange import SlowExchange, WholeExchange
from gpudiag.training.jobs.faults.pytorch.syncs import Syncs
from gpudiag.training.jobs.faults.pytorch.tiny import TinyKernels
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

KINDS: dict[str, type[Fault[DdpTrainer]]] = {
    "none": NoFault,
    "late-loader": LateLoader,
    "extra-compute": ExtraCompute,
    "pageable-copies": PageableCopies,
    "syncs": Syncs,
    "tiny-kernels": TinyKernels,
    "slow-exchange": SlowExchange,
    "whole-exchange": WholeExchange,
    "pinned-core": PinnedCore,
}


def run() -> None:
    """This process's share of one launch."""
    run_faults(DdpTrainer, KINDS)
