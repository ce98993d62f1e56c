"""Analyse the traces of one job: run all stages and assemble the Analysis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.attribution.representatives import represent
from gpudiag.analysis.attribution.summary import (
    summarise_clocks,
    summarise_collectives,
    summarise_devices,
    summarise_kernels,
    summarise_operators,
    summarise_portions,
    summarise_steps,
    summarise_waits,
)
from gpudiag.analysis.compute.work import ComputeWork, compute_classes, compute_work
from gpudiag.analysis.diagnosis.case import Case, only_steps, without_outlier_steps
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.significance import Significance, interval_ms
from gpudiag.analysis.diagnosis.unprofiled_steps import recording_cost, recording_doubts, unprofiled_ranks
from gpudiag.analysis.timeline import build_timeline
from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Analysis, DeviceKind, Finding, Modules, Source, Steps, Validity
from gpudiag.model.compute_rates import ComputeClass
from gpudiag.model.event import Trace, workload_of
from gpudiag.model.facts import Facts
from gpudiag.model.job import TriedChange
from gpudiag.model.probed import beside_probe, transport_of
from gpudiag.model.run import ComputeRate, RunRecord
from gpudiag.model.run_directory import (
    LINES_DIR,
    TRIES_FILE,
    find_facts_file,
    find_inference,
    find_run_directory,
    find_run_record,
    readable_json,
)
from gpudiag.model.sanitize import one_line
from gpudiag.model.timeline import Attribution, Timeline
from gpudiag.trace.parallel import WhileReading, each_rank

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.source_lines import CaseLines
    from gpudiag.analysis.timeline.rank_events import RankEvents
    from gpudiag.model.parallelism import Parallelism
    from gpudiag.model.source_lines.log import LineLogs

#: Maximum length of a reason in a message, in characters.
_MAX_REASON = 300


class AnalysedTraces(msgspec.Struct, frozen=True):
    """An analysis, and the timeline, attribution and source lines from which it was made."""

    analysis: Analysis
    timeline: Timeline
    attribution: Attribution
    lines: CaseLines | None


def analysis_of_traces(
    traces: Sequence[Trace],
    paths: Sequence[Path | str],
    *,
    world_size: int | None,
    unused: tuple[Validity, ...],
    views: WhileReading[RankEvents] | None = None,
) -> AnalysedTraces:
    """Analyse the traces of one job.

    Args:
        traces: one per process.
        paths: the paths that the user gave. A run directory also has the run's record, facts and source-line logs.
        world_size: number of ranks, if the traces do not contain it.
        unused: warnings about traces that are not used.
        views: returns the rank events that were prepared while traces were read; None to prepare them now.
    """
    timeline = build_timeline(traces, world_size, each=views or each_rank)
    attribution = attribute(timeline, each=each_rank)
    # In a large job, details are computed for representative ranks only.
    detailed, detailed_attribution = represent(timeline, attribution)
    run = find_run_record(paths)
    facts, unread = _facts_of_run(paths)
    work = compute_work(detailed)
    logs, rate = _line_logs(paths), _compute_rate(run)
    case = without_outlier_steps(
        Case(
            timeline=detailed,
            attribution=detailed_attribution,
            run=run,
            facts=facts,
            work=work,
            line_logs=logs,
            rate=rate,
        )
    )
    diagnosis = diagnose(case)
    doubts = timeline.validity
    device_kind = _device_kind(timeline)
    # Nothing can be diagnosed if a run only loads data, or if its devices cannot be read (as a warning then states).
    if _input_only(run) or device_kind == "unread":
        diagnosis = msgspec.structs.replace(diagnosis, findings=(), next=(), explained=(), validity=())
    if _input_only(run):  # nothing runs on the device
        doubts = tuple(doubt for doubt in doubts if doubt.code != "missing-device-activity")
    findings = diagnosis.findings
    collectives = summarise_collectives(timeline)
    if facts is not None and not _input_only(run):
        from gpudiag.analysis.diagnosis.hardware import examine_facts  # noqa: PLC0415 # not needed for traces alone

        collectives = beside_probe(collectives, facts, transport_of(run))
        if any(finding.code == "communication-bound" for finding in findings):
            from gpudiag.app.other_strategies import beside_other_strategies  # noqa: PLC0415 # rarely needed

            findings = beside_other_strategies(findings, run, facts)
        # Findings about the machine have no time per step, so they come last.
        findings = (*findings, *examine_facts(facts))
    analysis = Analysis(
        framework=timeline.framework,
        workload=workload_of(timeline.traces),
        device_kind=device_kind,
        world_size=timeline.world_size,
        ranks_present=timeline.ranks_present,
        steps=_steps(summarise_steps(timeline, attribution), run, case, rejected=diagnosis.rejected),
        devices=summarise_devices(timeline, attribution),
        clocks=summarise_clocks(timeline),
        waits=summarise_waits(timeline, attribution),
        findings=findings,
        next=diagnosis.next,
        explained=diagnosis.explained,
        validity=(*doubts, *diagnosis.validity, *unread, *_missing_lines(logs), *unused, *recording_doubts(run)),
        collectives=collectives,
        kernels=summarise_kernels(detailed),
        operators=summarise_operators(detailed),
        portions=summarise_portions(detailed, detailed_attribution),
        modules=_modules(detailed, run),
        source=_source(paths, run),
        timed=unprofiled_ranks(run),
        recording=recording_cost(run),
        compute=rate,
        compute_classes=_compute_classes(detailed, detailed_attribution, work),
        lines=case.lines.table() if case.lines is not None else (),
        tries=_tried_changes(paths, diagnosis.findings),
        inference=find_inference(paths),
        parallelism=_parallelism(case, timeline, attribution, findings),
        # Empty if all ranks are simulated.
        simulated_ranks=tuple(sorted({track.rank for track in detailed.tracks})) if detailed.left_out else (),
    )
    return AnalysedTraces(analysis, timeline, attribution, case.lines)


def _modules(timeline: Timeline, run: RunRecord | None) -> Modules | None:
    """Return the times of the modules, or why they are unknown; None for bare traces without modules."""
    if run is None and all(trace.modules is None for trace in timeline.traces):
        return None
    from gpudiag.analysis.attribution.modules import summarise_modules  # noqa: PLC0415  # only for marked modules

    return summarise_modules(timeline, run)


def _compute_classes(timeline: Timeline, attribution: Attribution, work: ComputeWork) -> tuple[ComputeClass, ...]:
    """Return the classes of kernels; with the rates that they reach if shapes were recorded."""
    classes = compute_classes(timeline, attribution, work)
    if all(trace.operator_work is None for trace in timeline.traces):
        return classes
    from gpudiag.analysis.compute.reached import with_reached  # noqa: PLC0415  # only if shapes were recorded

    return with_reached(classes, timeline, attribution, work)


def _parallelism(
    case: Case, timeline: Timeline, attribution: Attribution, findings: Sequence[Finding]
) -> Parallelism | None:
    """Return the grid, communication and imbalance of a job; None if the job divides only its batches.

    Bubble and imbalance are simulated, so they cover the ranks of `case`. `timeline` and `attribution` have all ranks;
    only the steps of `case` count, which has no outlier steps.
    """
    if not case.timeline.divides_work:
        return None
    from gpudiag.analysis.diagnosis.even_step import imbalance_of  # noqa: PLC0415  # most jobs divide only batches
    from gpudiag.analysis.diagnosis.rules.pipeline_bubble import bubble_of  # noqa: PLC0415  # see above
    from gpudiag.analysis.parallelism.summary import summarise_parallelism  # noqa: PLC0415  # see above

    steps = np.array(sorted({step for track in case.tracks for step in track.window_steps.tolist()}), np.int64)
    parallelism = summarise_parallelism(*only_steps(timeline, attribution, steps), sample=case.timeline)
    if parallelism is None or case.what_if is None:
        return parallelism
    bubble = bubble_of(case, case.what_if)
    if parallelism.pipeline is not None and bubble is not None:
        pipeline = msgspec.structs.replace(parallelism.pipeline, bubble_ms=bubble.ms, bubble_percent=bubble.percent)
        parallelism = msgspec.structs.replace(parallelism, pipeline=pipeline)
    return msgspec.structs.replace(parallelism, imbalance=imbalance_of(case.what_if, findings))


def _line_logs(paths: Sequence[Path | str]) -> LineLogs | None:
    """Return the source-line logs of a run directory; None if the directory has none."""
    directory = find_run_directory(paths)
    if directory is None or not (directory / LINES_DIR).is_dir():
        return None
    from gpudiag.model.source_lines.log import find_line_logs  # noqa: PLC0415  # not needed for bare traces

    return find_line_logs(paths)


def _missing_lines(logs: LineLogs | None) -> tuple[Validity, ...]:
    """Return a warning for each reason why source lines or their texts are missing."""
    messages: list[str] = []
    if logs is not None and logs.missing:
        effect = "some findings may name no line" if logs.has_lines else "findings name no lines"
        messages.append(f"{effect} of the source: {one_line(logs.missing)[:_MAX_REASON]}")
    if logs is not None and logs.without_text:
        messages.append(
            f"lines of the source are named without their text: {one_line(logs.without_text)[:_MAX_REASON]}"
        )
    return tuple(Validity(code="no-source-lines", message=message) for message in messages)


def _device_kind(timeline: Timeline) -> DeviceKind:
    """Return the kind of device that computes; `unread` if the traces have devices that gpudiag cannot read."""
    if any(not track.is_cpu for track in timeline.tracks):
        return "gpu"
    if any(trace.unread_devices for trace in timeline.traces):
        return "unread"
    return "cpu" if timeline.tracks else "gpu"  # without any work, assume the usual kind


def _facts_of_run(paths: Sequence[Path | str]) -> tuple[Facts | None, tuple[Validity, ...]]:
    """Return the machine's facts in the run directory; None and a warning if they cannot be read."""
    path = find_facts_file(paths)
    if path is None:
        return None, ()
    from gpudiag.machine.facts_file import load_facts  # noqa: PLC0415 # not needed for traces alone

    try:
        return load_facts(path), ()
    except UnreadableInputError as error:
        return None, (Validity(code="repaired-input", message=f"the machine's facts are not used: {error}"),)


