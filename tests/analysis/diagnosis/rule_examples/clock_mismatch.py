"""Machines on which `clock-mismatch` fires, and machines on which it is silent."""

from __future__ import annotations

from gpudiag.model.facts import Clock, Facts
from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "one of three may run its SMs 5 % slower",
        machine(gpu(0, sm_mhz=1772), gpu(1, sm_mhz=1683), gpu(2, sm_mhz=1772)),
    ),
    ("one of two has a slower memory clock", machine(gpu(0, memory_mhz=1593), gpu(1, memory_mhz=1215))),
    (
        "somebody set application clocks on one of two",
        machine(
            gpu(0, sm_clock=Clock(maximum_mhz=1410, application_mhz=1410)),
            gpu(1, sm_clock=Clock(maximum_mhz=1410, application_mhz=1095)),
        ),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    (
        "equal limits, though one idles and one works",
        machine(gpu(0), gpu(1, sm_clock=Clock(current_mhz=1980, maximum_mhz=1980))),
    ),
    ("two models side by side", machine(gpu(0, sm_mhz=1772), gpu(1, "Example 9500", sm_mhz=1911))),
    ("limits that the driver does not report", machine(gpu(0), gpu(1, sm_clock=Clock(current_mhz=345)))),
    ("a few MHz of binning", machine(gpu(0, sm_mhz=1980), gpu(1, sm_mhz=1965))),
)
