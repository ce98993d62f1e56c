"""host-sync: The host blocks on the device every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.rules.rule import notable, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case


class HostSync:
    """The host waits for the device, so that it cannot run ahead and the device stands idle after each wait."""

    code: ClassVar[str] = "host-sync"
    title: ClassVar[str] = "The host blocks on the device every step"

    def examine(self, case: Case) -> Iterator[Finding]:
        """One finding when the exposed time on the least affected lane is notable."""
        exposed = case.exposed_ms("sync")
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
            title=f"the devices stand idle {gain:.1f} ms of each step because the host waits for them",
            evidence={"exposed_ms_by_lane": exposed},
            advice=(
                (
                    "Find .item(), .cpu(), print(loss), nonzero and boolean masks in the loop; log "
                    "every N steps instead of each."
                ),
                "Copy with non_blocking=True from pinned memory (pin_memory=True).",
            ),
        )
