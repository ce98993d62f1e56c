"""Jobs in which `compute-bound` fires, is silent, and cannot tell."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, kernels

FIRES: tuple[tuple[str, Job], ...] = (
    ("one GPU that is never idle", Job(ranks=1, step=(kernels(20),))),
    ("four that exchange their gradients beside", Job(ranks=4, step=DDP)),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("waiting for input", Job(ranks=1, step=(fetch(30), kernels(20)))),
    ("nothing else was found, but not all could be told", Job(ranks=4, step=DDP, recorded=(0,))),
)
