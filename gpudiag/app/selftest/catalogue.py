"""The catalogue of faults, and the choice of faults that this machine can run."""

from __future__ import annotations

from gpudiag.app.selftest.divided_jobs import DIVIDED
from gpudiag.app.selftest.entry import CatalogueEntry
from gpudiag.app.selftest.faults import MORE, QUICK
from gpudiag.app.selftest.whole_jobs import JOBS
from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.selftest import FaultPlan, LeftOut
from gpudiag.training.frameworks.framework import Framework
from gpudiag.training.jobs.faults.parallel_layouts import CPU_PROCESSES, slow_ranks

#: Entries that `--quick` runs only if the user names them.
_LONGER = (*MORE, *JOBS, *DIVIDED)
ENTRIES = (*QUICK, *_LONGER)
CATALOGUE = {entry.name: entry for entry in ENTRIES}
#: Names of well-built jobs, which have no fault, and of all other entries.
WELL_BUILT = tuple(entry.name for entry in ENTRIES if entry.well_built)
FAULTS = tuple(entry.name for entry in ENTRIES if not entry.well_built)


def catalogue_entry(name: str) -> CatalogueEntry:
    """Return the entry of this name; raise UsageError if there is none."""
    if name not in CATALOGUE:
        raise UsageError(f"there is no fault '{name}'", there_are(name, CATALOGUE))
    return CATALOGUE[name]


def faulty_rank(world_size: int) -> int:
    """Return the rank of a single-rank fault. If there are several ranks, this rank is not rank 0."""
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
    """Return the entries that can run here, in the catalogue's order, and the entries that cannot.

    Args:
        names: the requested entries; empty for all.
        device: `cuda` or `cpu`.
        world_size: training processes.
        usable_cpus: cores that the processes may use.
        peer_access: whether a GPU can access another GPU's memory, so that peer access can be switched off.
        framework: the framework that trains.
        workloads: the trained workloads; empty for all.
        quick: leave out the longer entries, unless `names` has them.
    """
    wanted = {catalogue_entry(name).name for name in names} or set(CATALOGUE)
    runnable, left_out = [], []
    for entry in ENTRIES:
        if entry.name not in wanted:
            continue
        processes = processes_of(entry, device=device, world_size=world_size)
        obstacles = {
            "needs GPUs": entry.amount(device, framework.name) is None,
            "needs two devices or more": entry.several and processes < 2,
            "needs two CPU cores or more": entry.kind == "pinned-core" and usable_cpus < 2,
            "these GPUs have no peer access to switch off": not entry.p2p and not peer_access,
            f"not available in {framework.title}": entry.kind not in framework.fault_kinds,
            "needs an even number of devices": entry.in_pairs and processes % 2 == 1,
            f"only in {' and '.join(entry.workloads)}": not _applies(entry, workloads),
            "not with --quick unless named": quick and entry in _LONGER and not names,
        }
        reason = next((obstacle for obstacle, applies in obstacles.items() if applies), None)
        if reason is None:
            runnable.append(entry)
        else:
            left_out.append(LeftOut(fault=entry.name, why=reason))
    return tuple(runnable), tuple(left_out)


def processes_of(entry: CatalogueEntry, *, device: str, world_size: int) -> int:
    """Return the number of training processes of an entry's launch."""
    return CPU_PROCESSES if entry.divided and device == "cpu" else world_size


def _applies(entry: CatalogueEntry, workloads: tuple[str, ...]) -> bool:
    return not workloads or any(entry.fits(workload) for workload in workloads)


def _faulty_ranks(entry: CatalogueEntry, world_size: int) -> tuple[int, ...]:
    """Return the ranks that have the fault; empty for all."""
    if entry.divided:
        return slow_ranks(entry.kind, world_size)
    return (0,) if entry.first_rank else (faulty_rank(world_size),) if entry.one_rank else ()


def fault_plan(entry: CatalogueEntry, *, device: str, world_size: int, framework: str) -> FaultPlan:
    """Return the fault's plan for the training processes."""
    return FaultPlan(
        name=entry.name,
        kind=entry.kind,
        amount=entry.amount(device, framework) or 0.0,
        ranks=_faulty_ranks(entry, world_size),
        marked=entry.marked,
        job=entry.job,
    )
