"""input-bound: devices wait for the input pipeline."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import before_first_operator
from gpudiag.analysis.diagnosis.rules.rule import (
    TF_DATA,
    Advice,
    CannotTell,
    Proposal,
    advice_for,
    jax,
    notable,
    pytorch,
    severity_of,
    unknown,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import without_common_input
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import exposed_input_by_rank, input_ms_above_most, loader_steps_ms
from gpudiag.model.analysis import Finding
from gpudiag.model.run import RunRecord
from gpudiag.statistics import mean_of

_ADVICE: Advice = (
    TF_DATA,
    pytorch(
        "Let workers prepare batches ahead: DataLoader(num_workers=4 or more, prefetch_factor=4, "
        "persistent_workers=True).",
    ),
    jax(
        "Prepare batches ahead in worker processes or threads, for example with grain (worker_count), and keep two on "
        "the device: call jax.device_put for the next batch before the step of this one. It returns at once, but a "
        "step waits until its batch is copied."
    ),
    unknown("Prepare batches ahead, in separate threads or processes."),
    "Time the dataset by itself; cache decoded samples.",
)
_ON_GPUS: Advice = (
    "Move augmentation to the GPU.",
    pytorch("Copy the next batch early: pin_memory=True and .to(device, non_blocking=True)."),
)
_MARK_IT: Advice = (
    pytorch(
        "Mark the loader to be sure: for batch in prof.steps(loader), or `with gpudiag.range('input'):` around the "
        "fetch."
    ),
    jax("Mark the loader to be sure: `with jax.profiler.TraceAnnotation('gpudiag.input'):` around the fetch."),
)
#: Advice if unmarked time before a step's first operator may have another cause.
PERHAPS_NO_LOADING = (
    "The thread recorded nothing there. If the loop does not fetch its batch there, look for logging, saving, "
    "sleeping, or waiting for a lock or a file."
)
AFTER_THE_UPDATE = (
    "Each step was assumed to end with its update, so that this time includes work after it (logging, checkpoints, "
    "metrics). Do such work every N steps, or in a separate thread."
)


class InputBound:
    """The devices are idle because the training loop waits for its next batch, on all ranks alike.

    The wait is known if the trace marks it (a DataLoader, `gpudiag.range("input")`). Untraced host time at the start of
    a step is usually an unmarked loader, and counts with lower confidence. A rank that waits alone is a straggler.

    Profiling slows the job, so that the loader may keep up although it is too slow without the profiler. If the devices
    waited much longer in the unprofiled steps, that wait is reported instead. The finding then also names ranks that
    did not wait but whose DataLoader workers cannot keep up with the shorter step after the fix.
    """

    code: ClassVar[str] = "input-bound"
    title: ClassVar[str] = "The devices wait for data loading"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step in which no rank waits for data."""
        host = what_if.graph.host
        if float(host.input.sum() + host.before_first_op.sum()) == 0:
            return
        yield Proposal(edit=without_common_input, describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        host, steps = what_if.graph.host, what_if.graph.steps
        marked = float(host.input.sum()) / steps / len(what_if.graph.ranks) / 1e6
        unmarked = float(host.before_first_op.sum()) / steps / len(what_if.graph.ranks) / 1e6
        known = marked >= unmarked
        advice = _advice(case) if known else (*_advice(case), *_MARK_IT, PERHAPS_NO_LOADING)
        if not known and ends_with_the_update(case):
            advice = (AFTER_THE_UPDATE, *advice)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="loader" if known else "unmarked time at the start of the step",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high" if known else "medium",
            title=f"{'data loading' if known else unmarked_words(case)} adds {gain:.1f} ms per step",
            place="" if known else before_first_operator(case, case.timeline.ranks_present),
            evidence={"measured_in_loader_ms": marked, "assumed_data_loading_ms": unmarked},
            advice=advice_for(case.timeline.framework, advice),
        )


def ends_with_the_update(case: Case) -> bool:
    """Return whether steps were found by the optimizer's calls, so that work after an update is in the next step."""
    found = None if case.run is None else case.run.steps_found
    return found is not None and found.by == "optimizer"


