"""Provide example jobs in which rule `pipeline-bubble` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job
from tests.analysis.diagnosis.rule_examples.pipelines import pipeline

FIRES: tuple[tuple[str, Job], ...] = (
    ("two stages share four microbatches (1F1B)", pipeline(2, 2, 4)),
    ("two stages share four microbatches (GPipe)", pipeline(2, 2, 4, schedule="gpipe")),
    ("four stages share eight microbatches", pipeline(4, 1, 8)),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("two stages share 96 microbatches", pipeline(2, 1, 96, forward_ms=3.0, steps=4)),
    ("all ranks train the whole model", Job(ranks=4, step=DDP)),
)
