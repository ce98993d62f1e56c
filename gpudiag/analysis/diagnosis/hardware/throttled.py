"""`throttled`: the GPU or its surroundings hold its clocks down."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list
from gpudiag.model import throttle
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, Gpu

_THERMAL = (throttle.HARDWARE_THERMAL, throttle.SOFTWARE_THERMAL)


class Throttled:
    """The GPU runs below its clocks because it is too hot, or because hardware told it to slow down.

    Reported are the driver's reasons that take speed away: hardware slowdown, hardware and software thermal slowdown,
    and the power brake that a server pulls when its supplies cannot keep up. Not reported: an idle GPU, clocks that
    somebody set, and the software power cap, which is how a busy GPU stays within its rated power.

    What to do: look at temperatures and fans (`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`), at the airflow of that
    slot, and at the power supplies and their cables. The slowest GPU sets the pace of a synchronous step, so one hot
    GPU slows the whole job. A cold look is not enough: run it during training.
    """

    code: ClassVar[str] = "throttled"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """One finding per combination of harmful reasons."""
        groups: dict[tuple[str, ...], list[Gpu]] = defaultdict(list)
        for one in facts.gpus:
            harmful = tuple(reason for reason in one.throttle_reasons if reason in throttle.HARMFUL)
            if harmful:
                groups[harmful].append(one)
        return tuple(_finding(reasons, gpus) for reasons, gpus in groups.items())


def _finding(reasons: tuple[str, ...], gpus: list[Gpu]) -> Finding:
    indices = [one.index for one in gpus]
    thermal = any(reason in _THERMAL for reason in reasons)
    idle = all(throttle.IDLE in one.throttle_reasons for one in gpus)
    clocks = [
        f"{one.sm_clock.current_mhz} of {one.sm_clock.maximum_mhz} MHz"
        for one in gpus
        if one.sm_clock.current_mhz and one.sm_clock.maximum_mhz
    ]
    at = f" (SM clock {'; '.join(clocks[:4])})" if clocks and not idle else ""
    held = "is" if len(indices) == 1 else "are"
    when = ", although idle" if idle else ""
    advice = ["Watch it during training: `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -l 1`."]
    if thermal:
        advice.append(f"Clear the airflow of {gpu_list(indices)}: fans, filters, neighbouring cards, room temperature.")
    else:
        advice.append("Check the power supplies and each GPU's power cables; see the server's event log (BMC).")
    advice.append("Until then lower the power limit of all GPUs alike (`nvidia-smi -pl`), so that none lags behind.")
    return Finding(
        code=Throttled.code,
        severity="info" if idle else "warning",
        cause="thermal" if thermal else "power",
        confidence="medium" if idle else "high",
        title=(
            f"{gpu_list(indices)} {held} held back by {' and '.join(reasons)}{when}{at}: "
            "the other GPUs wait for the slowest in every step"
        ),
        evidence={
            "gpus": indices,
            "reasons": list(reasons),
            "temperature_c": {str(one.index): one.temperature_c for one in gpus},
            "power_watts": {str(one.index): one.power_watts for one in gpus},
            "sm_mhz": {str(one.index): one.sm_clock.current_mhz for one in gpus},
            "reason": NO_TRACE,
        },
        advice=tuple(advice),
    )
