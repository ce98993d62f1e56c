"""slow-copy: Exposed host to device copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.rules.rule import notable, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case


class SlowCopy:
    """Copies run while nothing is computed beside them."""

    code: ClassVar[str] = "slow-copy"
    title: ClassVar[str] = "Exposed host to device copies"

    def examine(self, case: Case) -> Iterator[Finding]:
        """One finding when the exposed time on the least affected lane is notable."""
        exposed = case.exposed_ms("copy")
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
            confidence="medium",
            title=f"{gain:.1f} ms of each step pass copying with nothing computed beside it",
            evidence={"exposed_ms_by_lane": exposed},
            advice=(
                (
                    "Pin the host memory (DataLoader(pin_memory=True)) and copy with non_blocking=True "
                    "on a stream of its own."
                ),
                "Copy the next batch while this one is computed.",
            ),
        )
