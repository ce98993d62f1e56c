"""Provide example jobs in which rule `host-stall` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, item, kernels, silence

FIRES: tuple[tuple[str, Job], ...] = (
    ("all ranks log after each step", Job(ranks=2, step=(*DDP, silence(30)))),
    ("a pause between forward and backward pass", Job(ranks=1, step=(kernels(5), silence(12), kernels(5)))),
    ("a pause between two .item()", Job(ranks=1, step=(kernels(5), item(), silence(12), item(), kernels(5)))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("a pause that the device hides", Job(ranks=1, step=(kernels(30), silence(3), kernels(5)))),
    ("the loader is late", Job(ranks=2, step=(fetch(30), *DDP))),
    ("one rank logs", Job(ranks=2, step=DDP, extra={1: (kernels(0.1, count=1), silence(30))})),
)
