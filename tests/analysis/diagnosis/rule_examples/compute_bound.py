"""Provide example jobs in which rule `compute-bound` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, kernels

FIRES: tuple[tuple[str, Job], ...] = (
    ("one GPU is never idle", Job(ranks=1, step=(kernels(20),))),
    ("four GPUs overlap communication with compute", Job(ranks=4, step=DDP)),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("the job waits for input", Job(ranks=1, step=(fetch(30), kernels(20)))),
    ("no other cause was found, but some causes could not be judged", Job(ranks=4, step=DDP, recorded=(0,))),
)
