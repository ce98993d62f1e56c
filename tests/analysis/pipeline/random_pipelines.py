"""Draw random pipeline-parallel jobs with known stragglers, and execute them with a small simulator of workers.

The simulator runs each worker's program of computations, sends and receives in simulated time. It does not use the
graph of `gpudiag.analysis.pipeline`. The true cost of a fault is the difference to a job with the same random numbers
but without the fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpudiag.model.parallelism.operations import (
    BACKWARD,
    BACKWARD_RECEIVE,
    BACKWARD_SEND,
    CLIP,
    EMBEDDING_GRADIENTS,
    FORWARD,
    FORWARD_RECEIVE,
    FORWARD_SEND,
    GARBAGE_COLLECTION,
    GRADIENTS_SCATTER,
    KIND_CODES,
    LAYERNORM_GRADIENTS,
    OPTIMIZER,
    PARAMETERS_GATHER,
    OperationTable,
)

Factors = NDArray[np.float64]
SCHEDULES = ("1f1b", "gpipe", "interleaved")
FAULTS = ("rank", "stage", "sequence")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A job.

    Attributes:
        stages, data_ranks, microbatches, steps: sizes.
        schedule: one of `SCHEDULES`.
        chunks: parts of the model per stage. More than 1 needs an interleaved schedule, and a number of microbatches
            that is a multiple of the number of stages.
        forward_ms, backward_ms: time of one microbatch on one stage.
        transfer_ms, collective_ms: time of a send, and of a collective.
        gap_ms: host time between a computation and the next operation.
        noise: relative standard deviation of each computation.
        slow_transfers: share of transfers that take ten times as long.
        clock_ms: largest error of a worker's clock.
        early_receives: whether receives are posted one computation earlier.
        loss_is_synchronized: whether the last stages of all data ranks wait for each other, without a record.
        rank: (stage, data rank, factor) of a slow worker; None if there is none.
        stage: factor of the computation of each stage.
        sequence: relative standard deviation of the lengths of microbatches.
        seed: seed of the random numbers.
    """

    stages: int
    data_ranks: int
    microbatches: int
    steps: int
    schedule: str = "1f1b"
    chunks: int = 1
    forward_ms: float = 10.0
    backward_ms: float = 20.0
    transfer_ms: float = 0.3
    collective_ms: float = 2.0
    gap_ms: float = 0.02
    noise: float = 0.02
    slow_transfers: float = 0.0
    clock_ms: float = 0.0
    early_receives: bool = False
    loss_is_synchronized: bool = False
    rank: tuple[int, int, float] | None = None
    stage: tuple[float, ...] = ()
    sequence: float = 0.0
    seed: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the names of the job's faults."""
        present = (self.rank is not None, bool(self.stage), self.sequence > 0)
        return tuple(fault for fault, there in zip(FAULTS, present, strict=True) if there)

    def without(self, fault: str) -> Pipeline:
        """Return the job without a fault; the total work of stages and of microbatches stays the same."""
        if fault == "rank":
            return dataclasses.replace(self, rank=None)
        if fault == "stage":
            return dataclasses.replace(self, stage=(float(np.mean(self.stage)),) * self.stages)
        return dataclasses.replace(self, sequence=0.0)


def program(pipeline: Pipeline, stage: int) -> list[tuple[str, int, int]]:
    """Return a worker's computations in order: (kind, part of the whole model, microbatch)."""
    pieces = pipeline.microbatches * pipeline.chunks
    forwards = [(FORWARD, *_piece(pipeline, stage, number, last_first=False)) for number in range(pieces)]
    backwards = [(BACKWARD, *_piece(pipeline, stage, number, last_first=True)) for number in range(pieces)]
    if pipeline.schedule == "gpipe":
        return forwards + backwards
    # Number of forward computations before forward and backward alternate, as in Megatron-LM.
    ahead = pipeline.stages - stage - 1
    if pipeline.chunks > 1:
        ahead = 2 * ahead + (pipeline.chunks - 1) * pipeline.stages
    ahead = min(ahead, pieces)
    steady = [op for number in range(pieces - ahead) for op in (forwards[ahead + number], backwards[number])]
    return forwards[:ahead] + steady + backwards[pieces - ahead :]


