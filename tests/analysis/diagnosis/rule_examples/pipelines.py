"""Simulate jobs with pipeline stages under the schedules 1F1B and GPipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tests.analysis.diagnosis.rule_examples.jobs import Job, Piece, all_reduce, kernels, receive, send, update

Schedule = Literal["1f1b", "gpipe"]
#: Duration of a transfer as a share of the forward pass whose result is sent.
_TRANSFER_SHARE = 0.04
_MEGABYTES = 8.0


def pipeline(
    stages: int,
    data: int,
    microbatches: int,
    *,
    forward_ms: float = 5.0,
    schedule: Schedule = "1f1b",
    pace: Mapping[int, float] | None = None,
    lengths: Mapping[int, float] | None = None,
    steps: int = 7,
    scatter: float = 0.0,
    seed: int = 0,
) -> Job:
    """Return a job whose stages compute `forward_ms` forward and twice as much backward per microbatch.

    Args:
        stages, data: the grid; consecutive ranks are of one stage.
        microbatches: number of microbatches in each step.
        forward_ms: duration of a forward pass in ms.
        schedule: the order of passes.
        pace: factor by which the passes of a rank take longer, by rank.
        lengths: factor of the lengths of a replica's sequences on all stages, by number of the replica.
        steps: number of recorded steps.
        scatter, seed: arguments of `Job`.
    """
    own = {
        rank: _step(
            rank,
            (stages, data, microbatches),
            schedule,
            forward_ms * (pace or {}).get(rank, 1.0) * (lengths or {}).get(rank % data, 1.0),
            _MEGABYTES * (lengths or {}).get(rank % data, 1.0),
        )
        for rank in range(stages * data)
    }
    return Job(ranks=stages * data, stages=stages, own=own, steps=steps, scatter=scatter, seed=seed)


def _step(
    rank: int, grid: tuple[int, int, int], schedule: Schedule, forward_ms: float, megabytes: float
) -> tuple[Piece, ...]:
    stages, data, microbatches = grid
    stage = rank // data
    first, last = stage == 0, stage == stages - 1
    transfer_ms = _TRANSFER_SHARE * forward_ms

    def forward() -> list[Piece]:
        received = [] if first else [receive(rank - data, megabytes=megabytes)]
        sent = [] if last else [send(rank + data, transfer_ms, megabytes=megabytes)]
        return [*received, kernels(forward_ms, count=10), *sent]

    def backward() -> list[Piece]:
        received = [] if last else [receive(rank + data, megabytes=megabytes)]
        sent = [] if first else [send(rank - data, transfer_ms, megabytes=megabytes)]
        return [*received, kernels(2 * forward_ms, count=20), *sent]

    ahead = microbatches if schedule == "gpipe" else min(stages - 1 - stage, microbatches)
    pieces = [piece for _ in range(ahead) for piece in forward()]
    for _ in range(microbatches - ahead):
        pieces += forward() + backward()
    for _ in range(ahead):
        pieces += backward()
    return (*pieces, *([all_reduce(2)] if data > 1 else []), update(1))