def unmarked_words(case: Case) -> str:
    """Describe the untraced time before a step's first operator."""
    if ends_with_the_update(case):
        return "unmarked time after the update (logging, saving, or loading the next batch)"
    return "unmarked time at the start of the step (usually data loading)"


def with_unprofiled_input(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Report the input wait of unprofiled steps, unless recorded steps show at least half of this wait.

    The wait is also reported if recorded steps lack much of the fetching (`input_not_recorded_ms`). The new finding
    replaces the finding from recorded steps, and stalls that are the same wait. The findings are returned unchanged if
    the unprofiled wait is unknown, too short, or perhaps due to chance.
    """
    step_ms = case.unprofiled_ms
    waits = exposed_input_by_rank(case.run)
    if not waits or not step_ms:
        return list(findings)
    saved, rank = _common_wait(case, waits)  # the savings are the wait of this rank
    saved = min(saved, step_ms)  # waits in a damaged record may exceed its steps
    percent = 100 * saved / step_ms
    least = saved - mean_of(waits[rank], as_measured=True).half_width  # lower end of the 95 % interval
    recorded = next((finding for finding in findings if finding.code == InputBound.code), None)
    recorded_ms = (recorded.recoverable_ms_per_step or 0.0) if recorded is not None else 0.0
    known = recorded_ms >= saved / 2 and (case.what_if is None or case.what_if.input_not_recorded_ms == 0)
    if percent < WARNING_PERCENT or not notable(least, step_ms) or known:
        return list(findings)
    means = {rank: statistics.fmean(steps) for rank, steps in waits.items()}
    unprofiled = Finding(
        code=InputBound.code,
        severity=severity_of(percent),
        ranks=_waiting(case.run, means, saved, step_ms),
        cause="loader",
        recoverable_ms_per_step=saved,
        recoverable_percent=percent,
        confidence="high",
        title=f"data loading adds {saved:.1f} ms per step without profiling",
        evidence={
            "timed_steps": len(waits[rank]),
            "input_wait_ms_without_profiling": saved,
            "input_wait_ms_while_profiling": recorded_ms,
            "step_ms_now": step_ms,
            "step_ms_if_fixed": step_ms - saved,
        },
        advice=advice_for(case.timeline.framework, _advice(case)),
    )
    remaining = [finding for finding in findings if finding is not recorded and not _is_same_wait(finding, saved)]
    return sorted([unprofiled, *remaining], key=lambda finding: -(finding.recoverable_ms_per_step or 0.0))


def _common_wait(case: Case, waits: Mapping[int, Sequence[float]]) -> tuple[float, int]:
    """Return the wait common to all ranks, as (ms per step, the rank from which it is computed).

    This wait is the maximum over ranks of (wait - the rank's excess), or the lower median of the waits if excesses are
    unknown.
    """
    means = sorted((statistics.fmean(steps), rank) for rank, steps in waits.items())
    excess_ms = input_ms_above_most(case.run)
    if excess_ms is not None:
        return max((waited - excess_ms[rank], rank) for waited, rank in means)
    return means[(len(means) - 1) // 2]


def _waiting(run: RunRecord | None, waits: Mapping[int, float], saved: float, step_ms: float) -> tuple[int, ...]:
    """Return the ranks that wait for at least half of the savings, or whose workers are too slow to save half of them.

    `waits` is rank → mean wait, and `saved` the savings of a step of `step_ms`, all in ms per unprofiled step.
    """
    slow = {rank for rank, pace in loader_steps_ms(run).items() if pace > step_ms - saved / 2}
    return tuple(sorted(rank for rank, waited in waits.items() if waited >= saved / 2 or rank in slow))


def _advice(case: Case) -> Advice:
    return (*_ADVICE, *_ON_GPUS) if any(not track.is_cpu for track in case.tracks) else _ADVICE


def _is_same_wait(finding: Finding, saved: float) -> bool:
    """Return whether a stall of about `saved` ms or less is the same wait: an unmarked loader looks like a stall."""
    return finding.code == "host-stall" and (finding.recoverable_ms_per_step or 0.0) <= (1 + SAME_AMOUNT) * saved
