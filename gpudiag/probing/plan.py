"""Which probes a machine needs, in which order, and how long each may take."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from gpudiag.model.facts import Skipped
from gpudiag.probing.runner import Planned

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.facts import Facts

#: Ranks of an all-reduce between processes where there is no GPU to give one each.
_CPU_RANKS = 2
#: The largest message between processes without GPUs: beyond the caches, and done within the budget on a laptop.
_CPU_LARGEST_MIB = 64


class _Plan:
    """The programs chosen so far."""

    def __init__(self, programs: Path, timeout_s: float, *, quick: bool) -> None:
        self.chosen: list[Planned] = []
        self.skipped: list[Skipped] = []
        self.quick = quick
        self._programs = programs
        self._timeout_s = timeout_s

    def add(self, name: str, program: str, seconds: float, *arguments: str, **environment: str) -> None:
        """Run `program` with about `seconds` of measuring."""
        given = (*arguments, "--seconds", f"{seconds:g}", *(["--quick"] if self.quick else []))
        self.chosen.append(
            Planned(name, self._programs / program, given, environment, self._timeout_s, self._timeout_s)
        )

    def skip(self, what: str, why: str) -> None:
        """Leave something out."""
        self.skipped.append(Skipped(what=what, why=why))


def plan_probes(facts: Facts, programs: Path, *, quick: bool, timeout_s: float) -> tuple[list[Planned], list[Skipped]]:
    """The programs to run on this machine, and what is left out with its reason.

    Args:
        facts: the inventory.
        programs: the folder of the probe programs.
        quick: only what matters most, in about 5 s on 4 GPUs instead of 20.
        timeout_s: bound on loading and, again, on measuring of each program.

    Returns:
        Programs in the order in which they measure. Copies come first: they are what the rest is judged by.
    """
    plan = _Plan(programs, timeout_s, quick=quick)
    gpus = sum(gpu.visible for gpu in facts.gpus)
    if gpus and not installed("cuda.bindings"):
        plan.skip("copies and NCCL", "cuda-bindings is not installed (pip install cuda-bindings)")
    elif gpus:
        _plan_cuda(plan, gpus)
    elif facts.gpus:
        plan.skip("copies and NCCL", "CUDA_VISIBLE_DEVICES hides every GPU")
    plan.add("host memory", "host_memory.py", 0.3 if quick else 0.8, "--mib", "256" if quick else "512")
    if not (gpus and quick):
        _plan_gloo(plan, gpus)
    return plan.chosen, plan.skipped


def _plan_cuda(plan: _Plan, gpus: int) -> None:
    quick = plan.quick
    plan.add("copies to and from the host", "copy_host.py", 0.8 if quick else 4)
    if gpus < 2:
        return
    plan.add("copies between GPUs", "copy_peer.py", 0.8 if quick else 3)
    if quick:
        plan.add("NCCL all-reduce", "allreduce_nccl.py", 0.4, "--strategies", "nccl")
        plan.skip("all-reduce with other transports than NCCL's default", "left out by --quick")
        return
    plan.add("NCCL all-reduce", "allreduce_nccl.py", 2.5, "--strategies", "nccl,nccl-ring,nccl-tree")
    # Which transports NCCL may use is fixed when its library first reads the variable: a process of its own.
    off = {"NCCL_P2P_DISABLE": "1"}
    plan.add("NCCL all-reduce, peer access off", "allreduce_nccl.py", 1.5, "--strategies", "nccl-no-p2p", **off)


def _plan_gloo(plan: _Plan, gpus: int) -> None:
    """All-reduce between processes, which PyTorch brings."""
    if not installed("torch"):
        plan.skip("gloo all-reduce", "PyTorch is not installed (pip install 'gpudiag[torch]')")
    elif gpus > 1:
        plan.add("gloo all-reduce", "allreduce_gloo.py", 3, "--ranks", str(gpus), "--strategies", "gloo,host-staged")
    else:
        arguments = ("--ranks", str(_CPU_RANKS), "--largest-mib", str(_CPU_LARGEST_MIB))
        plan.add("gloo all-reduce", "allreduce_gloo.py", 1.5 if plan.quick else 3, *arguments)


def installed(module: str) -> bool:
    """Whether a module could be imported; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is missing or odd
        return False
