"""Provide example machines on which rule `peer-slower-than-host` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts
from tests.analysis.diagnosis.rule_examples.machines import gpu, host_copies, machine, peer_copies

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "peer copies between sockets",
        machine(
            gpu(0),
            gpu(1),
            bandwidth=(
                peer_copies(0, 1, 4.1, 8.0, peer_access=True),
                peer_copies(0, 1, 11.0, 20.0, peer_access=False),
            ),
        ),
    ),
    (
        "below half the host links, staged copies not measured",
        machine(
            gpu(0),
            gpu(1),
            bandwidth=(host_copies(0, 25.0), host_copies(1, 25.0), peer_copies(0, 1, 6.0, peer_access=True)),
        ),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    (
        "direct copies are as fast as staged copies, within noise",
        machine(
            gpu(0),
            gpu(1),
            bandwidth=(
                peer_copies(0, 1, 0.73, 1.32, peer_access=True),
                peer_copies(0, 1, 0.76, 1.32, peer_access=False),
            ),
        ),
    ),
    (
        "NVLink",
        machine(
            gpu(0),
            gpu(1),
            bandwidth=(peer_copies(0, 1, 394.0, peer_access=True), peer_copies(0, 1, 35.0, peer_access=False)),
        ),
    ),
    ("no peer access", machine(gpu(0), gpu(1), bandwidth=(peer_copies(0, 1, 11.0, peer_access=False),))),
)
