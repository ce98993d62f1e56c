"""straggler: one or few ranks arrive late and the rest wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.rules.rule import CannotTell, notable, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case


class Straggler:
    """One or few ranks come late to the collectives, and the rest wait for them."""

    code: ClassVar[str] = "straggler"
    title: ClassVar[str] = "One or few ranks arrive late and the rest wait"

    def examine(self, case: Case) -> Iterator[Finding | CannotTell]:
        """One finding for the rank that the others wait for most."""
        if len(case.timeline.lanes) < 2:
            if case.timeline.world_size > 1:
                yield CannotTell("late ranks cannot be told from one rank's trace; give the traces of all ranks")
            return
        waited: dict[int, float] = {}
        for lane in case.attribution.lanes:
            for on_rank, share in lane.waits_ns.items():
                waited[on_rank] = max(waited.get(on_rank, 0.0), float(share.mean()) / 1e6)
        if not waited:
            return
        late = max(waited, key=lambda rank: waited[rank])
        gain = waited[late]
        if not notable(gain, case.step_ms):
            return
        percent = 100 * gain / case.step_ms
        yield Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=(late,),
            cause="unknown",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="medium",
            title=f"rank {late} arrives late: the others wait {gain:.1f} ms of each step for it",
            evidence={"waited_for_ms": waited},
            advice=(f"Look at what rank {late} does that the others do not: its row in the table of ranks.",),
        )