def _piece(pipeline: Pipeline, stage: int, number: int, *, last_first: bool) -> tuple[int, int]:
    """Return (part of the model, microbatch) of a worker's n-th computation.

    In an interleaved schedule, a number of microbatches equal to the number of stages passes one chunk before the next
    chunk. With `last_first`, as in backward, the last chunk comes first.
    """
    turn, within = divmod(number, pipeline.stages * pipeline.chunks)
    if pipeline.chunks == 1:
        turn, within = 0, number
    chunk, microbatch = divmod(within, pipeline.stages) if pipeline.chunks > 1 else (0, within)
    chunk = pipeline.chunks - 1 - chunk if last_first else chunk
    return chunk * pipeline.stages + stage, turn * pipeline.stages + microbatch


@dataclass
class _Recorder:
    """Rows of the table of operations, with times in ms of each worker's clock."""

    rows: list[tuple[int, int, int, str, float, float, int, int]] = field(default_factory=list)
    clocks: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(
        self,
        step: int,
        worker: tuple[int, int],
        kind: str,
        start: float,
        end: float,
        *,
        chunk: int = -1,
        microbatch: int = -1,
    ) -> None:
        """Add an operation; `worker` is (stage, data rank), and times are in ms of the simulation."""
        begin = start + self.clocks.get(worker, 0.0)
        self.rows.append((step, worker[1], worker[0], kind, begin, end - start, chunk, microbatch))


def execute(pipeline: Pipeline) -> tuple[OperationTable, float]:
    """Run a job; return its table of operations and its mean step time in ms."""
    random = np.random.default_rng(pipeline.seed)
    clock_errors = pipeline.clock_ms * random.uniform(-1, 1, (pipeline.stages, pipeline.data_ranks))
    recorder = _Recorder(clocks={worker: float(error) for worker, error in np.ndenumerate(clock_errors)})
    lengths = np.random.default_rng([pipeline.seed, 1]).standard_normal(
        (pipeline.steps, pipeline.data_ranks, pipeline.microbatches)
    )
    spread = np.exp(pipeline.sequence * lengths)
    spread /= spread.mean()  # so that the total work does not depend on the spread
    times = [_run_step(pipeline, step, spread[step], random, recorder) for step in range(pipeline.steps)]
    step, data_rank, stage, kind, start, duration, chunk, microbatch = zip(*recorder.rows, strict=True)
    # The analysis must not depend on the order of rows.
    order = np.random.default_rng(pipeline.seed).permutation(len(step))

    def column(values: tuple[float, ...], scale: float = 1.0) -> NDArray[np.int64]:
        return np.rint(np.array(values, np.float64) * scale).astype(np.int64)[order]

    ranks = np.array(stage) * pipeline.data_ranks + np.array(data_rank)
    table = OperationTable(
        source="random.parquet",
        step=column(step),
        data_rank=column(data_rank),
        stage=column(stage),
        rank=ranks[order],
        kind=column(tuple(KIND_CODES[word] for word in kind)),
        start_ns=column(start, 1e6),
        duration_ns=column(duration, 1e6),
        microbatch=column(microbatch),
        chunk=column(chunk),
    )
    return table, float(np.mean(times))


def _run_step(
    pipeline: Pipeline, step: int, spread: Factors, random: np.random.Generator, recorder: _Recorder
) -> float:
    """Draw the durations of a step, run it, and return its end in ms.

    `spread` is the relative length of each microbatch, by data rank and microbatch. Arrays of durations are by
    direction (forward, backward), part of the model, data rank and microbatch.
    """
    stage_of = np.arange(pipeline.stages * pipeline.chunks) % pipeline.stages
    shape = (2, len(stage_of), pipeline.data_ranks, pipeline.microbatches)
    noise = 1 + pipeline.noise * random.standard_normal(shape)
    transfers = pipeline.transfer_ms * np.where(random.random(shape) < pipeline.slow_transfers, 10, 1)
    transfers = transfers * (1 + 0.1 * random.random(shape))
    durations = spread * noise * np.array([pipeline.forward_ms, pipeline.backward_ms])[:, None, None, None]
    durations = durations / pipeline.chunks
    if pipeline.stage:
        durations = durations * np.array(pipeline.stage)[None, stage_of, None, None]
    if pipeline.rank is not None:
        stage, data_rank, factor = pipeline.rank
        durations[:, stage_of == stage, data_rank] *= factor
    durations = np.maximum(durations, 0.01)
    workers = [(stage, data_rank) for stage in range(pipeline.stages) for data_rank in range(pipeline.data_ranks)]
    begins: dict[tuple[int, int], float] = {}
    for worker in workers:
        ready = pipeline.collective_ms
        recorder.add(step, worker, PARAMETERS_GATHER, 0.0, ready)
        begins[worker] = ready + pipeline.gap_ms
    ends: dict[tuple[int, int], float] = {}
    for data_rank in range(pipeline.data_ranks):
        column = _Column(
            pipeline,
            recorder,
            step=step,
            data_rank=data_rank,
            durations=durations[:, :, data_rank],
            transfers=transfers[:, :, data_rank],
        )
        ends.update(column.run({stage: begins[stage, data_rank] for stage in range(pipeline.stages)}))
    return _end_step(pipeline, step, ends, recorder)


