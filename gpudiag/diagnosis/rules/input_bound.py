"""input-bound: devices wait for the input pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.examples import DDP, Job, fetch, kernels, silence
from gpudiag.diagnosis.replay.what_if import PARTS
from gpudiag.diagnosis.rules.rule import CannotTell, Proposal, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case
    from gpudiag.diagnosis.replay.simulate import Costs
    from gpudiag.diagnosis.replay.what_if import WhatIf
    from gpudiag.diagnosis.rules.rule import Examples


class InputBound:
    """The devices stand idle because the training loop waits for its next batch, on all ranks alike.

    Waiting is known where it is marked (a DataLoader, `gpudiag.input`). Time at the start of a step in which the
    training thread recorded nothing is usually a loader without marks, and counts at lower confidence. One rank that
    waits alone is a straggler, not this.
    """

    code: ClassVar[str] = "input-bound"
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
        advice = [
            (
                "Let workers prepare batches ahead: DataLoader(num_workers=4 or more, prefetch_factor=4, "
                "persistent_workers=True)."
            ),
            "Profile one batch of the dataset alone; cache decoded samples; move augmentation to the GPU.",
            "Copy ahead: pin_memory=True and .to(device, non_blocking=True) for the batch after this one.",
        ]
        if not known:
            advice.append(
                "Mark the loader to be sure: for batch in prof.steps(loader), or gpudiag.range('gpudiag.input')."
            )
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
            advice=tuple(advice),
        )


def _common(what_if: WhatIf, costs: Costs) -> Costs:
    """Without what all ranks wait: from ranks that are level, as one that waits alone is a straggler."""
    return replace(costs, waiting=costs.waiting - what_if.levelled(costs, PARTS).waiting)
