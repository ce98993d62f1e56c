"""compute-bound: no other fix saves 5 % of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import advice_for, jax, pytorch, tensorflow, unknown
from gpudiag.model.analysis import Confidence, Finding

_ADVICE = (
    tensorflow("Use faster kernels: a mixed_bfloat16 policy, channels last, jit_compile=True, a larger batch."),
    jax("Use faster kernels: bfloat16 where it suffices, jax.nn.dot_product_attention, a larger batch."),
    jax("If memory limits the batch: donate the old state, jax.jit(step, donate_argnums=0), or use jax.checkpoint."),
    unknown("Use faster kernels: a lower precision where it suffices, fused operations, a larger batch."),
    pytorch("Use faster kernels: bf16 or tf32, channels-last, torch.compile, a larger batch."),
)
#: Advice that replaces the general advice if `slow-compute` findings name the change.
_SPECIFIC = "Use faster kernels: see the findings `slow-compute`; then a larger batch."


class ComputeBound:
    """No fix besides faster kernels saves 5 % of the step: the devices compute nearly all of the time.

    If kernels show which change would make them faster, `slow-compute` names that change. If the run counted FLOPs and
    the device's peak is known, the title has the model FLOPs utilization (MFU), and the evidence the peak's source.
    """

    code: ClassVar[str] = "compute-bound"
    title: ClassVar[str] = "Compute-bound"

    def conclude(self, case: Case, findings: Sequence[Finding], *, conclusive: bool) -> Iterator[Finding]:
        """Yield a finding if nothing is in doubt (`conclusive`) and no finding but `slow-compute` asks for action."""
        others = [finding for finding in findings if finding.code != "slow-compute"]
        if not conclusive or any((finding.recoverable_percent or 0.0) >= WARNING_PERCENT for finding in others):
            return
        compute_ms = max(case.exposed_ms("compute").values(), default=0.0)
        percent = min(100 * compute_ms / case.step_ms, 100.0) if case.step_ms else 0.0
        slow = [finding for finding in findings if finding.code == "slow-compute"]
        title = f"compute-bound ({_shares(case, percent)}); {_rest(slow)}"
        yield self._finding(case, compute_ms, title, "high", slow=bool(slow))

    @classmethod
    def without_savings(cls, case: Case, compute_ms: float, percent: float, largest_percent: float) -> Finding:
        """Return the finding for a job without simulation, by shares of the recorded step.

        Args:
            case: the job.
            compute_ms: compute per step on the device that sets the pace.
            percent: compute in percent of the step.
            largest_percent: the largest other bucket (part of the step time) in percent of the step.
        """
        least = max(largest_percent, WARNING_PERCENT)
        title = f"compute-bound ({_shares(case, percent)}); nothing else takes over {least:.0f} %"
        return cls._finding(case, compute_ms, title, "medium")

    @classmethod
    def _finding(
        cls, case: Case, compute_ms: float, title: str, confidence: Confidence, *, slow: bool = False
    ) -> Finding:
        """Return the finding; `compute_ms` is per step, `slow` means that `slow-compute` findings name the change."""
        return Finding(
            code=cls.code,
            severity="info",
            recoverable_ms_per_step=0.0,
            recoverable_percent=0.0,
            confidence=confidence,
            title=title,
            evidence={"compute_ms": compute_ms, **_rate(case)},
            advice=(_SPECIFIC,) if slow else advice_for(case.timeline.framework, _ADVICE),
        )


def _rest(slow: Sequence[Finding]) -> str:
    """Describe the savings of faster kernels, or say that nothing saves more than the threshold."""
    worthwhile = [
        f"{finding.recoverable_ms_per_step or 0.0:.1f} ms ({finding.cause})"
        for finding in slow
        if (finding.recoverable_percent or 0.0) >= WARNING_PERCENT
    ]
    if not worthwhile:
        return f"nothing here saves over {WARNING_PERCENT:.0f} %"
    return f"faster kernels could save about {', '.join(worthwhile)}"


def _shares(case: Case, percent: float) -> str:
    """Describe compute as a share of the step, and the model FLOPs utilization (MFU) if it is known."""
    rate = case.rate
    if rate is None or rate.mfu_percent is None:
        return f"{percent:.0f} %"
    return f"{percent:.0f} %, MFU {'at least ' * bool(rate.unknown)}{rate.mfu_percent:.3g} %"


def _rate(case: Case) -> dict[str, object]:
    """Return the evidence about FLOPs per second; empty unless the rate and the device's peak are known."""
    rate = case.rate
    if rate is None or rate.mfu_percent is None:
        return {}
    return {
        "mfu_percent": rate.mfu_percent,
        "tflops_per_s": rate.tflops_per_s,
        "peak_tflops": rate.peak_tflops,
        "peak_source": rate.peak_source,
    }
