"""Measure strategies side by side: from what is asked to the verdict."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from gpudiag import pipeline, preparation
from gpudiag.errors import UsageError
from gpudiag.model.contest import CONTEST_SCHEMA, PLAN_FILE, Contest, ContestPlan, Entry, contest_file
from gpudiag.model.recommendation import RECOMMENDATION_FILE
from gpudiag.prediction.curves import curves_of
from gpudiag.recommendation.candidates import candidates, check_possible, why_not
from gpudiag.recommendation.forecast import expected_scaling
from gpudiag.recommendation.verdict import judge
from gpudiag.run_files import read_json, write_json
from gpudiag.workloads.registry import is_own, training_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.facts import Facts
    from gpudiag.model.job import MemoryFormat, Precision
    from gpudiag.model.prediction import Candidate, Compress
    from gpudiag.model.recommendation import Expected, Recommendation
    from gpudiag.preparation import Prepared
    from gpudiag.probing.runner import Progress as ProbeProgress
    from gpudiag.worker.progress import Progress

#: What the launcher starts in each training process.
_JOB = "gpudiag.workloads.contest.job:run"
#: Seconds until training processes have started, and until they have ended.
_LAUNCH_S = 12.0
#: Seconds for starting processes and warming up, for measuring transports and for each finalist, by experience.
_START_S, _FINALIST_S = 30.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks `gpudiag recommend` for.

    Attributes:
        workload: a built-in name.
        devices: how many; None for all GPUs, or two CPU processes.
        exact: leave out strategies that round gradients.
        compress: to what the others round them.
        every: measure all strategies, not the most promising ones only.
        only: labels of the strategies to consider; empty for all.
        budget_s: how long all of it may take, about.
        output: run directory.
        probe: as for `gpudiag profile`.
    """

    workload: str
    devices: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    memory_format: str | None = None
    p2p: bool = True
    exact: bool = False
    compress: Compress = "bf16"
    every: bool = False
    only: tuple[str, ...] = ()
    budget_s: float = 180.0
    output: Path | None = None
    python: str = sys.executable
    timeout_s: float = 120.0
    probe: bool | None = None
    command: tuple[str, ...] = ()


def recommend(
    asked: Asked,
    observer: Callable[[Progress], None],
    say: Callable[[str], None],
    on_probe: Callable[[ProbeProgress], None] | None = None,
) -> Recommendation:
    """Predict, measure the best few by turns, and judge. What was measured is in the run directory.

    Args:
        asked: what to do.
        observer: called with each message of each training process.
        say: called with each thing that is done, in words.
        on_probe: called with what the probes do.

    Raises:
        UsageError: a name that does not exist, or a function of the user's own.
        HardwareMissingError, FrameworkMissingError, WorkerFailedError: as `gpudiag profile`.
    """
    began = time.monotonic()
    if is_own(asked.workload):
        raise UsageError(
            f"gpudiag cannot change how {asked.workload} exchanges gradients",
            "Name a built-in workload like it, or give --gradients with its gradient sizes and --predict-only.",
        )
    entry = training_entry(asked.workload, "gpudiag recommend")
    if asked.memory_format == "nhwc" and not entry.images:
        raise UsageError(f"{asked.workload} has no images, so --memory-format does not apply", "Leave it out.")
    chosen = considered(asked)
    prepared = _prepared(asked)
    devices = prepared.plan.processes
    refused = why_not(prepared.facts, chosen, devices)
    check_possible(chosen, refused, devices)
    prepared = preparation.measure_links(prepared, asked.probe, on_probe)
    finalists = 0 if asked.every else 3
    number = len(chosen) - len(refused) if asked.every else min(5, len(chosen) - len(refused))
    left_s = asked.budget_s - (time.monotonic() - began) - _START_S - number * _FINALIST_S
    plan = ContestPlan(
        device=prepared.plan.job.device,
        devices=devices,
        p2p=asked.p2p,
        entries=(
            Entry(
                workload=asked.workload,
                batch_size=asked.batch_size,
                precision=cast("Precision | None", asked.precision),
                memory_format=cast("MemoryFormat", asked.memory_format or "nchw"),
                candidates=chosen,
                cannot=refused,
                finalists=finalists,
                seconds=max(5.0, min(25.0, left_s)),
            ),
        ),
        # Cores that are shared need more repetition than GPUs that are ours alone.
        block_ms=300.0 if prepared.plan.job.device == "cuda" else 600.0,
        limit_s=max(15.0, asked.budget_s - (time.monotonic() - began) - _LAUNCH_S),
    )
    estimate = time.monotonic() - began + _START_S + number * _FINALIST_S + plan.entries[0].seconds
    say(f"{asked.workload} on {devices} devices: {number} of {len(chosen)} strategies by turns, about {estimate:.0f} s")
    run_dir = prepared.plan.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / PLAN_FILE, plan)
    pipeline.train(prepared, observer)
    contest = read_json(run_dir / contest_file(asked.workload), Contest, CONTEST_SCHEMA)
    found = judge(contest, seconds=round(time.monotonic() - began, 1))
    found = msgspec.structs.replace(found, scaling=_scaling(prepared.facts, contest, found.recommended))
    write_json(run_dir / RECOMMENDATION_FILE, found)
    return found


def considered(asked: Asked) -> tuple[Candidate, ...]:
    """The candidates that the request leaves. Raises UsageError where it names one that there is not."""
    every = candidates(compress=None if asked.exact else asked.compress)
    if not asked.only:
        return every
    known = {one.label: one for one in every}
    unknown = [label for label in asked.only if label not in known]
    if unknown:
        raise UsageError(f"there is no strategy '{unknown[0]}' to recommend", f"There are: {', '.join(known)}.")
    return tuple(one for one in every if one.label in asked.only or one.label == "independent")


def _prepared(asked: Asked) -> Prepared:
    name = time.strftime("%Y%m%d-%H%M%S")
    return preparation.prepare(
        preparation.Request(
            workload=_JOB,
            devices=asked.devices,
            p2p=asked.p2p,
            run_dir=asked.output or Path("gpudiag-runs") / f"{name}-{asked.workload}-recommend",
            python=asked.python,
            timeout_s=asked.timeout_s,
            command=asked.command,
        )
    )


def _scaling(facts: Facts, contest: Contest, recommended: str) -> tuple[Expected, ...]:
    by_label = {one.candidate.label: one.candidate for one in contest.predictions}
    return expected_scaling(
        facts,
        contest.gradients,
        by_label[recommended],
        contest.devices,
        p2p=contest.p2p,
        curves=curves_of(contest.transports),
    )
