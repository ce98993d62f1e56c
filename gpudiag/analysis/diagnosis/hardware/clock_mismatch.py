"""`clock-mismatch`: GPUs of one model with different clock limits."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import CRITICAL_PERCENT, SAME_CLOCK, WARNING_PERCENT
from gpudiag.analysis.diagnosis.hardware.rule import gpu_list
from gpudiag.model.analysis import Finding, Severity
from gpudiag.model.facts import Facts, Gpu

_DOMAINS = (("sm_clock", "SM clock"), ("memory_clock", "Memory clock"))
_LIMITS = (("maximum_mhz", "maximum"), ("application_mhz", "application setting"))


class ClockMismatch:
    """GPUs of one model whose clocks have different limits.

    The **SM clock** drives arithmetic, the **memory clock** drives memory bandwidth (these are the driver's names). In
    data-parallel training every step ends with the slowest GPU, so that all GPUs run at the lowest limit.

    Usual causes: boards of different makers (factory overclocking), application clocks set only on some GPUs
    (`nvidia-smi -ac`, `-lgc`, `-lmc`), or a setting that a reboot undid on one GPU.

    What to do: `nvidia-smi -q -d CLOCK` shows the limits; `nvidia-smi -rac`, `-rgc` and `-rmc` reset them. If the
    boards themselves differ, give the slower boards less work, leave them out, or accept their speed.
    """

    code: ClassVar[str] = "clock-mismatch"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding per model and clock domain whose limits differ by more than 1 %."""
        models: dict[str, list[Gpu]] = defaultdict(list)
        for gpu in facts.gpus:
            models[gpu.name].append(gpu)
        findings = []
        for model, gpus in models.items():
            for domain, domain_name in _DOMAINS:
                for limit, limit_name in _LIMITS:
                    by_mhz = _gpus_by_limit(gpus, domain, limit)
                    if by_mhz and 1 - min(by_mhz) / max(by_mhz) > SAME_CLOCK:
                        findings.append(_finding(model, domain, domain_name, limit_name, by_mhz))
                        break  # application settings follow the maxima, so that they add nothing if the maxima differ
        return tuple(findings)


def _gpus_by_limit(gpus: list[Gpu], domain: str, limit: str) -> dict[int, list[int]]:
    # MHz → indices of the GPUs with this limit; unknown limits are left out.
    by_mhz: dict[int, list[int]] = defaultdict(list)
    for gpu in gpus:
        mhz = getattr(getattr(gpu, domain), limit)
        if mhz:
            by_mhz[mhz].append(gpu.index)
    return by_mhz


def _finding(model: str, domain: str, domain_name: str, limit_name: str, by_mhz: dict[int, list[int]]) -> Finding:
    """Return the finding about one model's clock `domain`; `by_mhz` is limit → indices of the GPUs with this limit."""
    low, high = min(by_mhz), max(by_mhz)
    slower = sorted(index for mhz, indices in by_mhz.items() if mhz < high for index in indices)
    percent = 100 * (1 - low / high)
    severity: Severity = (
        "critical" if percent >= CRITICAL_PERCENT else "warning" if percent >= WARNING_PERCENT else "info"
    )
    slowed = "arithmetic" if domain == "sm_clock" else "memory-bound kernels"
    groups = ", ".join(f"{gpu_list(by_mhz[mhz])} {mhz} MHz" for mhz in sorted(by_mhz, reverse=True))
    return Finding(
        code=ClockMismatch.code,
        severity=severity,
        cause=domain,
        confidence="high",
        title=(
            f"{domain_name} {limit_name} differs between GPUs of one model ({model}): {groups}. "
            f"Every synchronous step waits for the slowest, up to {percent:.0f} % slower in {slowed}"
        ),
        evidence={
            "gpus": slower,
            "clock": domain,
            "limit": limit_name,
            "mhz": {str(index): mhz for mhz, indices in by_mhz.items() for index in sorted(indices)},
            "percent": round(percent, 1),
        },
        advice=(
            f"See the limits with `nvidia-smi -q -d CLOCK -i {','.join(map(str, slower))}`.",
            "If they were set by hand, reset them on every GPU: `nvidia-smi -rac`, `-rgc` and `-rmc`.",
            f"If the boards differ by make, measure each GPU alone, and leave {gpu_list(slower)} out if that pays.",
        ),
    )
