"""Provide example machines on which rule `no-peer-access` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts, Link
from tests.analysis.diagnosis.rule_examples.machines import all_pairs, gpu, machine

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "two consumer GPUs",
        machine(gpu(0), gpu(1), links=all_pairs({(0, 1)}, 2, "GPU not supported (GNS)")),
    ),
    (
        "a square without its diagonals: there is a ring, so only `info`",
        machine(*(gpu(i) for i in range(4)), links=all_pairs({(0, 2), (1, 3)}, 4, "topology not supported (TNS)")),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    ("one GPU", machine(gpu(0))),
    ("all pairs direct", machine(gpu(0), gpu(1), links=all_pairs(set(), 2))),
    ("a driver that does not report peer access", machine(gpu(0), gpu(1), links=(Link(a=0, b=1, kind="SYS"),))),
    ("MIG", machine(gpu(0, mig=True), gpu(1), links=all_pairs({(0, 1)}, 2, "not supported (NS)"))),
)
