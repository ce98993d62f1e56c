"""Provide example machines on which rule `corrupt-transfer` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts
from tests.analysis.diagnosis.rule_examples.machines import gpu, host_copies, machine, peer_copies, reduced

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "peer copies arrive damaged",
        machine(gpu(0), gpu(1), bandwidth=(peer_copies(0, 1, 22.0, peer_access=True, verified=False),)),
    ),
    (
        "an all-reduce gives a wrong sum",
        machine(gpu(0), gpu(1), collectives=(reduced(verified=False),)),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    (
        "all data is verified",
        machine(gpu(0), bandwidth=(host_copies(0, 55.0, verified=True),), collectives=(reduced(verified=True),)),
    ),
    ("data is not checked", machine(gpu(0), bandwidth=(host_copies(0, 55.0),))),
)
