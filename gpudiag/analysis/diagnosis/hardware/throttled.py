"""`throttled`: heat or a lack of power lowers a GPU's clocks."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.hardware.rule import gpu_list
from gpudiag.model import throttle
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, Gpu

_THERMAL = {throttle.HARDWARE_THERMAL, throttle.SOFTWARE_THERMAL}


class Throttled:
    """The GPU runs below its normal clocks because it is too hot, or because the hardware slows it down.

    The finding reports these of the driver's reasons for lower clocks: hardware slowdown, hardware and software thermal
    slowdown, and the power brake of servers with overloaded power supplies. Normal reasons are not reported: no work,
    clocks that a user has set, and the software power cap, by which a busy GPU stays within its rated power.

    What to do: look at temperatures and fans (`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`), at the airflow of that slot,
    and at the power supplies and their cables. Look during training, because an idle GPU shows no throttling. The
    slowest GPU sets the pace of a synchronous step, so that one hot GPU slows the whole job.
    """

    code: ClassVar[str] = "throttled"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding per combination of reasons that reduce speed, for all GPUs with that combination."""
        groups: dict[tuple[str, ...], list[Gpu]] = defaultdict(list)
        for gpu in facts.gpus:
            harmful = tuple(reason for reason in gpu.throttle_reasons if reason in throttle.HARMFUL)
            if harmful:
                groups[harmful].append(gpu)
        return tuple(_finding(reasons, gpus) for reasons, gpus in groups.items())


def _finding(reasons: tuple[str, ...], gpus: list[Gpu]) -> Finding:
    """Return the finding about GPUs that are throttled for the same reasons; `info` if all of them are idle."""
    indices = [gpu.index for gpu in gpus]
    thermal = not _THERMAL.isdisjoint(reasons)
    idle = all(throttle.IDLE in gpu.throttle_reasons for gpu in gpus)
    verb = "is" if len(indices) == 1 else "are"
    if thermal:
        check = f"Clear the airflow of {gpu_list(indices)}: fans, filters, neighbouring cards, room temperature."
    else:
        check = "Check the power supplies and each GPU's power cables; see the server's event log (BMC)."
    return Finding(
        code=Throttled.code,
        severity="info" if idle else "warning",
        cause="thermal" if thermal else "power",
        confidence="medium" if idle else "high",
        title=(
            f"{gpu_list(indices)} {verb} held back by {' and '.join(reasons)}"
            f"{', although idle' if idle else _clocks(gpus)}: the other GPUs wait for the slowest in every step"
        ),
        evidence={
            "gpus": indices,
            "reasons": list(reasons),
            "temperature_c": {str(gpu.index): gpu.temperature_c for gpu in gpus},
            "power_watts": {str(gpu.index): gpu.power_watts for gpu in gpus},
            "sm_mhz": {str(gpu.index): gpu.sm_clock.current_mhz for gpu in gpus},
        },
        advice=(
            "Watch it during training: `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -l 1`.",
            check,
            "Until then lower the power limit of all GPUs alike (`nvidia-smi -pl`), so that all run at one speed.",
        ),
    )


def _clocks(gpus: list[Gpu]) -> str:
    clocks = [
        f"{gpu.sm_clock.current_mhz} of {gpu.sm_clock.maximum_mhz} MHz"
        for gpu in gpus
        if gpu.sm_clock.current_mhz and gpu.sm_clock.maximum_mhz
    ]
    return f" (SM clock {'; '.join(clocks[:4])})" if clocks else ""
