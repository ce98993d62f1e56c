"""The only module that knows every stage: traces in, analysis out; and a prepared run carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Analysis, Source, Steps, Validity
from gpudiag.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpudiag.diagnosis.case import Case
    from gpudiag.exporting.scalars import Series
    from gpudiag.exporting.scene import Scene
    from gpudiag.launch import Plan
    from gpudiag.model.attribution import Attribution
    from gpudiag.model.diff import Diff
    from gpudiag.model.facts import Facts
    from gpudiag.model.inference import InferenceRecord
    from gpudiag.model.run import RunRecord
    from gpudiag.model.step_view import StepView
    from gpudiag.model.timeline import Timeline
    from gpudiag.preparation import Prepared
    from gpudiag.readers import ReadLimits
    from gpudiag.readers.read import Profile
    from gpudiag.worker.progress import Progress


#: From so many device ops on, summarising them takes longer than forking a process for that.
_WORTH_FORKING_OPS = 10_000


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
    from gpudiag.processes import Background
    from gpudiag.readers import read_traces

    traces = read_traces(paths, world_size=world_size, limits=limits, meanwhile=_import_stages)
    from gpudiag.attribution import attribute
    from gpudiag.attribution.portions import summarise_portions
    from gpudiag.attribution.summary import (
        summarise_collectives,
        summarise_devices,
        summarise_kernels,
        summarise_steps,
        summarise_waits,
    )
    from gpudiag.diagnosis.alike import of_alike_steps
    from gpudiag.diagnosis.case import Case
    from gpudiag.diagnosis.engine import diagnose
    from gpudiag.run_files import find_run_record
    from gpudiag.timeline import build_timeline

    timeline = build_timeline(traces, world_size)
    attribution = attribute(timeline)
    summaries = Background(
        lambda: (summarise_kernels(timeline), summarise_portions(timeline, attribution)),
        worth=sum(len(lane.ops) for lane in timeline.lanes) > _WORTH_FORKING_OPS,
    )
    if keep is not None:
        keep(timeline, attribution)
    run = find_run_record(paths)
    facts, unread = _facts_of_run(paths)
    case = of_alike_steps(Case(timeline=timeline, attribution=attribution, run=run, facts=facts))
    findings, doubts = diagnose(case)
    if timeline.framework == "tensorflow":
        from gpudiag.diagnosis.tensorflow_advice import in_tensorflow

        findings = tuple(in_tensorflow(finding) for finding in findings)
    collectives = summarise_collectives(timeline)
    if facts is not None:
        from gpudiag.diagnosis.hardware import examine_facts
        from gpudiag.model.probed import beside_probe, transport_of

        collectives = beside_probe(collectives, facts, transport_of(run))
        # These carry no time of their own, so they come after those that do.
        findings = (*findings, *examine_facts(facts))
    kernels, portions = summaries.result()
    return Analysis(
        framework=timeline.framework,
        world_size=timeline.world_size,
        ranks_present=timeline.ranks_present,
        steps=_steps(summarise_steps(attribution), run, case),
        devices=summarise_devices(timeline, attribution),
        waits=summarise_waits(timeline, attribution),
        findings=findings,
        validity=(*timeline.validity, *doubts, *unread),
        collectives=collectives,
        kernels=kernels,
        portions=portions,
        source=_source(paths, run),
    )


class Shown(Record, frozen=True, kw_only=True):
    """What can be shown of a job: everything that was recorded, the run's curves, and TensorFlow's own files."""

    scene: Scene
    series: tuple[Series, ...]
    profiles: tuple[Profile, ...] = ()


def show(paths: Sequence[Path | str], *, world_size: int | None = None, limits: ReadLimits | None = None) -> Shown:
    """Read the traces of one job to show them in other tools. Arguments and errors as of `analyze`."""
    from gpudiag.attribution import attribute
    from gpudiag.exporting.assemble import scene_of
    from gpudiag.exporting.scalars import series_of
    from gpudiag.readers import read_traces
    from gpudiag.readers.read import read_processes, read_profiles
    from gpudiag.timeline import build_timeline

    timeline = build_timeline(read_traces(paths, world_size=world_size, limits=limits), world_size)
    attribution = attribute(timeline)
    recordings = timeline.traces
    profiles: tuple[Profile, ...] = ()
    if timeline.framework == "tensorflow":
        recordings = tuple(process.trace for process in read_processes(paths, limits=limits))
        profiles = read_profiles(paths, limits=limits)
    return Shown(
        scene=scene_of(timeline, attribution, recordings),
        series=series_of(timeline, attribution),
        profiles=profiles,
    )


def _import_stages() -> None:
    """Import what follows reading; it takes a tenth of a second, in which other processes can read."""
    import gpudiag.attribution.portions
    import gpudiag.attribution.summary
    import gpudiag.diagnosis.engine
    import gpudiag.run_files
    import gpudiag.timeline  # noqa: F401 - imported for later


def _facts_of_run(paths: Sequence[Path | str]) -> tuple[Facts | None, tuple[Validity, ...]]:
    """The facts beside the run record, if there are any; ones that cannot be read cost their figures only."""
    from gpudiag.run_files import find_facts_file

    path = find_facts_file(paths)
    if path is None:
        return None, ()
    from gpudiag.probing.facts_file import load_facts

    try:
        return load_facts(path), ()
    except UnreadableInputError as error:
        return None, (Validity(code="repaired-input", message=f"the machine's facts are left out: {error}"),)


def diff(before: Analysis, after: Analysis) -> Diff:
    """What made the step times of two runs differ.

    Raises:
        UnreadableInputError: one of them has no step to compare, or figures that cannot be.
    """
    from gpudiag.comparison import compare

    return compare(before, after)


def _steps(steps: Steps, run: RunRecord | None, case: Case) -> Steps:
    from gpudiag.diagnosis.certainty import Certainty

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
        corrected_interval_ms=None if what_if is None else Certainty(case, what_if).interval_ms,
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


def train(prepared: Prepared, observer: Callable[[Progress], None]) -> RunRecord:
    """Train and record; leaves run.json, facts.json, traces and logs in the run directory.

    Raises: what `gpudiag.launch.launch` raises; what was measured before is kept.
    """
    from gpudiag.launch import launch
    from gpudiag.model.inference import INFERENCE_FILE
    from gpudiag.run_files import FACTS_FILE, write_json

    plan = prepared.plan
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    if plan.leads:
        (plan.run_dir / INFERENCE_FILE).unlink(missing_ok=True)  # of an earlier run
        write_json(plan.run_dir / FACTS_FILE, prepared.facts)
    try:
        return launch(plan, observer, has_gpudiag=prepared.interpreter.has_gpudiag)
    except BaseException:
        _remove_half_done(plan)
        raise


def _remove_half_done(plan: Plan) -> None:
    """Volumes are gigabytes; half of one is no measurement, and whoever was killed could not remove it."""
    from gpudiag.workloads.registry import WORKLOADS

    entry = WORKLOADS.get(plan.job.workload)
    if entry is not None and not entry.trains:
        from gpudiag.workloads.volumes import remove_volumes

        remove_volumes(plan.run_dir)


def inference_of(run_dir: Path) -> InferenceRecord | None:
    """How fast the run predicted its volume; None where it trained."""
    from gpudiag.model.inference import INFERENCE_FILE, INFERENCE_SCHEMA, InferenceRecord
    from gpudiag.run_files import read_json

    path = run_dir / INFERENCE_FILE
    return read_json(path, InferenceRecord, INFERENCE_SCHEMA) if path.exists() else None


def analyze_run(run_dir: Path, keep: Callable[[Timeline, Attribution], None] | None = None) -> Analysis:
    """Analyse a run directory and save analysis.json and step.json in it. Takes `keep` and raises as `analyze` does."""
    from gpudiag.model.step_view import STEP_FILE
    from gpudiag.run_files import ANALYSIS_FILE, write_json

    analysis, view = analyze_with_step([run_dir], keep=keep)
    write_json(run_dir / ANALYSIS_FILE, analysis)
    if view is not None:
        write_json(run_dir / STEP_FILE, view, indent=0)
    return analysis


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
        from gpudiag.timeline.step_view import view_of_step

        views.append(view_of_step(timeline, attribution))
        if keep is not None:
            keep(timeline, attribution)

    analysis = analyze(paths, world_size=world_size, limits=limits, keep=look)
    return analysis, views[0]
