"""Choose the probes for a machine, their order and their time limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from gpudiag.machine.probes.runner import Planned
from gpudiag.model.facts import Facts, Skipped

#: Ranks of an all-reduce between processes without GPUs.
_CPU_RANKS = 2
#: Largest message between processes without GPUs. The message exceeds caches, and is fast on a laptop.
_CPU_LARGEST_MIB = 64
#: Number of cores per rank with which importing PyTorch does not disturb programs that measure at the same time.
_CPUS_PER_IMPORT = 4
#: Schema and name of each result of gpu_paths.py.
_HOST = ("gpudiag/probe-copy-host/1", "copies to and from the host")
_PEER = ("gpudiag/probe-copy-peer/1", "copies between GPUs")
_NCCL = ("gpudiag/probe-allreduce/1", "NCCL all-reduce")
_NO_P2P = "NCCL all-reduce, peer access off"
#: First arguments of `_Plan.add`: name, program, and seconds of measuring per part.
_COPIES = ("copies", "gpu_paths.py", 4.0)
_QUICK = ("copies and NCCL", "gpu_paths.py", 0.55)


class _Plan:
    """The programs chosen so far, and the measurements that are left out."""

    def __init__(self, programs: Path, timeout_s: float, *, quick: bool) -> None:
        self.chosen: list[Planned] = []
        self.skipped: list[Skipped] = []
        self.quick = quick
        self._programs = programs
        self._timeout_s = timeout_s

    def add(self, name: str, program: str, seconds: float, *arguments: str, **fields: Any) -> None:
        """Add a program that measures for about `seconds`; `fields` are further fields of `Planned`."""
        given = (*arguments, "--seconds", f"{seconds:g}", *(["--quick"] if self.quick else []))
        path, limit_s = self._programs / program, self._timeout_s
        self.chosen.append(
            Planned(name=name, program=path, arguments=given, setup_timeout_s=limit_s, timeout_s=limit_s, **fields)
        )

    def skip(self, what: str, why: str) -> None:
        """Record that a measurement is left out, with the reason."""
        self.skipped.append(Skipped(what=what, why=why))


def plan_probes(
    facts: Facts, programs: Path, *, quick: bool, timeout_s: float, p2p: bool = True
) -> tuple[list[Planned], list[Skipped]]:
    """Return the programs to run on this machine, and the measurements left out.

    Args:
        facts: the inventory.
        programs: the folder of the probe programs.
        quick: choose only the most important measurements, which take about 5 s on 4 GPUs instead of 20.
        timeout_s: time limit of each program in seconds, for loading and again for measuring.
        p2p: False to measure NCCL without peer access; only used with `quick`.

    Returns:
        Programs in the order in which they measure. Copies come first, because other measurements are compared with
        them. Programs without GPUs come last; meanwhile the driver destroys the GPU contexts of the other programs.
    """
    plan = _Plan(programs, timeout_s, quick=quick)
    gpus = sum(gpu.visible for gpu in facts.gpus)
    if gpus and not installed("cuda.bindings"):
        plan.skip("copies and NCCL", "cuda-bindings is not installed (pip install cuda-bindings)")
    elif gpus:
        _plan_cuda(plan, gpus, p2p=p2p)
    elif facts.gpus:
        plan.skip("copies and NCCL", "CUDA_VISIBLE_DEVICES hides every GPU")
    plan.add("host memory", "host_memory.py", 0.2 if quick else 0.8)
    if not (gpus and quick):  # with GPUs, `quick` measures only NCCL's all-reduce
        _plan_gloo(plan, gpus, facts.host.usable_cpus or 0)
    return plan.chosen, plan.skipped


def _plan_cuda(plan: _Plan, gpus: int, *, p2p: bool) -> None:
    """Add as few CUDA programs as the transports allow, because the driver creates contexts slowly and sequentially.

    `gpus` is the number of visible GPUs; `plan_probes` describes `p2p`.
    """
    if gpus < 2:
        plan.add(*(_QUICK if plan.quick else _COPIES), "--parts", "host", parts=(_HOST,), holds_gpus=True)
        return
    # NCCL reads NCCL_P2P_DISABLE only once per process, so peer access on and off need separate processes.
    off = {"environment": {"NCCL_P2P_DISABLE": "1"}, "holds_gpus": True}
    if plan.quick and not p2p:
        plan.add(*_QUICK, "--parts", "host,peer", parts=(_HOST, _PEER), holds_gpus=True)
        plan.add(_NO_P2P, "allreduce_nccl.py", 0.8, "--strategies", "nccl-no-p2p", **off)
        return
    if plan.quick:
        parts = (_HOST, _PEER, _NCCL)
        plan.add(*_QUICK, "--parts", "host,peer,nccl", parts=parts, holds_gpus=True)
        plan.skip("all-reduce with other transports than NCCL's default", "left out by --quick")
        return
    plan.add(*_COPIES, "--parts", "host,peer", parts=(_HOST, _PEER), holds_gpus=True)
    plan.add(_NCCL[1], "allreduce_nccl.py", 2.5, "--strategies", "nccl,nccl-ring,nccl-tree", holds_gpus=True)
    plan.add(_NO_P2P, "allreduce_nccl.py", 1.5, "--strategies", "nccl-no-p2p", **off)


def _plan_gloo(plan: _Plan, gpus: int, cpus: int) -> None:
    """Add all-reduces between processes, which need PyTorch. `gpus` and `cpus` count the usable ones."""
    if not installed("torch"):
        plan.skip("gloo all-reduce", "PyTorch is not installed (in a clone: pip install '.[torch]')")
    elif gpus > 1:
        # Importing PyTorch takes seconds of one core per rank, which does not disturb copies if there are enough cores.
        aside = cpus >= _CPUS_PER_IMPORT * gpus
        arguments = ("--ranks", str(gpus), "--strategies", "gloo,host-staged")
        plan.add("gloo all-reduce", "allreduce_gloo.py", 2.4, *arguments, loads_aside=aside)
    else:
        arguments = ("--ranks", str(_CPU_RANKS), "--largest-mib", str(_CPU_LARGEST_MIB))
        plan.add("gloo all-reduce", "allreduce_gloo.py", 1.5 if plan.quick else 3, *arguments)


def installed(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is missing or invalid
        return False
