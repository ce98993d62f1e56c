"""Analyse the traces of a random job as `gpudiag analyze` does."""

from __future__ import annotations

import msgspec

from gpudiag.analysis.attribution.summary import summarise_devices, summarise_steps, summarise_waits
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.model.analysis import Analysis
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.random_jobs.recipe import Recipe
from tests.analysis.diagnosis.records import run_of


def recorded(recipe: Recipe) -> Case:
    """Return the case of the recorded job, with its unprofiled steps if the recipe has any."""
    case = case_of(recipe.job().traces())
    return run_of(case, recipe.job(recorded=False).step_times_ms()) if recipe.timed else case


def analysed(case: Case) -> Analysis:
    """Diagnose a case; return an analysis with the fields that `judge` and `law` read."""
    diagnosis = diagnose(case)
    timeline, attribution = case.timeline, case.attribution
    steps = summarise_steps(timeline, attribution)
    what_if = case.what_if
    return Analysis(
        framework=timeline.framework,
        world_size=timeline.world_size,
        ranks_present=timeline.ranks_present,
        steps=msgspec.structs.replace(
            steps,
            unprofiled_mean_ms=case.unprofiled_ms,
            corrected_mean_ms=None if what_if is None else what_if.corrected_ms,
        ),
        devices=summarise_devices(timeline, attribution),
        waits=summarise_waits(timeline, attribution),
        findings=diagnosis.findings,
        next=diagnosis.next,
        explained=diagnosis.explained,
        validity=(*timeline.validity, *diagnosis.validity),
    )
