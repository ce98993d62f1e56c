"""Simulate jobs with pipeline stages under the schedules 1F1B, GPipe and interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tests.analysis.diagnosis.rule_examples.jobs import Job, Piece, all_reduce, kernels, receive, send, update

Schedule = Literal["1f1b", "gpipe", "interleaved"]
#: Number of parts of the model per rank in an interleaved schedule.
CHUNKS = 2
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

    An interleaved schedule needs three stages or more, and a number of microbatches that is a multiple of the stages.

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
    """Return a rank's operations in a step: warm-up forwards, alternating forwards and backwards, last backwards.

    `grid` is (stages, replicas, microbatches). `forward_ms` is the duration of all the rank's chunks for a microbatch,
    and `megabytes` the size of a message.
    """
    stages, data, microbatches = grid
    chunks = CHUNKS if schedule == "interleaved" else 1
    stage, last_part = rank // data, stages * chunks - 1
    forward_ms /= chunks
    transfer_ms = _TRANSFER_SHARE * forward_ms
    # The ranks of the next and previous stage. With chunks, the last stage sends to the first stage's next chunk.
    later, earlier = (((stage + by) % stages) * data + rank % data for by in (1, -1))

    def forward(number: int) -> list[Piece]:
        """Return the rank's forward pass `number`; `stages` microbatches in turn pass one chunk, then the next."""
        part = stage + stages * (number // stages % chunks)
        received = [] if part == 0 else [receive(earlier, megabytes=megabytes)]
        sent = [] if part == last_part else [send(later, transfer_ms, megabytes=megabytes)]
        return [*received, kernels(forward_ms, count=10), *sent]

    def backward(number: int) -> list[Piece]:
        part = stage + stages * (chunks - 1 - number // stages % chunks)
        received = [] if part == last_part else [receive(later, megabytes=megabytes)]
        sent = [] if part == 0 else [send(earlier, transfer_ms, megabytes=megabytes)]
        return [*received, kernels(2 * forward_ms, count=20), *sent]

    passes = microbatches * chunks
    # Number of warm-up passes, before forward and backward alternate; for chunks as in Megatron-LM's schedule.
    ahead = passes if schedule == "gpipe" else stages - 1 - stage
    if schedule == "interleaved":
        ahead += ahead + (chunks - 1) * stages
    ahead = min(ahead, passes)
    pieces = [piece for number in range(ahead) for piece in forward(number)]
    for number in range(passes - ahead):
        pieces += forward(ahead + number) + backward(number)
    for number in range(passes - ahead, passes):
        pieces += backward(number)
    return (*pieces, *([all_reduce(2)] if data > 1 else []), update(1))
