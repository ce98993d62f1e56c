"""`gpudiag table`: results from wherever they were kept, scaling benchmarks and single profiled runs, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from gpudiag.analysis.scaling.measured import which_gpus, with_figures
from gpudiag.analysis.scaling.speedup import with_speedups
from gpudiag.analysis.scaling.table import results_table
from gpudiag.app.report import facts_beside, write_text
from gpudiag.app.scale.points import NEED_PEERS, point_id
from gpudiag.app.scale.store import POINTS, Store
from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.benchmarks.scaling import (
    NO_P2P,
    NOT_RECORDED,
    POINT_FILE,
    SCALING_FILE,
    SCALING_SCHEMA,
    Machine,
    PointRecord,
    Scaling,
)
from gpudiag.model.benchmarks.tables import FormTables, ResultsTable
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, find_inference, read_json
from gpudiag.report.text import forms as forms_text
from gpudiag.report.text import results as results_text
from gpudiag.report.text.form_rows import form_tables
from gpudiag.report.verdict import in_few_words

#: Of a run's options, those that a point names itself, and those that say nothing of what is trained.
_NAMED = frozenset({"precision", "memory_format", "data", "threads", "p2p"})
_DEFAULTS = {"compile": "false", "prefetch": "false", "model": "whole", "loader_workers": "0"}


def table(runs: Sequence[str], *, markdown: Path | None = None, csv: Path | None = None) -> ResultsTable:
    """One table of all results, also written to the files that are wanted.

    Args:
        runs: directories that `gpudiag scale` or `gpudiag profile` wrote; one that cannot be read is named.
        markdown, csv: where to write the table.

    Raises:
        UnreadableInputError: none of them has results.
        GpudiagError: a file cannot be written.
    """
    results, left_out = [], []
    for name in runs:
        try:
            results += [(name, point) for point in points_of(Path(name))]
        except UnreadableInputError as error:
            left_out.append(str(error))
    if not results:
        raise _nothing(left_out)
    arranged = _with_verdicts(results_table(results, left_out))
    if markdown is not None:
        write_text(markdown, results_text.to_markdown(arranged))
    if csv is not None:
        write_text(csv, results_text.to_csv_rows(arranged))
    return arranged


def _with_verdicts(arranged: ResultsTable) -> ResultsTable:
    """Add to each run what the analysis that was kept with it leads with."""
    kept: dict[str, str] = {}

    def verdict(source: str) -> str:
        if source not in kept:
            file = Path(source) / ANALYSIS_FILE
            try:
                kept[source] = in_few_words(read_json(file, Analysis, ANALYSIS_SCHEMA)) if file.is_file() else ""
            except UnreadableInputError:
                kept[source] = ""  # of an older version, or cut short: its figures are in the run's record
        return kept[source]

    return msgspec.structs.replace(
        arranged,
        groups=tuple(
            msgspec.structs.replace(
                group,
                environments=tuple(
                    msgspec.structs.replace(
                        environment,
                        rows=tuple(
                            msgspec.structs.replace(row, verdict=verdict(row.source)) for row in environment.rows
                        ),
                    )
                    for environment in group.environments
                ),
            )
            for group in arranged.groups
        ),
    )


def forms(
    runs: Sequence[str], names: Sequence[str], *, markdown: Path | None = None, csv: Path | None = None
) -> FormTables:
    """The results in the forms of earlier benchmarks, also written to the files that are wanted.

    Args:
        runs: directories that `gpudiag scale` or `gpudiag profile` wrote; one that cannot be read is named.
        names: of forms; one only with `csv`.
        markdown, csv: where to write them.

    Raises:
        UnreadableInputError: none of the paths has results.
        GpudiagError: a file cannot be written.
    """
    results, left_out = [], []
    for name in runs:
        try:
            results.append((name, _scaling_of(Path(name))))
        except UnreadableInputError as error:
            left_out.append(str(error))
    if not results:
        raise _nothing(left_out)
    tables = form_tables(results, names, left_out)
    if markdown is not None:
        write_text(markdown, forms_text.to_markdown(tables))
    if csv is not None:
        write_text(csv, forms_text.to_csv_rows(tables.tables[0]))
    return tables


def _nothing(left_out: Sequence[str]) -> UnreadableInputError:
    return UnreadableInputError(
        left_out[0] if left_out else "nothing was given",
        "Give directories that `gpudiag scale` or `gpudiag profile` wrote.",
    )


def _scaling_of(path: Path) -> Scaling:
    """A whole benchmark; of one that did not conclude, and of a run, its points. Raises as `points_of`."""
    file = path / SCALING_FILE if path.is_dir() else path
    if file.is_file():
        return read_json(file, Scaling, SCALING_SCHEMA)
    points = tuple(points_of(path))
    machine = next((point.machine for point in points if point.status == "measured"), Machine())
    return Scaling(workload=",".join(dict.fromkeys(point.workload for point in points)), machine=machine, points=points)


def points_of(path: Path) -> list[PointRecord]:
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
        return with_speedups(
            Store(path, reading=True).points().values(), NEED_PEERS
        )  # a benchmark that was ended before it could conclude
    if (path / RUN_FILE).is_file():
        return [point_of_run(path)]
    raise UnreadableInputError(
        f"{path}: holds no results", "Give a directory that `gpudiag scale` or `gpudiag profile` wrote."
    )


def _program(run: RunRecord) -> str:
    """Name what was trained; of a command whose processes reported nothing its script, and not `torchrun`."""
    if run.command and run.workload == Path(run.command[0]).name:
        scripts = [Path(word).name for word in run.command if word.endswith(".py")]
        modules = [after for before, after in pairwise(run.command) if before == "-m"]
        return next(iter([*scripts, *reversed(modules)]), run.workload)
    return run.workload


def point_of_run(directory: Path) -> PointRecord:
    """A single run as a point.

    Raises:
        UnreadableInputError: its record cannot be read.
    """
    run = read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)
    facts = facts_beside(directory)
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
    point = PointRecord(
        id="",
        workload=_program(run),
        framework=run.framework,
        strategy=run.strategy + (NO_P2P if run.options.get("p2p") == "off" else ""),
        devices=devices,
        device_indices=tuple(rank.local_rank for rank in run.ranks) or tuple(range(devices)),
        batch_per_device=batch,
        global_batch=batch * devices,
        precision=run.options.get("precision", NOT_RECORDED),
        memory_format=run.options.get("memory_format", NOT_RECORDED),
        data=run.options.get("data", NOT_RECORDED),
        options={
            name: value
            for name, value in run.options.items()
            if name not in _NAMED and value != _DEFAULTS.get(name) and not (name == "loader_workers" and value == "0")
        },
        threads=int(threads) if threads.isdecimal() and not on_gpu else None,
    )
    named = msgspec.structs.replace(point, id=point_id(point))
    point = with_figures(named, run, None, machine, find_inference([directory]))
    if batch:
        return point
    # A loop of one's own that did not say how many samples a step has: its steps are known all the same.
    return msgspec.structs.replace(point, samples_per_s=None, ci95=None, starts=(), per_device_samples_per_s=())
