"""Provide example jobs in which rule `recompilation` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, kernels, python

COMPILE = "_compile.compile_inner (dynamo_timed)"

FIRES: tuple[tuple[str, Job], ...] = (
    ("a compiled model that meets a new shape in each step", Job(ranks=1, step=(python(60, COMPILE), kernels(20)))),
    ("the same on all ranks", Job(ranks=4, step=(python(60, COMPILE), *DDP))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("compiled before the recorded steps", Job(ranks=4, step=DDP)),
    ("lookups of compiled code", Job(ranks=1, step=(python(60, "TorchDynamo Cache Lookup"), kernels(20)))),
)
