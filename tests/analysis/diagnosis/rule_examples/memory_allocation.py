"""Provide example jobs in which rule `memory-allocation` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import Job, kernels, memory

FIRES: tuple[tuple[str, Job], ...] = (
    (
        "a cache that is emptied after each step",
        Job(ranks=1, step=(memory(0.2, count=20), kernels(5), memory(0.1, count=20, released=True))),
    ),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("memory is reused from step to step", Job(ranks=1, step=(kernels(5),))),
    (
        "the device has enough queued work during the calls",
        Job(ranks=1, step=(kernels(20, count=10), memory(0.2, count=5), kernels(20, count=10))),
    ),
)
