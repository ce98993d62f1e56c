"""Provide example jobs in which rule `communication-bound` fires, is silent, or abstains."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, all_reduce, fetch, kernels, update

FIRES: tuple[tuple[str, Job], ...] = (
    ("all gradients are communicated at the end", Job(ranks=4, step=(kernels(10), all_reduce(10), update(1)))),
    (
        "compute hides only half of the communication",
        Job(ranks=2, step=(kernels(10), all_reduce(20), kernels(10), update(1))),
    ),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("compute hides all communication", Job(ranks=4, step=(kernels(10), all_reduce(10), kernels(15), update(1)))),
    (
        "all 40 ms in a collective are a wait for a late rank",
        Job(ranks=4, step=(kernels(10), all_reduce(0.1), update(1)), extra={2: (fetch(50),)}),
    ),
)

ABSTAINS: tuple[tuple[str, Job], ...] = (
    (
        "the trace of the late rank is missing",
        Job(ranks=4, step=DDP, extra={2: (fetch(30),)}, recorded=(0, 1, 3)),
    ),
)
