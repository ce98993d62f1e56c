"""Choose the layouts of the selftest's divided jobs, and the ranks that a fault slows down.

In a divided job each process has only a part of the model or of its work. This module imports no framework.
"""

from __future__ import annotations

import itertools

from gpudiag.model.run import ParallelLayout

#: Name of the divided jobs' workload in plans and records.
PARALLEL_WORKLOAD = "gpt-parallel"
#: Number of processes on CPUs. They wait instead of computing, so there may be more processes than cores.
CPU_PROCESSES = 4
#: Number of sequences per step in a process with all layers. A process with 1/n of the layers has n times this number.
SEQUENCES = 2
#: Number of pipeline stages if the number of ranks is a multiple of twice this number; otherwise there are two stages.
_STAGES = 4
#: Dimension of the layout along which one stage, replica or expert is slow, by kind of fault.
_SLOW_DIMENSION = {"uneven-stages": "pp", "long-sequences": "dp", "hot-expert": "ep"}


def selftest_layout(kind: str, processes: int) -> ParallelLayout:
    """Return the layout for a kind of divided job or fault and an even number of processes.

    Kinds that are not named below have data-parallel replicas of the whole model.
    """
    if kind in {"pipeline", "uneven-stages"}:
        stages = 2 if processes % (2 * _STAGES) else _STAGES
        # Fewer microbatches lengthen the pipeline bubble, which only the job `pipeline` is to show.
        microbatches = stages if kind == "pipeline" else 2 * stages
        return ParallelLayout(pp=stages, dp=processes // stages, microbatches=microbatches)
    if kind == "tensor-and-data-parallel":
        return ParallelLayout(dp=processes // 2, tp=2)
    return ParallelLayout(ep=processes) if kind == "hot-expert" else ParallelLayout(dp=processes)


def slow_ranks(kind: str, processes: int) -> tuple[int, ...]:
    """Return the ranks that a fault of this kind slows down; empty for a job without a fault. Rank 0 is never slow."""
    if kind not in _SLOW_DIMENSION:
        return ()
    sizes = selftest_layout(kind, processes).sizes
    number = list(sizes).index(_SLOW_DIMENSION[kind])
    # Ranks are numbered so that the position along the last dimension varies fastest, as `product` does.
    slow = slow_position(kind, processes)
    positions = itertools.product(*(range(size) for size in sizes.values()))
    return tuple(rank for rank, position in enumerate(positions) if position[number] == slow)


def slow_position(kind: str, processes: int) -> int:
    """Return the number of the pipeline stage, replica or expert that a fault of this kind slows down: never 0."""
    return selftest_layout(kind, processes).sizes[_SLOW_DIMENSION[kind]] // 2
