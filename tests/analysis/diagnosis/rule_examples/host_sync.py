"""Provide example jobs in which rule `host-sync` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import Job, item, kernels, python

FIRES: tuple[tuple[str, Job], ...] = (
    (
        "loss.item() before the next step is prepared",
        Job(ranks=1, step=(kernels(5), item(), *(python(0.4),) * 10)),
    ),
    (
        "an .item() after each layer",
        Job(ranks=1, step=(kernels(1, count=40), item(), python(0.5)) * 4),
    ),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("no call waits", Job(ranks=1, step=(kernels(5), python(4)))),
    ("the host waits for almost no device work", Job(ranks=1, step=(kernels(20, count=10), item()))),
)
