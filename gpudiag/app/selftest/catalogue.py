"""The catalogue of faults, and the choice of those that this machine can run."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry
from gpudiag.app.selftest.faults import MORE, QUICK
from gpudiag.app.selftest.whole_jobs import JOBS
from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.selftest import FaultPlan, LeftOut
from gpudiag.training.frameworks.framework import Framework

#: Entries that `--quick` runs only if the user names them.
_LONGER = (*MORE, *JOBS)
ENTRIES = (*QUICK, *_LONGER)
CATALOGUE = {entry.name: entry for entry in ENTRIES}
#: Names of well-built jobs, and of all other entries.
WELL_BUILT = tuple(entry.name for entry in ENTRIES if entry.well_built)
FAULTS = tuple(entry.name for entry in ENTRIES if not entry.well_built)


def catalogue_entry(name: str) -> CatalogueEntry:
    """Return the entry of this name; raise UsageError if there is none."""
    if name not in CATALOGUE:
        raise UsageError(f"there is no fault '{name}'", there_are(name, CATALOGUE))
    return CATALOGUE[name]


def faulty_rank(world_size: int) -> int:
    """Return the rank of a single-rank fault. It is never rank 0, the rank that a careless diagnosis names."""
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
    """Return the entries that can run here, in the catalogue's order, and those that cannot.

    Args:
        names: the requested entries; empty for all.
        device: `cuda` or `cpu`.
        world_size: training processes.
        usable_cpus: cores that they may run on.
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
        obstacles = {
            "needs GPUs": entry.amount(device, framework.name) is None,
            "needs two devices or more": entry.several and world_size < 2,
            "needs two CPU cores or more": entry.kind == "pinned-core" and usable_cpus < 2,
            "these GPUs have no peer access to switch off": not entry.p2p and not peer_access,
            f"not available in {framework.title}": entry.kind not in framework.fault_kinds,
            "needs an even number of devices": entry.in_pairs and world_size % 2 == 1,
            f"only in {' and '.join(entry.workloads)}": bool(workloads) and not any(map(entry.fits, workloads)),
            "not with --quick unless named": quick and entry in _LONGER and not names,
        }
        reason = next((obstacle for obstacle, applies in obstacles.items() if applies), None)
        if reason is None:
            runnable.append(entry)
        else:
            left_out.append(LeftOut(fault=entry.name, why=reason))
    return tuple(runnable), tuple(left_out)


def fault_plan(entry: CatalogueEntry, *, device: str, world_size: int, framework: str) -> FaultPlan:
    """Return the fault's plan for the training processes."""
    return FaultPlan(
        name=entry.name,
        kind=entry.kind,
        amount=entry.amount(device, framework) or 0.0,
        ranks=(0,) if entry.first_rank else (faulty_rank(world_size),) if entry.one_rank else (),
        marked=entry.marked,
        job=entry.job,
    )
