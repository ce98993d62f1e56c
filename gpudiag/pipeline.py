"""The only module that knows every stage: traces in, analysis out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.model.analysis import Analysis, Source, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.model.run import RunRecord
    from gpudiag.readers import ReadLimits


def analyze(
    paths: Sequence[Path | str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        world_size: number of ranks, where the traces do not say.
        limits: bounds on what is read; the reader's own when left out.

    Raises:
        UnreadableInputError: a file is missing, broken, too large or no trace, or nothing in it can be analysed.
    """
    from gpudiag.attribution import attribute
    from gpudiag.attribution.summary import (
        summarise_collectives,
        summarise_devices,
        summarise_kernels,
        summarise_steps,
        summarise_waits,
    )
    from gpudiag.diagnosis import Case, diagnose
    from gpudiag.readers import read_traces
    from gpudiag.run_files import find_run_record
    from gpudiag.timeline import build_timeline

    traces = (
        read_traces(paths, world_size=world_size)
        if limits is None
        else read_traces(paths, world_size=world_size, limits=limits)
    )
    timeline = build_timeline(traces, world_size)
    attribution = attribute(timeline)
    run = find_run_record(paths)
    findings, doubts = diagnose(Case(timeline=timeline, attribution=attribution, run=run))
    return Analysis(
        framework=timeline.framework,
        world_size=timeline.world_size,
        ranks_present=timeline.ranks_present,
        steps=_steps(summarise_steps(attribution), run),
        devices=summarise_devices(timeline, attribution),
        waits=summarise_waits(timeline, attribution),
        findings=findings,
        validity=(*timeline.validity, *doubts),
        collectives=summarise_collectives(timeline),
        kernels=summarise_kernels(timeline),
        source=_source(paths, run),
    )


def _steps(steps: Steps, run: RunRecord | None) -> Steps:
    unprofiled = None
    reasons = {"corrected_mean_ms": "the profiler's cost was not taken out"}
    if run is None:
        reasons["unprofiled_mean_ms"] = (
            "only traces were given; `gpudiag profile` times the same steps unprofiled first"
        )
    else:
        means = [rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None]
        if means:
            unprofiled = max(means)
        else:
            reasons["unprofiled_mean_ms"] = "the run ended before its timed steps were done"
    return Steps(
        analysed=steps.analysed,
        mean_ms=steps.mean_ms,
        median_ms=steps.median_ms,
        unprofiled_mean_ms=unprofiled,
        reasons=reasons,
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
