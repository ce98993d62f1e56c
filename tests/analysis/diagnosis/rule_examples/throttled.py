"""Provide example machines on which rule `throttled` fires or is silent."""

from __future__ import annotations

from gpudiag.model import throttle
from gpudiag.model.facts import Facts
from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "too hot under load",
        machine(gpu(0, throttle_reasons=(throttle.HARDWARE_SLOWDOWN, throttle.HARDWARE_THERMAL))),
    ),
    ("the server applies the power brake", machine(gpu(0), gpu(1, throttle_reasons=(throttle.POWER_BRAKE,)))),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    ("idle", machine(gpu(0))),
    ("at its rated power, as busy GPUs are", machine(gpu(0, throttle_reasons=(throttle.SOFTWARE_POWER_CAP,)))),
    ("clocks are set by a user", machine(gpu(0, throttle_reasons=(throttle.APPLICATION_CLOCKS,)))),
    ("the reasons cannot be read", machine(gpu(0, throttle_reasons=()))),
)
