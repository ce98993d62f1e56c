"""launch-bound: The host cannot launch fast enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpudiag.diagnosis.rules.rule import notable, severity_of
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.diagnosis.case import Case


class LaunchBound:
    """The devices stand idle while the host runs framework code to launch the next kernel."""

    code: ClassVar[str] = "launch-bound"
    title: ClassVar[str] = "The host cannot launch fast enough"

    def examine(self, case: Case) -> Iterator[Finding]:
        """One finding when the exposed time on the least affected lane is notable."""
        exposed = case.exposed_ms("launch")
        gain = max(exposed.values(), default=0.0)
        lanes = [lane for lane, value in exposed.items() if value >= gain / 2]
        if not notable(gain, case.step_ms):
            return
        percent = 100 * gain / case.step_ms
        yield Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.ranks_of(lanes),
            cause="tiny kernels",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="medium",
            title=f"the devices wait {gain:.1f} ms of each step for the host to launch work",
            evidence={"exposed_ms_by_lane": exposed},
            advice=(
                "Capture the step in a CUDA graph, or use torch.compile(mode='reduce-overhead').",
                "Make the work per kernel larger: a larger batch, fused optimizer (fused=True), fewer small layers.",
            ),
        )
