"""`gpudiag analyze`: traces in, analysis out; and analyses that were saved before."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.attribution.portions import summarise_portions
from gpudiag.analysis.attribution.summary import (
    summarise_collectives,
    summarise_devices,
    summarise_kernels,
    summarise_steps,
    summarise_waits,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.outlier_steps import without_outlier_steps
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.timed_steps import recording_cost, recording_doubts, timed_ranks
from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.step_view import view_of_step
from gpudiag.app.recordings import least_disturbed
from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis, Source, Steps, Validity
from gpudiag.model.attribution import Attribution
from gpudiag.model.facts import Facts
from gpudiag.model.probed import beside_probe, transport_of
from gpudiag.model.run import RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, find_facts_file, find_run_record, read_json, write_json
from gpudiag.model.step_view import STEP_FILE, StepView
from gpudiag.model.timeline import Timeline
from gpudiag.trace import ReadLimits, read_traces

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

#: The schema is the first thing in every JSON that gpudiag writes.
_HEAD_BYTES = 4096


def analyze(
    paths: Sequence[Path | str],
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
    keep: Callable[[Timeline, Attribution], None] | None = None,
) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        world_size: number of ranks, where the traces do not say.
        limits: bounds on what is read; the reader's own when left out.
        keep: called with what the analysis is made of, for whoever wants more of it than the result.

    Raises:
        UnreadableInputError: a file is missing, broken, too large or no trace, or nothing in it can be analysed.
    """
    full = read_traces(paths, world_size=world_size, limits=limits, repeated=True)
    traces, unused = least_disturbed(paths, full, limits)
    timeline = build_timeline(traces, world_size)
    attribution = attribute(timeline)
    if keep is not None:
        keep(timeline, attribution)
    run = find_run_record(paths)
    facts, unread = _facts_of_run(paths)
    case = without_outlier_steps(Case(timeline=timeline, attribution=attribution, run=run, facts=facts))
    findings, doubts = diagnose(case)
    collectives = summarise_collectives(timeline)
    if facts is not None:
        from gpudiag.analysis.diagnosis.hardware import examine_facts  # noqa: PLC0415  # bare traces do without

        collectives = beside_probe(collectives, facts, transport_of(run))
        # These carry no time of their own, so they come after those that do.
        findings = (*findings, *examine_facts(facts))
    return Analysis(
        framework=timeline.framework,
        world_size=timeline.world_size,
        ranks_present=timeline.ranks_present,
        steps=_steps(summarise_steps(timeline, attribution), run, case),
        devices=summarise_devices(timeline, attribution),
        waits=summarise_waits(timeline, attribution),
        findings=findings,
        validity=(*timeline.validity, *doubts, *unread, *unused, *recording_doubts(run)),
        collectives=collectives,
        kernels=summarise_kernels(timeline),
        portions=summarise_portions(timeline, attribution),
        source=_source(paths, run),
        timed=timed_ranks(run),
        recording=recording_cost(run),
    )


def _facts_of_run(paths: Sequence[Path | str]) -> tuple[Facts | None, tuple[Validity, ...]]:
    """The facts beside the run record, if there are any; ones that cannot be read cost their figures only."""
    path = find_facts_file(paths)
    if path is None:
        return None, ()
    from gpudiag.machine.facts_file import load_facts  # noqa: PLC0415  # bare traces do without

    try:
        return load_facts(path), ()
    except UnreadableInputError as error:
        return None, (Validity(code="repaired-input", message=f"the machine's facts are left out: {error}"),)


