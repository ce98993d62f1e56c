"""`gpudiag table`: list the results of scaling benchmarks and of single profiled runs in one table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

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
from gpudiag.model.benchmarks.tables import FormTables, ResultRow, ResultsTable
from gpudiag.model.facts import Facts
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, find_inference, read_json, readable_json
from gpudiag.report.text import forms as forms_text
from gpudiag.report.text import results as results_text
from gpudiag.report.text.form_rows import form_tables
from gpudiag.report.verdict import in_few_words

Result = TypeVar("Result")

#: Options of a run that are separate fields of a point, so that its `options` omit them.
_POINT_FIELDS = frozenset({"precision", "memory_format", "data", "threads", "p2p"})
#: Default values of options, which the `options` of a point omit.
_DEFAULTS = {"compile": "false", "prefetch": "false", "model": "whole", "loader_workers": "0"}


def table(runs: Sequence[str], *, markdown: Path | None = None, csv: Path | None = None) -> ResultsTable:
    """Put all results into one table, and write it to the given files.

    Args:
        runs: directories that `gpudiag scale` or `gpudiag profile` wrote. The table lists unreadable directories.
        markdown, csv: files for the table.
    """
    results, left_out = _read_all(runs, read_points)
    rows = [(name, point) for name, points in results for point in points]
    if not rows:
        raise _nothing(left_out)
    result = _with_verdicts(results_table(rows, left_out))
    if markdown is not None:
        write_text(markdown, results_text.to_markdown(result))
    if csv is not None:
        write_text(csv, results_text.to_csv_rows(result))
    return result


def forms(
    runs: Sequence[str], names: Sequence[str], *, markdown: Path | None = None, csv: Path | None = None
) -> FormTables:
    """Put the results into forms (table layouts of earlier benchmarks), and write these tables to the given files.

    Args:
        runs: directories that `gpudiag scale` or `gpudiag profile` wrote. The tables list unreadable directories.
        names: names of forms; only one if `csv` is given.
        markdown, csv: files for the tables.
    """
    results, left_out = _read_all(runs, _read_scaling)
    if not results:
        raise _nothing(left_out)
    tables = form_tables(results, names, left_out)
    if markdown is not None:
        write_text(markdown, forms_text.to_markdown(tables))
    if csv is not None:
        write_text(csv, forms_text.to_csv_rows(tables.tables[0]))
    return tables


def _read_all(runs: Sequence[str], read: Callable[[Path], Result]) -> tuple[list[tuple[str, Result]], list[str]]:
    """Call `read` for every run. Return (name, result) of each readable run, and the error of each other run."""
    results, left_out = [], []
    for name in runs:
        try:
            results.append((name, read(Path(name))))
        except UnreadableInputError as error:
            left_out.append(str(error))
    return results, left_out


def _nothing(left_out: Sequence[str]) -> UnreadableInputError:
    return UnreadableInputError(
        left_out[0] if left_out else "no path was given",
        "Give directories that `gpudiag scale` or `gpudiag profile` wrote.",
    )


def _with_verdicts(result: ResultsTable) -> ResultsTable:
    """Add to each row the verdict of its saved analysis."""
    replace = msgspec.structs.replace
    saved_verdict = functools.cache(_saved_verdict)  # the points of a benchmark share their directory

    def with_verdict(row: ResultRow) -> ResultRow:
        return replace(row, verdict=saved_verdict(row.source))

    groups = []
    for group in result.groups:
        environments = [
            replace(environment, rows=tuple(map(with_verdict, environment.rows))) for environment in group.environments
        ]
        groups.append(replace(group, environments=tuple(environments)))
    return replace(result, groups=tuple(groups))


def _saved_verdict(source: str) -> str:
    """Return the verdict of the analysis in a directory; "" if there is no analysis of this version."""
    directory = Path(source)
    analysis = readable_json(directory / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
    return "" if analysis is None else in_few_words(analysis)


def _read_scaling(path: Path) -> Scaling:
    """Return the result of a benchmark. If the path has only points, return a result with only these points."""
    file = path / SCALING_FILE if path.is_dir() else path
    if file.is_file():
        return read_json(file, Scaling, SCALING_SCHEMA)
    points = tuple(read_points(path))
    machine = next((point.machine for point in points if point.status == "measured"), Machine())
    return Scaling(workload=",".join(dict.fromkeys(point.workload for point in points)), machine=machine, points=points)


def read_points(path: Path) -> list[PointRecord]:
    """Return all points of a path.

    Args:
        path: a directory that `gpudiag scale` wrote, its `scaling.json`, or a run directory.
    """
    file = path / SCALING_FILE if path.is_dir() else path
    if file.is_file():
        return list(read_json(file, Scaling, SCALING_SCHEMA).points)
    if (path / POINTS).is_dir() and any((path / POINTS).glob(f"*/{POINT_FILE}")):  # the benchmark was interrupted
        return with_speedups(Store(path, reading=True).points().values(), NEED_PEERS)
    if (path / RUN_FILE).is_file():
        return [point_of_run(path)]
    missing = "holds no results" if path.exists() else "does not exist"
    raise UnreadableInputError(
        f"{path}: {missing}", "Give a directory that `gpudiag scale` or `gpudiag profile` wrote."
    )


def point_of_run(directory: Path) -> PointRecord:
    """Return a single run as a point, which is the result of one training in a scaling benchmark."""
    run = read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)
    batch = run.batch_size_per_device or 0
    devices = len(run.ranks) or run.world_size
    threads = run.options.get("threads", "")
    point = PointRecord(
        id="",
        workload=_workload(run),
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
            if name not in _POINT_FIELDS and value != _DEFAULTS.get(name)
        },
        threads=int(threads) if threads.isdecimal() and not _is_on_gpu(run) else None,  # for CPU processes only
    )
    named = msgspec.structs.replace(point, id=point_id(point))
    machine = _machine(run, facts_beside(directory))
    point = with_figures(named, run, None, machine, find_inference([directory]))
    if batch:
        return point
    # A user-defined loop that did not report its batch size still has step times.
    return msgspec.structs.replace(point, samples_per_s=None, ci95=None, starts=(), per_device_samples_per_s=())


def _workload(run: RunRecord) -> str:
    """Return the workload. If the record has only the command's program, such as `torchrun`, return the script."""
    if run.command and run.workload == Path(run.command[0]).name:
        scripts = [Path(word).name for word in run.command if word.endswith(".py")]
        modules = [after for before, after in pairwise(run.command) if before == "-m"]
        # The last `-m` counts, because the first may name the launcher: `python -m torch.distributed.run -m train`.
        return next(iter([*scripts, *reversed(modules)]), run.workload)
    return run.workload


def _is_on_gpu(run: RunRecord) -> bool:
    return any(rank.device.startswith(("cuda", "GPU")) for rank in run.ranks)


def _machine(run: RunRecord, facts: Facts | None) -> Machine:
    """Return the machine of a run from its facts, or else from its record."""
    host = run.ranks[0].host if run.ranks else ""
    on_gpu = _is_on_gpu(run)
    if facts is not None:
        return Machine(
            host=host,
            cpu=facts.host.cpu,
            usable_cpus=facts.host.usable_cpus,
            gpus=tuple(gpu.name for gpu in facts.gpus if gpu.visible),
            which=which_gpus(facts) if on_gpu else "",
        )
    if on_gpu:
        return Machine(host=host, cpu="", gpus=tuple(rank.device_name for rank in run.ranks))
    return Machine(host=host, cpu=run.ranks[0].device_name if run.ranks else "")