def _tried_changes(paths: Sequence[Path | str], findings: Sequence[Finding]) -> tuple[TriedChange, ...]:
    """Return the results of `--try` in a run directory."""
    directory = find_run_directory(paths)
    if directory is None or not (directory / TRIES_FILE).is_file():
        return ()
    from gpudiag.analysis.diagnosis.kernels.tried import tried_changes  # noqa: PLC0415  # not needed for bare traces
    from gpudiag.model.benchmarks.tries import TRIES_SCHEMA, MeasuredTries  # noqa: PLC0415  # not needed for bare traces

    measured = readable_json(directory / TRIES_FILE, MeasuredTries, TRIES_SCHEMA)
    return () if measured is None else tried_changes(measured, findings)


def _compute_rate(run: RunRecord | None) -> ComputeRate | None:
    if run is None:
        return None
    from gpudiag.analysis.attribution.compute_rate import compute_rate  # noqa: PLC0415  # not needed for bare traces

    return compute_rate(run)


def _steps(steps: Steps, run: RunRecord | None, case: Case, *, rejected: bool) -> Steps:
    """Add the unprofiled and simulated step times to the recorded step times, or the reasons why they are unknown.

    If `rejected`, the diagnosis did not accept the simulation, so the simulated step time is unknown.
    """
    what_if = None if rejected else case.what_if
    corrected_ms = None if what_if is None else what_if.estimated_ms
    unprofiled_ms = None
    times_ms: tuple[float, ...] = ()
    reasons = {}
    if corrected_ms is None:
        reasons["corrected_mean_ms"] = "it needs two or more marked steps with kernel launches"
    if run is None:
        how = "`gpudiag profile` times steps without the profiler too"
        how = "time the same loop without the profiler" if case.timeline.framework == "jax" else how
        reasons["unprofiled_mean_ms"] = f"only traces were given; {how}"
    else:
        unprofiled = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
        if unprofiled:
            # The step time of the job is that of its slowest rank.
            slowest = max(unprofiled, key=lambda times: times.mean_ms)
            unprofiled_ms, times_ms = slowest.mean_ms, slowest.step_ms
        elif run.steps_found is not None and run.steps_found.by == "time":
            reasons["unprofiled_mean_ms"] = "no optimizer step was seen, so no step was timed"
        else:
            reasons["unprofiled_mean_ms"] = "the run ended before its unprofiled steps were complete"
    return Steps(
        analysed=steps.analysed,
        mean_ms=steps.mean_ms,
        median_ms=steps.median_ms,
        unprofiled_mean_ms=unprofiled_ms,
        corrected_mean_ms=corrected_ms,
        corrected_interval_ms=None if what_if is None else interval_ms(Significance(case, what_if)),
        reasons=reasons,
        unprofiled_times_ms=times_ms,
        covered_percent=100 * case.timeline.covered,
        unit=case.timeline.unit,
    )


def _input_only(run: RunRecord | None) -> bool:
    """Return whether the run only fetched batches (`--model none`)."""
    return run is not None and run.options.get("model") == "none"


def _source(paths: Sequence[Path | str], run: RunRecord | None) -> Source:
    """Return the origin of the analysis: paths, workload, options, throughput and software."""
    names = tuple(str(path) for path in paths)
    if run is None:
        return Source(paths=names)
    means = [rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None]
    samples = None
    if means and run.batch_size_per_device:
        # All ranks take as long as the slowest.
        samples = run.batch_size_per_device * run.world_size * 1000 / max(means)
    return Source(
        paths=names,
        workload=run.workload,
        strategy=run.strategy,
        batch_size_per_device=run.batch_size_per_device,
        samples_per_s=samples,
        input_only=_input_only(run),
        software=run.software,
        hosts=tuple(dict.fromkeys(rank.host for rank in run.ranks)),
    )
