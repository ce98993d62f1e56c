"""`clock-mismatch`: GPUs of one model that may not run equally fast."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar, Literal

from gpudiag.analysis.diagnosis.calibration import CRITICAL_PERCENT, SAME_CLOCK, WARNING_PERCENT
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list
from gpudiag.model.analysis import Finding, Severity
from gpudiag.model.facts import Clock, Facts, Gpu

_DOMAINS = (("sm_clock", "SM clock"), ("memory_clock", "Memory clock"))
_LIMITS: tuple[tuple[Literal["maximum_mhz", "application_mhz"], str], ...] = (
    ("maximum_mhz", "maximum"),
    ("application_mhz", "application setting"),
)


class ClockMismatch:
    """GPUs of one model whose clocks have different limits.

    The **SM clock** drives arithmetic, the **memory clock** drives memory bandwidth; both are named here as the driver
    names them. In data-parallel training every step ends with the slowest GPU, so all of them run at the lowest limit.

    Usual causes: boards of different makers (factory overclocking), application clocks set on some GPUs and not on
    others (`nvidia-smi -ac`, `-lgc`, `-lmc`), or a setting that a reboot undid on one.

    What to do: `nvidia-smi -q -d CLOCK` shows the limits; `nvidia-smi -rac`, `-rgc` and `-rmc` take settings back. If
    the boards themselves differ, give the slower ones less work, leave them out, or expect their speed.
    """

    code: ClassVar[str] = "clock-mismatch"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """One finding per model and clock domain whose limits differ by more than 1 %."""
        models: dict[str, list[Gpu]] = defaultdict(list)
        for one in facts.gpus:
            models[one.name].append(one)
        findings = []
        for model, gpus in models.items():
            for domain, words in _DOMAINS:
                for limit, limit_words in _LIMITS:
                    by_mhz: dict[int, list[int]] = defaultdict(list)
                    for one in gpus:
                        clock: Clock = getattr(one, domain)
                        mhz = clock.maximum_mhz if limit == "maximum_mhz" else clock.application_mhz
                        if mhz:
                            by_mhz[mhz].append(one.index)
                    if by_mhz and 1 - min(by_mhz) / max(by_mhz) > SAME_CLOCK:
                        findings.append(_finding(model, domain, words, limit_words, by_mhz))
                        break  # where the maxima differ, settings derived from them do too
        return tuple(findings)


def _finding(model: str, domain: str, words: str, limit_words: str, by_mhz: dict[int, list[int]]) -> Finding:
    low, high = min(by_mhz), max(by_mhz)
    slower = sorted(index for mhz, indices in by_mhz.items() if mhz < high for index in indices)
    percent = 100 * (1 - low / high)
    severity: Severity = (
        "critical" if percent >= CRITICAL_PERCENT else "warning" if percent >= WARNING_PERCENT else "info"
    )
    work = "arithmetic" if domain == "sm_clock" else "memory-bound kernels"
    groups = ", ".join(f"{gpu_list(by_mhz[mhz])} {mhz} MHz" for mhz in sorted(by_mhz, reverse=True))
    return Finding(
        code=ClockMismatch.code,
        severity=severity,
        cause=domain,
        confidence="high",
        title=(
            f"{words} {limit_words} differs between GPUs of one model ({model}): {groups}. "
            f"Every synchronous step waits for the slowest, up to {percent:.0f} % slower in {work}"
        ),
        evidence={
            "gpus": slower,
            "clock": domain,
            "limit": limit_words,
            "mhz": {str(index): mhz for mhz, indices in by_mhz.items() for index in sorted(indices)},
            "percent": round(percent, 1),
            "reason": NO_TRACE,
        },
        advice=(
            f"See the limits with `nvidia-smi -q -d CLOCK -i {','.join(map(str, slower))}`.",
            "If they were set by hand, take that back on every GPU: `nvidia-smi -rac`, `-rgc` and `-rmc`.",
            f"If the boards differ by make, measure each GPU alone, and leave {gpu_list(slower)} out where that pays.",
        ),
    )
