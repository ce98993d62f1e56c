"""input-bound: Devices wait for the input pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.rules.rule import notable, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case


class InputBound:
    """The devices stand idle while the training thread waits for the next batch."""

    code: ClassVar[str] = "input-bound"
    title: ClassVar[str] = "Devices wait for the input pipeline"

    def examine(self, case: Case) -> Iterator[Finding]:
        """One finding when the exposed time on the least affected lane is notable."""
        marked = case.exposed_ms("input")
        unmarked = case.unmarked_input_ms()
        exposed = {lane: marked[lane] + unmarked[lane] for lane in marked}
        gain = min(exposed.values(), default=0.0)
        lanes = list(exposed)
        if not notable(gain, case.step_ms):
            return
        percent = 100 * gain / case.step_ms
        yield Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.ranks_of(lanes),
            cause=None,
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high" if sum(marked.values()) > sum(unmarked.values()) else "low",
            title=f"{gain:.1f} ms of each step pass waiting for input",
            evidence={"exposed_ms_by_lane": exposed},
            advice=(
                "Raise num_workers and prefetch_factor of the DataLoader; keep persistent_workers=True.",
                "Move augmentation to the workers or to the GPU; cache what is decoded again each epoch.",
            ),
        )
