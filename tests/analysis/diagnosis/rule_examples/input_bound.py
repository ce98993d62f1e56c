"""Provide example jobs in which rule `input-bound` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, kernels, silence

FIRES: tuple[tuple[str, Job], ...] = (
    ("one GPU waits for its DataLoader", Job(ranks=1, step=(fetch(30), kernels(20)))),
    ("the loaders of all ranks are late", Job(ranks=4, step=(fetch(30), *DDP))),
    ("the loaders of all ranks are late and have no marks", Job(ranks=4, step=(silence(30), *DDP))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("the next batch is ready before it is needed", Job(ranks=4, step=(fetch(5), *DDP))),
    ("the loader of only one rank is late", Job(ranks=4, step=DDP, extra={2: (fetch(30),)})),
)
