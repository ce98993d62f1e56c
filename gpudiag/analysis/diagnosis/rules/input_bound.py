"""input-bound: devices wait for the input pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.examples import DDP, Job, fetch, kernels, silence
from gpudiag.analysis.diagnosis.replay.simulate import Costs
from gpudiag.analysis.diagnosis.replay.what_if import PARTS, WhatIf
from gpudiag.analysis.diagnosis.rules.advice import TF_DATA, advice_for, pytorch
from gpudiag.analysis.diagnosis.rules.rule import CannotTell, Examples, Proposal, severity_of
from gpudiag.model.analysis import Finding

_ADVICE = (
    TF_DATA,
    pytorch(
        "Let workers prepare batches ahead: DataLoader(num_workers=4 or more, prefetch_factor=4, "
        "persistent_workers=True).",
    ),
    "Profile one batch of the dataset alone; cache decoded samples; move augmentation to the GPU.",
    pytorch("Copy ahead: pin_memory=True and .to(device, non_blocking=True) for the batch after this one."),
)
_MARK_IT = pytorch("Mark the loader to be sure: for batch in prof.steps(loader), or gpudiag.range('gpudiag.input').")


class InputBound:
    """The devices stand idle because the training loop waits for its next batch, on all ranks alike.

    Waiting is known where it is marked (a DataLoader, `gpudiag.input`). Time at the start of a step in which the
    training thread recorded nothing is usually a loader without marks, and counts at lower confidence. One rank that
    waits alone is a straggler, not this.
    """

    code: ClassVar[str] = "input-bound"
    order: ClassVar[int] = 2
    title: ClassVar[str] = "The devices wait for the input pipeline"

    FIRES: ClassVar[Examples] = (
        ("one GPU waits for its DataLoader", Job(ranks=1, step=(fetch(30), kernels(20)))),
        ("the loaders of all ranks are late", Job(ranks=4, step=(fetch(30), *DDP))),
        ("the same, but nobody marked the loaders", Job(ranks=4, step=(silence(30), *DDP))),
    )
    SILENT: ClassVar[Examples] = (
        ("the next batch is there before it is wanted", Job(ranks=4, step=(fetch(5), *DDP))),
        ("the loader of one rank alone is late", Job(ranks=4, step=DDP, extra={2: (fetch(30),)})),
    )
    ABSTAINS: ClassVar[Examples] = ()

    def examine(self, case: Case) -> Iterator[Proposal | CannotTell]:
        """One proposal: no rank waits for data."""
        what_if = case.what_if
        if what_if is None:
            return
        host = what_if.graph.host
        if float(host.input.sum() + host.silent.sum()) == 0:
            return
        yield Proposal(edit=partial(_common, what_if), describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        host, steps = what_if.graph.host, max(what_if.graph.steps, 1)
        marked = float(host.input.sum()) / steps / len(what_if.graph.ranks) / 1e6
        silent = float(host.silent.sum()) / steps / len(what_if.graph.ranks) / 1e6
        known = marked >= silent
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="loader" if known else "unmarked time at the start of the step",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high" if known else "medium",
            title=f"waiting for input costs {gain:.1f} ms of each step",
            evidence={"waiting_ms_marked": marked, "waiting_ms_unmarked": silent},
            advice=advice_for(case.timeline.framework, _ADVICE if known else (*_ADVICE, _MARK_IT)),
        )


def _common(what_if: WhatIf, costs: Costs) -> Costs:
    """Without what all ranks wait: from ranks that are level, as one that waits alone is a straggler."""
    return replace(costs, waiting=costs.waiting - what_if.levelled(costs, PARTS).waiting)
