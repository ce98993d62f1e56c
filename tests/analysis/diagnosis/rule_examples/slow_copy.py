"""Provide example jobs in which rule `slow-copy` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, host_copy, kernels, python

FIRES: tuple[tuple[str, Job], ...] = (
    (
        "50 MB from pageable memory each step",
        Job(ranks=1, step=(host_copy(5, megabytes=50, pinned=False), kernels(10))),
    ),
    (
        "50 MB are copied to a device without other work",
        Job(
            ranks=1,
            step=(python(0.3), host_copy(5, megabytes=50, pinned=False), kernels(4, count=200, launch_us=60)),
        ),
    ),
    ("250 MB pinned, on the stream that computes", Job(ranks=1, step=(host_copy(5, megabytes=250), kernels(10)))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("data is already on the device", Job(ranks=4, step=DDP)),
    ("a small batch, pinned", Job(ranks=1, step=(host_copy(0.1, megabytes=5), kernels(20)))),
)