class _Column:
    """The stages of one data rank, which run until each has executed its program.

    `durations` and `transfers` are in ms, by direction (forward, backward), part of the model and microbatch. `sent`
    maps a computation (kind, part, microbatch) to its end in ms.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        recorder: _Recorder,
        *,
        step: int,
        data_rank: int,
        durations: Factors,
        transfers: Factors,
    ) -> None:
        self.pipeline, self.step, self.data_rank, self.recorder = pipeline, step, data_rank, recorder
        self.durations, self.transfers = durations, transfers
        self.programs = [program(pipeline, stage) for stage in range(pipeline.stages)]
        self.sent: dict[tuple[str, int, int], float] = {}

    def run(self, begins: dict[int, float]) -> dict[tuple[int, int], float]:
        """Run all workers from the times `begins` by stage; return (stage, data rank) → end of the last computation."""
        ends: list[list[float]] = [[begins[stage]] for stage in range(self.pipeline.stages)]
        at = [0] * self.pipeline.stages
        while any(at[stage] < len(self.programs[stage]) for stage in range(self.pipeline.stages)):
            progress = False
            for stage in range(self.pipeline.stages):
                while at[stage] < len(self.programs[stage]) and self._execute(stage, at[stage], ends[stage]):
                    at[stage] += 1
                    progress = True
            assert progress, "the schedule deadlocks"
        return {(stage, self.data_rank): ends[stage][-1] for stage in range(self.pipeline.stages)}

    def _execute(self, stage: int, number: int, ends: list[float]) -> bool:
        """Execute the stage's computation `number` if its input was sent; return whether it was executed.

        Record the computation, its receive, and the matching send. `ends` are the ends in ms of the stage's earlier
        computations, after the stage's begin; the end of this computation is appended.
        """
        kind, chunk, microbatch = self.programs[stage][number]
        backward = int(kind == BACKWARD)
        source_chunk = chunk + (1 if backward else -1)
        source = source_chunk % self.pipeline.stages
        start = ends[-1]
        if 0 <= source_chunk < self.pipeline.stages * self.pipeline.chunks:
            sent = self.sent.get((kind, source_chunk, microbatch))
            if sent is None:
                return False
            # A receive is posted after the previous computation, or with `early_receives` after the one before it.
            earlier = 2 if self.pipeline.early_receives else 1
            posted = ends[max(len(ends) - earlier, 0)]
            end = max(sent, posted) + float(self.transfers[backward, chunk, microbatch])
            send, receive = (BACKWARD_SEND, BACKWARD_RECEIVE) if backward else (FORWARD_SEND, FORWARD_RECEIVE)
            self.recorder.add(self.step, (source, self.data_rank), send, sent, end)
            self.recorder.add(self.step, (stage, self.data_rank), receive, posted, end)
            start = max(start, end)
        start += self.pipeline.gap_ms
        end = start + float(self.durations[backward, chunk, microbatch])
        self.recorder.add(self.step, (stage, self.data_rank), kind, start, end, chunk=chunk, microbatch=microbatch)
        self.sent[kind, chunk, microbatch] = end
        ends.append(end)
        return True


def _end_step(pipeline: Pipeline, step: int, ends: dict[tuple[int, int], float], recorder: _Recorder) -> float:
    """Record the operations after the last computation; return the end of the step.

    `ends` maps a worker to the end of that computation in ms. Short operations take an assumed 0.05 or 0.1 ms.
    """
    last = pipeline.stages - 1
    if pipeline.loss_is_synchronized:
        latest = max(end for (stage, _), end in ends.items() if stage == last)
        ends = {worker: latest if worker[0] == last else end for worker, end in ends.items()}
    for worker, end in ends.items():
        recorder.add(step, worker, GARBAGE_COLLECTION, end, end)
        recorder.add(step, worker, LAYERNORM_GRADIENTS, end, end + 0.05)
    ready = {worker: end + 0.05 for worker, end in ends.items()}
    if last:  # the first and the last stage share the embedding
        for data_rank in range(pipeline.data_ranks):
            end = max(ready[0, data_rank], ready[last, data_rank]) + pipeline.collective_ms
            for stage in (0, last):
                recorder.add(step, (stage, data_rank), EMBEDDING_GRADIENTS, ready[stage, data_rank], end)
                ready[stage, data_rank] = end
    for stage in range(pipeline.stages):
        of_stage = [(stage, data_rank) for data_rank in range(pipeline.data_ranks)]
        end = max(ready[worker] for worker in of_stage) + pipeline.collective_ms
        for worker in of_stage:
            recorder.add(step, worker, GRADIENTS_SCATTER, ready[worker], end)
            ready[worker] = end
    end = max(ready.values()) + 0.1
    for worker, start in ready.items():
        recorder.add(step, worker, CLIP, start, end)
        recorder.add(step, worker, OPTIMIZER, end, end + pipeline.collective_ms)
    return end + pipeline.collective_ms


def draw(seed: int) -> Pipeline:
    """Return a random job: a quarter are clean, half have one fault, a quarter have two."""
    random = np.random.default_rng([seed, 29])
    stages, data_ranks = int(random.integers(2, 9)), int(random.choice([2, 2, 3, 4, 8]))
    count = int(random.choice([0, 1, 1, 2]))
    faults = set(random.choice(FAULTS, size=count, replace=False).tolist())
    stage_factors = [1.0] * stages
    # The last stage is slow most often, because it also computes the loss.
    slow_stage = stages - 1 if random.random() < 0.6 else int(random.integers(stages))
    stage_factors[slow_stage] = float(random.uniform(1.15, 1.9))
    forward = float(random.uniform(2, 80))
    rank = (int(random.integers(stages)), int(random.integers(data_ranks)), float(random.uniform(1.15, 2.5)))
    sequence = float(random.uniform(0.12, 0.45))
    schedule = str(random.choice(SCHEDULES))
    microbatches = int(random.integers(max(2, stages // 2), 4 * stages + 1))
    if schedule == "interleaved":
        microbatches = stages * int(random.integers(1, 5))
    return Pipeline(
        stages=stages,
        data_ranks=data_ranks,
        microbatches=microbatches,
        steps=int(random.integers(4, 11)),
        schedule=schedule,
        chunks=int(random.integers(2, 4)) if schedule == "interleaved" else 1,
        clock_ms=float(random.choice([0.0, 0.02])),
        forward_ms=forward,
        backward_ms=forward * float(random.uniform(1.5, 3.0)),
        transfer_ms=forward * float(random.uniform(0.005, 0.1)),
        collective_ms=forward * float(random.uniform(0.05, 1.0)),
        gap_ms=float(random.uniform(0.005, 0.05)),
        noise=float(random.uniform(0.005, 0.04)),
        slow_transfers=float(random.choice([0.0, 0.0, 0.01])),
        early_receives=bool(random.random() < 0.3),
        loss_is_synchronized=bool(random.random() < 0.3),
        rank=rank if "rank" in faults else None,
        stage=tuple(stage_factors) if "stage" in faults else (),
        sequence=sequence if "sequence" in faults else 0.0,
        seed=seed,
    )


def true_costs(pipeline: Pipeline) -> Iterator[tuple[str, float]]:
    """Yield each fault with its true cost in ms per step."""
    with_all = execute(pipeline)[1]
    for fault in pipeline.faults:
        yield fault, max(with_all - execute(pipeline.without(fault))[1], 0.0)
