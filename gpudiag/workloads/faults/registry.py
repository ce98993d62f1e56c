"""The faults by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.workloads.faults.compute import ExtraCompute
from gpudiag.workloads.faults.copies import PageableCopies
from gpudiag.workloads.faults.core import PinnedCore
from gpudiag.workloads.faults.exchange import SlowExchange, WholeExchange
from gpudiag.workloads.faults.fault import Fault, NoFault
from gpudiag.workloads.faults.loader import LateLoader
from gpudiag.workloads.faults.syncs import Syncs
from gpudiag.workloads.faults.tiny import TinyKernels

if TYPE_CHECKING:
    from gpudiag.model.selftest import FaultPlan
    from gpudiag.workloads.faults.trainer import Trainer

KINDS: dict[str, type[Fault]] = {
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


def make_fault(plan: FaultPlan, trainer: Trainer) -> Fault:
    """Make the fault of this process, switched off. Its size follows from the trainer's clean step time."""
    mine = not plan.ranks or trainer.rank in plan.ranks
    return KINDS[plan.kind](trainer, plan.amount * trainer.clean_ms, mine=mine)
