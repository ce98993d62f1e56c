"""Draw pipeline-parallel jobs at random, and judge the diagnosis of their traces.

The true cost of a fault comes from simulating the job without the fault. The true cost of the bubble comes from
simulating the job with twice as many microbatches of half the size.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.model.analysis import Finding
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job
from tests.analysis.diagnosis.rule_examples.pipelines import pipeline

#: No fault, a slow stage, a slow rank, or a replica with long sequences.
FAULTS = ("none", "stage", "compute", "sequence")
#: `interleaved` needs three stages or more.
SCHEDULES = ("1f1b", "gpipe", "interleaved")
#: A fault that costs a smaller share of the step need not be found.
_WORTH = 0.07
#: Largest error of a right amount: a share of the true amount, or of the step.
_CLOSE, _CLOSE_TO_STEP = 0.15, 0.02
#: Largest share of the step that a false straggler may promise as savings.
_FALSE = 0.05


class TracedPipeline(msgspec.Struct, frozen=True):
    """A job with at most one fault.

    Attributes:
        fault: one of `FAULTS`.
        ranks: the ranks that the finding must name.
        settings: arguments of `pipeline`.
        without: the arguments that differ without the fault.
    """

    fault: str
    ranks: tuple[int, ...]
    settings: dict[str, Any]
    without: dict[str, Any]


def draw(seed: int) -> TracedPipeline:
    """Return the job of a seed."""
    rng = random.Random(seed)  # noqa: S311  # reproducible jobs, no secrets
    stages, data = rng.randint(2, 8), rng.randint(1, 3)
    # With one replica, a slow rank is a slow stage, and no other replica has shorter sequences.
    fault = rng.choice(FAULTS if data > 1 else FAULTS[:2])
    settings: dict[str, Any] = {
        "stages": stages,
        "data": data,
        "microbatches": rng.choice([stages, 2 * stages, 4 * stages]),
        "forward_ms": rng.uniform(2.0, 8.0),
        "schedule": rng.choice(SCHEDULES if stages > 2 else SCHEDULES[:2]),
        "scatter": rng.choice([0.0, 0.01]),
        "seed": seed,
    }
    times = rng.uniform(1.2, 1.8)  # factor by which the fault lengthens computations
    everyone = range(stages * data)
    if fault == "stage":
        stage = rng.randrange(stages)
        ranks = tuple(rank for rank in everyone if rank // data == stage)
        # Without the fault, the same work is spread evenly over all stages.
        mean = 1 + (times - 1) / stages
        without: dict[str, Any] = {"pace": dict.fromkeys(everyone, mean)}
        return TracedPipeline(fault, ranks, settings | {"pace": dict.fromkeys(ranks, times)}, without)
    if fault == "compute":
        ranks = (rng.choice(everyone),)
        return TracedPipeline(fault, ranks, settings | {"pace": {ranks[0]: times}}, {"pace": {}})
    if fault == "sequence":
        replica = rng.randrange(data)
        ranks = tuple(rank for rank in everyone if rank % data == replica)
        return TracedPipeline(fault, ranks, settings | {"lengths": {replica: times}}, {"lengths": {}})
    return TracedPipeline(fault, (), settings, {})


class Judged(msgspec.Struct, frozen=True):
    """A job with the true costs of its fault and its bubble in ms, the findings, and the errors in the findings."""

    job: TracedPipeline
    step_ms: float
    cost_ms: float
    bubble_ms: float
    findings: tuple[Finding, ...]
    wrong: tuple[str, ...]


def judged(job: TracedPipeline) -> Judged:
    """Simulate a job, diagnose its traces, and compare the findings with the true costs."""
    whole = pipeline(**job.settings)
    step_ms = _mean_ms(whole)
    cost_ms = step_ms - _mean_ms(pipeline(**(job.settings | job.without)))
    half = {"microbatches": 2 * job.settings["microbatches"], "forward_ms": job.settings["forward_ms"] / 2}
    bubble_ms = step_ms - _mean_ms(pipeline(**(job.settings | half)))
    findings = diagnose(case_of(whole.traces())).findings
    return Judged(job, step_ms, cost_ms, bubble_ms, findings, tuple(_wrong(job, step_ms, cost_ms, bubble_ms, findings)))


def _wrong(
    job: TracedPipeline, step_ms: float, cost_ms: float, bubble_ms: float, findings: tuple[Finding, ...]
) -> list[str]:
    """Describe the errors in findings: a missing, inexact or false straggler, a wrong order, a wrong bubble."""
    wrong = []
    stragglers = [finding for finding in findings if finding.code == "straggler"]
    if job.fault != "none" and cost_ms >= _WORTH * step_ms:
        right = [finding for finding in stragglers if (finding.cause, finding.ranks) == (job.fault, job.ranks)]
        if not right:
            wrong.append(f"no straggler {job.fault} on {job.ranks}")
        elif not _is_close(right[0].recoverable_ms_per_step, cost_ms, step_ms):
            wrong.append(f"{right[0].recoverable_ms_per_step:.1f} instead of {cost_ms:.1f} ms")
        if cost_ms > bubble_ms and right and findings[0] is not right[0]:
            wrong.append(f"{findings[0].code} {findings[0].cause} comes first")
    else:
        most_ms = _FALSE * step_ms + max(cost_ms, 0.0)
        false = [finding for finding in stragglers if (finding.recoverable_ms_per_step or 0.0) > most_ms]
        wrong += [f"false straggler {finding.cause} of {finding.recoverable_ms_per_step:.1f} ms" for finding in false]
    if job.fault == "none" and bubble_ms >= _WORTH * step_ms:
        bubbles = [finding for finding in findings if finding.code == "pipeline-bubble"]
        saved = bubbles[0].recoverable_ms_per_step if bubbles else None
        if not _is_close(saved, bubble_ms, step_ms):
            wrong.append(f"bubble of {saved} instead of {bubble_ms:.1f} ms")
    return wrong


def _is_close(found: float | None, truth: float, step_ms: float) -> bool:
    return found is not None and abs(found - truth) <= max(_CLOSE * truth, _CLOSE_TO_STEP * step_ms)


def _mean_ms(job: Job) -> float:
    times = job.step_times_ms()
    return sum(times) / len(times)
