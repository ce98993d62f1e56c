"""Results from wherever they were kept: directories of scaling benchmarks, and single profiled runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpudiag.errors import UnreadableInputError
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.scaling import POINT_FILE, SCALING_FILE, SCALING_SCHEMA, Machine, ScalePoint, Scaling
from gpudiag.probing.facts_file import load_facts
from gpudiag.run_files import FACTS_FILE, RUN_FILE, read_json
from gpudiag.scaling.measured import which_gpus, with_figures
from gpudiag.scaling.points import NO_P2P, point_id
from gpudiag.scaling.speedup import with_speedups
from gpudiag.scaling.store import POINTS, Store

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.facts import Facts

#: Of a run's options, those that a point names itself, and those that say nothing of what is trained.
_NAMED = frozenset({"precision", "memory_format", "data", "threads", "p2p"})
_DEFAULTS = {"compile": "false", "prefetch": "false", "model": "whole", "loader_workers": "0"}


def points_of(path: Path) -> list[ScalePoint]:
    """All points that a path has.

    Args:
        path: a directory that `gpudiag scale` wrote, its `scaling.json`, or a run directory.

    Raises:
        UnreadableInputError: it is none of these, or of another version.
    """
    file = path / SCALING_FILE if path.is_dir() else path
    if file.is_file():
        return list(read_json(file, Scaling, SCALING_SCHEMA).points)
    if (path / POINTS).is_dir() and any((path / POINTS).glob(f"*/{POINT_FILE}")):
        return with_speedups(Store(path).points().values())  # a benchmark that was ended before it could conclude
    if (path / RUN_FILE).is_file():
        return [point_of_run(path)]
    raise UnreadableInputError(
        f"{path}: holds no results", "Give a directory that `gpudiag scale` or `gpudiag profile` wrote."
    )


def point_of_run(directory: Path) -> ScalePoint:
    """A single run as a point.

    Raises:
        UnreadableInputError: its record cannot be read.
    """
    run = read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)
    facts = _facts(directory)
    batch = run.batch_size_per_device or 0
    devices = len(run.ranks) or run.world_size
    on_gpu = any(rank.device.startswith(("cuda", "GPU")) for rank in run.ranks)
    names = tuple(rank.device_name for rank in run.ranks) if on_gpu else ()
    usable = tuple(gpu.name for gpu in facts.gpus if gpu.visible) if facts is not None else names
    machine = Machine(
        host=run.ranks[0].host if run.ranks else "",
        cpu=facts.host.cpu if facts is not None else "" if on_gpu or not run.ranks else run.ranks[0].device_name,
        usable_cpus=facts.host.usable_cpus if facts is not None else None,
        gpus=usable,
        which=which_gpus(facts) if facts is not None and on_gpu else "",
    )
    threads = run.options.get("threads", "")
    point = ScalePoint(
        id="",
        workload=run.workload,
        framework=run.framework,
        strategy=run.strategy + (NO_P2P if run.options.get("p2p") == "off" else ""),
        devices=devices,
        device_indices=tuple(rank.local_rank for rank in run.ranks) or tuple(range(devices)),
        batch_per_device=batch,
        global_batch=batch * devices,
        precision=run.options.get("precision", "unknown"),
        memory_format=run.options.get("memory_format", "unknown"),
        data=run.options.get("data", "unknown"),
        options={
            name: value
            for name, value in run.options.items()
            if name not in _NAMED and value != _DEFAULTS.get(name) and not (name == "loader_workers" and value == "0")
        },
        threads=int(threads) if threads.isdecimal() and not on_gpu else None,
    )
    named = msgspec.structs.replace(point, id=point_id(point))
    if not batch:
        return msgspec.structs.replace(named, status="failed", error="its batch size was not recorded")
    return with_figures(named, run, None, machine)


def _facts(directory: Path) -> Facts | None:
    try:
        return load_facts(directory / FACTS_FILE)
    except UnreadableInputError:
        return None
