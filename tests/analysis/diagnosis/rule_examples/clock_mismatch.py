"""Provide example machines on which rule `clock-mismatch` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Clock, Facts
from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "the SM clock of one of three GPUs has a limit that is 5 % lower",
        machine(gpu(0, sm_mhz=1772), gpu(1, sm_mhz=1683), gpu(2, sm_mhz=1772)),
    ),
    ("one of two GPUs has a slower memory clock", machine(gpu(0, memory_mhz=1593), gpu(1, memory_mhz=1215))),
    (
        "application clocks are set on one of two GPUs",
        machine(
            gpu(0, sm_clock=Clock(maximum_mhz=1410, application_mhz=1410)),
            gpu(1, sm_clock=Clock(maximum_mhz=1410, application_mhz=1095)),
        ),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    (
        "limits are equal, although one GPU is idle and one works",
        machine(gpu(0), gpu(1, sm_clock=Clock(current_mhz=1980, maximum_mhz=1980))),
    ),
    ("two GPUs are of different models", machine(gpu(0, sm_mhz=1772), gpu(1, "Example 9500", sm_mhz=1911))),
    ("the driver does not report the limits", machine(gpu(0), gpu(1, sm_clock=Clock(current_mhz=345)))),
    ("limits differ by a few MHz of binning", machine(gpu(0, sm_mhz=1980), gpu(1, sm_mhz=1965))),
)
