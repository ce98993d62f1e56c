"""Layouts of the selftest's divided jobs, and the ranks of their faults; importing this imports no framework."""

from __future__ import annotations

import itertools

from gpudiag.model.run import ParallelLayout

#: Workload of these jobs in plans and records.
PARALLEL_WORKLOAD = "gpt-parallel"
#: CPU processes of these jobs. They wait instead of computing, so they may be more than the cores.
CPU_PROCESSES = 4
#: Sequences per process and step. A process with fewer layers than the model has more of them.
SEQUENCES = 2
#: Pipeline stages if the number of processes is a multiple; otherwise two.
_STAGES = 4
#: The dimension of the layout along which one position is slow, by kind of fault.
_SLOW_DIMENSION = {"uneven-stages": "pp", "long-sequences": "dp", "hot-expert": "ep"}


def selftest_layout(kind: str, processes: int) -> ParallelLayout:
    """Return the layout of a job or fault of this kind for an even number of processes."""
    if kind in {"pipeline", "uneven-stages"}:
        stages = 2 if processes % _STAGES else _STAGES
        microbatches = stages if kind == "pipeline" else 2 * stages
        return ParallelLayout(pp=stages, dp=processes // stages, microbatches=microbatches)
    if kind == "tensor-and-data-parallel":
        return ParallelLayout(dp=processes // 2, tp=2)
    return ParallelLayout(ep=processes) if kind == "hot-expert" else ParallelLayout(dp=processes)


def slow_ranks(kind: str, processes: int) -> tuple[int, ...]:
    """Return the ranks that a fault of this kind slows down, never rank 0; empty for a job without a fault."""
    if kind not in _SLOW_DIMENSION:
        return ()
    sizes = selftest_layout(kind, processes).sizes
    number = list(sizes).index(_SLOW_DIMENSION[kind])
    slow = slow_position(kind, processes)
    positions = itertools.product(*(range(size) for size in sizes.values()))
    return tuple(rank for rank, position in enumerate(positions) if position[number] == slow)


def slow_position(kind: str, processes: int) -> int:
    """Return the slow stage, replica or expert."""
    return selftest_layout(kind, processes).sizes[_SLOW_DIMENSION[kind]] // 2
