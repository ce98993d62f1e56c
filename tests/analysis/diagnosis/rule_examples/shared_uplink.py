"""Provide example machines on which rule `shared-uplink` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts, Link
from tests.analysis.diagnosis.rule_examples.machines import both_ways, gpu, host_copies, machine, peer_copies, together

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "two of four GPUs are behind one switch",
        machine(
            *(gpu(i) for i in range(4)),
            links=(Link(a=0, b=1, kind="PIX"), Link(a=2, b=3, kind="PHB")),
            bandwidth=(*(host_copies(i, 12.5) for i in range(4)), together(6.4, 6.3, 12.4, 12.3)),
        ),
    ),
    (
        "two-GPU board in a virtual machine that hides its topology",
        machine(
            gpu(0),
            gpu(1),
            links=(Link(a=0, b=1, kind="SYS", peer_access=False),),
            bandwidth=(peer_copies(0, 1, 5.3, 5.5, peer_access=False),),
        ),
    ),
    (
        "a link that carries one direction at a time: `info`, because some GPUs are built so",
        machine(gpu(0), bandwidth=(host_copies(0, 12.5), both_ways(0, 12.9))),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    (
        "four GPUs that together saturate the host's memory",
        machine(
            *(gpu(i) for i in range(4)),
            bandwidth=(*(host_copies(i, 55.4) for i in range(4)), together(38.8, 39.4, 39.6, 40.9)),
        ),
    ),
    (
        "both directions at nearly twice the rate of one",
        machine(gpu(0), gpu(1), bandwidth=(peer_copies(0, 1, 5.9, 10.4, peer_access=False),)),
    ),
    ("one GPU", machine(gpu(0), bandwidth=(host_copies(0, 12.5), together(12.4)))),
)
