"""Provide example jobs in which rule `launch-bound` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, kernels, python

FIRES: tuple[tuple[str, Job], ...] = (
    ("300 kernels of 3 µs", Job(ranks=1, step=(kernels(1, count=300, launch_us=12),))),
    ("long kernels take even longer to launch", Job(ranks=1, step=(kernels(10, count=100, launch_us=200),))),
    ("operators that compute on the CPU", Job(ranks=1, step=(kernels(5), *[python(0.3, "aten::add_")] * 20))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("kernels that last longer than their launch", Job(ranks=4, step=DDP)),
    (
        "a slow host whose launches hide behind the device once the loader is fixed",
        Job(ranks=1, step=(fetch(40), kernels(30, count=300, launch_us=50))),
    ),
)
