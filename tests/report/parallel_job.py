"""Make analyses of jobs that divide their work: a pipeline with replicas, and tensor parallelism with sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.model.parallelism import Parallelism, PassOfStage, PipelineShape, RankPlace, RoleTraffic
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.parallelism import Pass

FORWARD_MS, BACKWARD_MS = 10.0, 20.0


def one_forward_one_backward(stages: int, microbatches: int) -> tuple[PassOfStage, ...]:
    """Return the passes of the first of two replicas under 1F1B; a pass starts when its input and stage are ready."""
    orders = [list(_order(stages - stage - 1, microbatches)) for stage in range(stages)]
    ends: dict[tuple[Pass, int, int], float] = {}
    free = [0.0] * stages
    passes = []
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            direction, microbatch = order[0]
            source = stage - 1 if direction == "forward" else stage + 1
            # The last stage's backward pass needs its own forward pass; the first stage's forward pass needs no input.
            last = direction == "backward" and source == stages
            needed: tuple[Pass, int, int] = ("forward" if last else direction, stage if last else source, microbatch)
            if source >= 0 and needed not in ends:
                continue
            start = max(free[stage], ends.get(needed, 0.0))
            end = free[stage] = start + (FORWARD_MS if direction == "forward" else BACKWARD_MS)
            ends[direction, stage, microbatch] = end
            passes.append(
                PassOfStage(
                    rank=2 * stage, stage=stage, direction=direction, microbatch=microbatch, start_ms=start, end_ms=end
                )
            )
            order.pop(0)
    return tuple(passes)


def _order(warmup: int, microbatches: int) -> Iterator[tuple[Pass, int]]:
    """Yield a stage's passes: `warmup` forwards, then forwards and backwards alternately, then the last backwards."""
    yield from (("forward", number) for number in range(min(warmup, microbatches)))
    for number in range(microbatches):
        if number + warmup < microbatches:
            yield "forward", number + warmup
        yield "backward", number


def pipeline_job(stages: int = 4, microbatches: int = 8) -> Analysis:
    """Return a job of pipeline stages with two replicas each; rank 5 computes 8 % longer than its peer.

    Each rank waits so long that the steps of all ranks are equal.
    """
    compute = [240.0 + 20 * (rank == 5) for rank in range(2 * stages)]
    grid = Parallelism(
        sizes={"pipeline": stages, "data": 2},
        stated=True,
        traffic=(
            RoleTraffic(
                role="data",
                operations={"all_reduce": 3.0},
                transfer_ms=4.3,
                wait_ms=4.5,
                hidden_ms=3.8,
                size_bytes=268_800,
            ),
            RoleTraffic(
                role="pipeline",
                operations={"send": 2.0 * microbatches, "recv": 2.0 * microbatches},
                transfer_ms=8.3,
                wait_ms=90.0,
                hidden_ms=15.7,
                size_bytes=51_200,
            ),
        ),
        ranks=tuple(
            RankPlace(
                rank=rank,
                position={"pipeline": rank // 2, "data": rank % 2},
                compute_ms=ms,
                relative=ms / (sum(compute[rank // 2 * 2 : rank // 2 * 2 + 2]) / 2),
            )
            for rank, ms in enumerate(compute)
        ),
        pipeline=PipelineShape(
            stages=stages,
            microbatches=microbatches,
            bubble_ms=90.0,
            bubble_percent=27.3,
            theoretical_percent=100 * (stages - 1) / (microbatches + stages - 1),
            passes=one_forward_one_backward(stages, microbatches),
        ),
    )
    devices = [
        builders.device(rank, compute=ms, communication_transfer=8.3, communication_wait=338.3 - ms, hidden=15.7)
        for rank, ms in enumerate(compute)
    ]
    return builders.analysis(*devices, parallelism=grid)


def tensor_job() -> Analysis:
    """Return a job with tensor parallelism in a sharded model, whose roles were inferred."""
    grid = Parallelism(
        sizes={"shard": 2, "tensor": 2},
        stated=False,
        traffic=(
            RoleTraffic(
                role="shard",
                operations={"all_gather": 17.0, "reduce_scatter": 8.5},
                transfer_ms=47.0,
                wait_ms=130.2,
                hidden_ms=4.3,
            ),
            RoleTraffic(
                role="tensor",
                operations={"all_reduce": 49.0, "all_gather": 1.0},
                transfer_ms=1.7,
                wait_ms=1.4,
                hidden_ms=197.7,
            ),
        ),
        ranks=tuple(
            RankPlace(rank=rank, position={"shard": rank // 2, "tensor": rank % 2}, compute_ms=600.0, relative=1.0)
            for rank in range(4)
        ),
    )
    devices = [builders.device(rank, compute=600.0, communication_transfer=50.0) for rank in range(4)]
    return builders.analysis(*devices, parallelism=grid)
