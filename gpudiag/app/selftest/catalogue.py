"""Which faults there are, how large each is made, and what the diagnosis should say of it."""

from __future__ import annotations

import msgspec

from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.selftest import Expected, FaultPlan, LeftOut
from gpudiag.training.frameworks.framework import Framework


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        name: as on the command line.
        summary: what is done to the job.
        kind: which fault the training processes put in.
        code: the finding that should come first; None for a clean run.
        causes: what its cause may be called; empty where none is claimed.
        cpu_causes: the same on CPU processes, where the training thread is host and device at once.
        gpu_amount, cpu_amount: its size as a share of the clean step; None where it makes no sense on that device.
        cpu_amount_in: the same on CPUs in a framework, by its name, where it makes sense in that one only.
        one_rank: one rank has it and not all.
        several: it needs two devices or more.
        marked: the loader is marked through `gpudiag.profile`.
        p2p: False where the whole launch goes without peer access.
    """

    name: str
    summary: str
    kind: str
    code: str | None
    causes: tuple[str, ...] = ()
    cpu_causes: tuple[str, ...] | None = None
    gpu_amount: float | None = None
    cpu_amount: float | None = None
    cpu_amount_in: dict[str, float] = {}
    one_rank: bool = False
    several: bool = False
    marked: bool = False
    p2p: bool = True

    def amount(self, device: str, framework: str) -> float | None:
        """Its size on this device, as a share of the clean step; None where it makes no sense."""
        return self.gpu_amount if device == "cuda" else self.cpu_amount_in.get(framework, self.cpu_amount)

    def expected(self, device: str, ranks: tuple[int, ...], world_size: int) -> Expected:
        """What should be found where these ranks have the fault (none named: all)."""
        causes = self.causes if device == "cuda" or self.cpu_causes is None else self.cpu_causes
        everyone = tuple(range(world_size)) if self.code is not None else ()
        return Expected(code=self.code, ranks=ranks or everyone, causes=causes)


UNMARKED = "unmarked time at the start of the step"

_ENTRIES = (
    CatalogueEntry(
        name="none",
        summary="nothing: no alarm may be raised",
        kind="none",
        code=None,
        gpu_amount=0.0,
        cpu_amount=0.0,
    ),
    # On a GPU the host is ahead by most of a step, and a loader must be later than that to cost anything.
    CatalogueEntry(
        name="late-loader",
        summary="each batch comes late on all ranks, from a loader without marks",
        kind="late-loader",
        code="input-bound",
        causes=("loader", UNMARKED),
        gpu_amount=1.2,
        cpu_amount=0.8,
    ),
    CatalogueEntry(
        name="late-loader-marked",
        summary="the same, from a loader that gpudiag.profile marks",
        kind="late-loader",
        code="input-bound",
        causes=("loader",),
        gpu_amount=1.2,
        cpu_amount=0.8,
        marked=True,
    ),
    CatalogueEntry(
        name="late-loader-one",
        summary="each batch comes late on one rank",
        kind="late-loader",
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
        kind="extra-compute",
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
        kind="pageable-copies",
        code="slow-copy",
        causes=("pageable memory",),
        gpu_amount=0.4,
    ),
    # Its size is the number of layers.
    CatalogueEntry(
        name="sync",
        summary="an .item() before and after each layer's forward",
        kind="syncs",
        code="host-sync",
        causes=("aten::item", "aten::_local_scalar_dense", "cudaStreamSynchronize"),
        gpu_amount=1.0,
        # Functions on a CPU end when their work is done: it costs nothing, and no alarm may come of it.
        cpu_amount_in={"tensorflow": 1.0},
    ),
    CatalogueEntry(
        name="tiny-kernels",
        summary="a stack of tiny layers is launched one by one, not as a CUDA graph",
        kind="tiny-kernels",
        code="launch-bound",
        causes=("tiny kernels",),
        gpu_amount=1.2,
    ),
    CatalogueEntry(
        name="slow-exchange",
        summary="gradients are exchanged together with many times their size",
        kind="slow-exchange",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=1.0,
        cpu_amount=0.8,
        several=True,
    ),
    # As many busy programs on that core.
    CatalogueEntry(
        name="pinned-core-one",
        summary="one rank shares a single core with busy programs",
        kind="pinned-core",
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
        kind="whole-exchange",
        code="communication-bound",
        causes=("transfer",),
        gpu_amount=0.0,
        several=True,
        p2p=False,
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def catalogue_entry(name: str) -> CatalogueEntry:
    """The fault of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in CATALOGUE:
        raise UsageError(f"there is no fault '{name}'", f"There are: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def late_rank(world_size: int) -> int:
    """The rank that has a fault of one rank: never rank 0, which tools that forget to ask would name."""
    return world_size // 2


def choose(
    names: tuple[str, ...], *, device: str, world_size: int, usable_cpus: int, peer_access: bool, framework: Framework
) -> tuple[tuple[CatalogueEntry, ...], tuple[LeftOut, ...]]:
    """The faults that can be put in here, in the catalogue's order, and those that cannot.

    Args:
        names: the faults asked for; empty for all.
        device: `cuda` or `cpu`.
        world_size: training processes.
        usable_cpus: cores that they may run on.
        peer_access: some GPU reaches another's memory, so that this can be switched off.
        framework: what trains.
    """
    wanted = {catalogue_entry(name).name for name in names} or set(CATALOGUE)
    chosen, left_out = [], []
    for entry in _ENTRIES:
        if entry.name not in wanted:
            continue
        why = None
        if entry.amount(device, framework.name) is None:
            why = "needs GPUs"
        elif entry.several and world_size < 2:
            why = "needs two devices or more"
        elif entry.kind == "pinned-core" and usable_cpus < 2:
            why = "needs two CPU cores or more"
        elif not entry.p2p and not peer_access:
            why = "these GPUs have no peer access that could be switched off"
        elif entry.kind not in framework.fault_kinds:
            why = f"not put into {framework.title}'s jobs"
        if why is None:
            chosen.append(entry)
        else:
            left_out.append(LeftOut(fault=entry.name, why=why))
    return tuple(chosen), tuple(left_out)


def plan_of(entry: CatalogueEntry, *, device: str, world_size: int, framework: str) -> FaultPlan:
    """What the training processes are told of a fault."""
    return FaultPlan(
        name=entry.name,
        kind=entry.kind,
        amount=entry.amount(device, framework) or 0.0,
        ranks=(late_rank(world_size),) if entry.one_rank else (),
        marked=entry.marked,
    )
