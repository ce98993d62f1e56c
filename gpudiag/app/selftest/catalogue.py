"""Which faults are put in where."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry
from gpudiag.app.selftest.faults import MORE, QUICK
from gpudiag.app.selftest.whole_jobs import JOBS
from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.selftest import FaultPlan, LeftOut
from gpudiag.training.frameworks.framework import Framework

#: Those that `--quick` leaves out, unless they are asked for.
_LONGER = (*MORE, *JOBS)
ENTRIES = (*QUICK, *_LONGER)
CATALOGUE = {entry.name: entry for entry in ENTRIES}
#: Names of jobs in which nothing is wrong, and of all others.
WELL_BUILT = tuple(entry.name for entry in ENTRIES if entry.well_built)
FAULTS = tuple(entry.name for entry in ENTRIES if not entry.well_built)


def catalogue_entry(name: str) -> CatalogueEntry:
    """The fault of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in CATALOGUE:
        raise UsageError(f"there is no fault '{name}'", there_are(name, CATALOGUE))
    return CATALOGUE[name]


def late_rank(world_size: int) -> int:
    """The rank that has a fault of one rank: never rank 0, which tools that forget to ask would name."""
    return world_size // 2


def choose(
    names: tuple[str, ...],
    *,
    device: str,
    world_size: int,
    usable_cpus: int,
    peer_access: bool,
    framework: Framework,
    workloads: tuple[str, ...] = (),
    quick: bool = False,
) -> tuple[tuple[CatalogueEntry, ...], tuple[LeftOut, ...]]:
    """The faults that can be put in here, in the catalogue's order, and those that cannot.

    Args:
        names: the faults asked for; empty for all.
        device: `cuda` or `cpu`.
        world_size: training processes.
        usable_cpus: cores that they may run on.
        peer_access: some GPU reaches another's memory, so that this can be switched off.
        framework: what trains.
        workloads: those that are trained; empty for all.
        quick: of what was not asked for, only what `--quick` has.
    """
    wanted = {catalogue_entry(name).name for name in names} or set(CATALOGUE)
    chosen, left_out = [], []
    for entry in ENTRIES:
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
        elif entry.in_pairs and world_size % 2:
            why = "needs an even number of devices"
        elif workloads and entry.workloads and not set(workloads) & set(entry.workloads):
            why = f"put into {' and '.join(entry.workloads)} only"
        elif quick and entry in _LONGER and not names:
            why = "not with --quick, unless asked for"
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
        ranks=(0,) if entry.first_rank else (late_rank(world_size),) if entry.one_rank else (),
        marked=entry.marked,
        job=entry.job,
    )
