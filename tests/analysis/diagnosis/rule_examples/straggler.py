"""Provide example jobs in which rule `straggler` fires, is silent, or abstains."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, kernels, python, read_back, silence
from tests.analysis.diagnosis.rule_examples.pipelines import pipeline

FIRES: tuple[tuple[str, Job], ...] = (
    ("the loader of one rank is late", Job(ranks=4, step=DDP, extra={2: (fetch(30),)})),
    ("the loader of one rank is late and has no marks", Job(ranks=4, step=DDP, extra={2: (silence(30),)})),
    ("two of four loaders are late", Job(ranks=4, step=DDP, extra={0: (fetch(30),), 3: (fetch(30),)})),
    ("one rank has more to compute", Job(ranks=4, step=DDP, extra={1: (kernels(8, count=4),)})),
    ("one rank logs and saves", Job(ranks=4, step=DDP, extra={0: (python(30),)})),
    (
        "one rank reads its weights back and writes each to a file",
        Job(ranks=4, step=DDP, extra={0: (read_back(0.02, megabytes=0.5), silence(1)) * 40}),
    ),
    ("one pipeline stage has more layers", pipeline(4, 2, 8, pace={4: 1.5, 5: 1.5})),
    ("one replica of a pipeline has longer sequences", pipeline(2, 2, 4, lengths={1: 1.5})),
    (
        "a different rank in each step has more to compute",
        Job(ranks=4, step=DDP, rotating=(kernels(8, count=4),), steps=10),
    ),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("all ranks are equal", Job(ranks=4, step=DDP)),
    ("one loader is later, but its host runs far enough ahead", Job(ranks=4, step=DDP, extra={2: (fetch(10),)})),
    ("all loaders are late", Job(ranks=4, step=(fetch(30), *DDP))),
    ("a pipeline is even", pipeline(2, 2, 4)),
    ("ranks have no common collectives", Job(ranks=4, step=(kernels(20),), extra={2: (kernels(8),)})),
)

ABSTAINS: tuple[tuple[str, Job], ...] = (
    ("only one of four ranks has a trace", Job(ranks=4, step=DDP, extra={2: (fetch(30),)}, recorded=(0,))),
)