def _steps(steps: Steps, run: RunRecord | None, case: Case) -> Steps:
    what_if = case.what_if
    corrected_ms = None if what_if is None else what_if.corrected_ms
    unprofiled = None
    times: tuple[float, ...] = ()
    reasons = {}
    if corrected_ms is None:
        reasons["corrected_mean_ms"] = "the trace holds nothing that could be replayed without the profiler's cost"
    if run is None:
        reasons["unprofiled_mean_ms"] = (
            "only traces were given; `gpudiag profile` times the same steps unprofiled first"
        )
    else:
        timed = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
        if timed:
            slowest = max(timed, key=lambda rank: rank.mean_ms)
            unprofiled, times = slowest.mean_ms, slowest.step_ms
        else:
            reasons["unprofiled_mean_ms"] = "the run ended before its timed steps were done"
    return Steps(
        analysed=steps.analysed,
        mean_ms=steps.mean_ms,
        median_ms=steps.median_ms,
        unprofiled_mean_ms=unprofiled,
        corrected_mean_ms=corrected_ms,
        corrected_interval_ms=None if what_if is None else Significance(case, what_if).interval_ms,
        reasons=reasons,
        unprofiled_times_ms=times,
    )


def _source(paths: Sequence[Path | str], run: RunRecord | None) -> Source:
    names = tuple(str(path) for path in paths)
    if run is None:
        return Source(paths=names)
    means = [rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None]
    samples = None
    if means and run.batch_size_per_device:
        samples = run.batch_size_per_device * run.world_size * 1000 / max(means)
    return Source(
        paths=names,
        workload=run.workload,
        strategy=run.strategy,
        batch_size_per_device=run.batch_size_per_device,
        samples_per_s=samples,
        software=run.software,
    )


def analyze_run(run_dir: Path, keep: Callable[[Timeline, Attribution], None] | None = None) -> Analysis:
    """Analyse a run directory and save analysis.json and step.json in it. Takes `keep` and raises as `analyze` does."""
    analysis, view = analyze_with_step([run_dir], keep=keep)
    write_json(run_dir / ANALYSIS_FILE, analysis)
    if view is not None:
        write_json(run_dir / STEP_FILE, view, indent=0)
    return analysis


def side_by_side(analyse: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """Analyse runs beside each other, in processes of their own, as each takes one core for seconds."""
    workers = min(len(items), os.cpu_count() or 1, 8)
    if workers < 2:
        return [analyse(item) for item in items]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(analyse, items))


def analyze_with_step(
    paths: Sequence[Path | str],
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
    keep: Callable[[Timeline, Attribution], None] | None = None,
) -> tuple[Analysis, StepView | None]:
    """The analysis and one typical step of all ranks to draw; None for it where nothing was cut into steps.

    Takes and raises what `analyze` does.
    """
    views: list[StepView | None] = []

    def look(timeline: Timeline, attribution: Attribution) -> None:
        views.append(view_of_step(timeline, attribution))
        if keep is not None:
            keep(timeline, attribution)

    analysis = analyze(paths, world_size=world_size, limits=limits, keep=look)
    return analysis, views[0]


def analysis_of(paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None) -> Analysis:
    """The saved analysis that a single path names, else one made of the traces, else the one kept when they are gone.

    Raises:
        UnreadableInputError: none of these can be had.
    """
    return _saved_or(paths, lambda: analyze(paths, world_size=world_size, limits=limits))


def analysis_with_step(
    paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> tuple[Analysis, StepView | None]:
    """The same, and one step to draw where it comes from traces. Raises what `analysis_of` does."""
    views: list[StepView | None] = [None]

    def from_traces() -> Analysis:
        analysis, views[0] = analyze_with_step(paths, world_size=world_size, limits=limits)
        return analysis

    return _saved_or(paths, from_traces), views[0]


def _saved_or(paths: Sequence[str], from_traces: Callable[[], Analysis]) -> Analysis:
    only = Path(paths[0]) if len(paths) == 1 else None
    if only is not None and only.is_file() and _says_analysis(only):
        return read_json(only, Analysis, ANALYSIS_SCHEMA)
    try:
        return from_traces()
    except NotATraceError:
        if only is None or not (only / ANALYSIS_FILE).is_file():
            raise
        return read_json(only / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)


def _says_analysis(path: Path) -> bool:
    """Whether a file says that it is an analysis, of whatever version."""
    try:
        with path.open("rb") as file:
            return b'"gpudiag/analysis/' in file.read(_HEAD_BYTES)
    except OSError:
        return False  # the reader of traces will say what is wrong with it
