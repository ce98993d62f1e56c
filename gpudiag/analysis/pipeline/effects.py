"""Split computation times into factors: stage, worker, sequence, and the rest.

The duration of a computation is `mean of its kind x stage x worker x sequence x rest`. The stage's factor is common to
its data-parallel workers. The worker's factor is common to all steps and microbatches. The sequence's factor is common
to all stages that compute the same microbatch. Times may have two explanations: of two workers, either one is slow or
the other is fast. The explanation with factors nearer to the median of all is then taken, so that few deviate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from gpudiag.analysis.pipeline.grid import OperationGrid, Times
from gpudiag.model.parallelism.operations import BACKWARD, COMPUTE_KINDS, FORWARD

#: If microbatches differ in length, the correlation of their forward and backward durations exceeds this value (as in
#: the published analysis of production jobs). With a single stage, nothing else distinguishes lengths from noise.
MIN_CORRELATION = 0.9
#: Number of iterations; the factors of the tests' random jobs stop changing after three.
_PASSES = 4
#: If all stages of a data rank deviate alike by at most this many standard errors, the microbatches are the reason.
_BY_CHANCE = 4.0


class ComputeFactors(msgspec.Struct, frozen=True, kw_only=True):
    """Factors of the computation times of all slots; 1 for slots that do not compute.

    Attributes:
        stage: `[slot, 1, 1]`, relative to the mean of all stages, so that dividing by this factor conserves the work.
        worker: `[slot, 1, data rank]`, relative to the worker's peers on its stage.
        sequence: `[slot, step, data rank]`, relative to the mean of all microbatches.
        correlation: correlation of forward and backward durations of the same microbatch, without the stage's and
            worker's factors; None if there are fewer than three microbatches.
    """

    stage: Times
    worker: Times
    sequence: Times
    correlation: float | None


def compute_factors(grid: OperationGrid, durations_ms: Times) -> ComputeFactors:
    """Return the factors of the computation times `durations_ms[slot, step, data rank]`; slots are the grid's rows.

    The factors are estimated in turn, each from the times divided by the other factors. The sequence's factor remains 1
    on a single stage if `MIN_CORRELATION` is not reached.
    """
    slots, _, data_ranks = durations_ms.shape
    stage, worker = np.ones((slots, 1, 1)), np.ones((slots, 1, data_ranks))
    sequence = np.ones_like(durations_ms)
    chance = {kind: _chance(durations_ms, list(_slots_by_chunk(grid, kind).values())) for kind in COMPUTE_KINDS}
    for _ in range(_PASSES):
        for kind in COMPUTE_KINDS:
            estimates = _estimate_workers(grid, kind, durations_ms / sequence, chance[kind])
            for rows, of_stage, of_workers in estimates:
                stage[rows], worker[rows] = of_stage, of_workers
        rest = _relative(grid, durations_ms / (stage * worker))
        correlation = _correlation(grid, rest)
        if grid.stages == 1 and (correlation is None or correlation < MIN_CORRELATION):
            break
        for kind in COMPUTE_KINDS:
            _common_to_stages(grid, kind, rest, sequence)
    return ComputeFactors(stage=stage, worker=worker, sequence=sequence, correlation=correlation)


def _relative(grid: OperationGrid, durations_ms: Times) -> Times:
    """Return the durations divided by the mean duration of their kind; 1 if they do not compute or take no time."""
    rest = np.ones_like(durations_ms)
    for kind in COMPUTE_KINDS:
        rows = grid.rows_of(kind)
        if rows and (mean := float(durations_ms[rows].mean())) > 0:
            rest[rows] = durations_ms[rows] / mean
    return rest


def _estimate_workers(
    grid: OperationGrid, kind: str, durations_ms: Times, chance: Times
) -> Iterator[tuple[list[int], float, Times]]:
    """Yield (slots, stage factor, worker factors) per stage and chunk, from the mean times of the workers.

    A difference that all stages of a data rank share is attributed to its microbatches if chance explains the
    difference. Nothing is yielded if a worker's computations of this kind take no time.

    Args:
        grid: the operations.
        kind: the kind of computation, forward or backward.
        durations_ms: `[slot, step, data rank]`, without the sequence's factor.
        chance: `[data rank]`, from `_chance`.
    """
    slots_by_chunk = list(_slots_by_chunk(grid, kind).values())
    mean_ms = np.array([durations_ms[rows].mean(axis=(0, 1)) for rows in slots_by_chunk])  # [chunk, data rank]
    if not slots_by_chunk or mean_ms.min() <= 0:
        return
    usual_ms = float(np.median(mean_ms))
    stage_ms = np.array([_nearest_median(of_stage, usual_ms) for of_stage in mean_ms])
    workers = mean_ms / stage_ms[:, None]
    if grid.stages > 1:
        common = np.array([_nearest_median(of_rank, 1.0) for of_rank in workers.T])
        by_chance = np.abs(common / common.mean() - 1) <= _BY_CHANCE * chance
        workers = workers / np.where(by_chance, common, 1.0)
    for rows, of_stage, of_workers in zip(slots_by_chunk, stage_ms, workers, strict=True):
        yield rows, of_stage / float(stage_ms.mean()), of_workers


def _chance(durations_ms: Times, slots_by_chunk: list[list[int]]) -> Times:
    """Return `[data rank]`: the relative standard error of each data rank's mean time, due to its microbatches.

    If microbatches differ in length, some data ranks get longer microbatches by chance and are slower on all stages.
    """
    if not slots_by_chunk:
        return np.zeros(durations_ms.shape[2])
    relative = np.array([durations_ms[rows] / max(float(durations_ms[rows].mean()), 1e-12) for rows in slots_by_chunk])
    series = relative.mean(axis=0)  # [microbatch, step, data rank], mean over the chunks
    samples = series.shape[0] * series.shape[1]
    return np.asarray(series.std(axis=(0, 1)) / math.sqrt(samples))


def _slots_by_chunk(grid: OperationGrid, kind: str) -> dict[tuple[int, int], list[int]]:
    """Return the slots of one kind by stage and chunk."""
    slots: dict[tuple[int, int], list[int]] = {}
    for row in grid.rows_of(kind):
        slots.setdefault((grid.slots[row].stage, grid.slots[row].chunk), []).append(row)
    return slots


def _nearest_median(values: Times, to: float) -> float:
    """Return the value nearest to `to` between the lower and the upper median.

    >>> _nearest_median(np.array([1.0, 2.0]), 1.0), _nearest_median(np.array([2.0, 2.0]), 1.0)
    (1.0, 2.0)
    """
    ordered = np.sort(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(min(max(to, low), high))


def _by_microbatch(grid: OperationGrid, kind: str) -> dict[int, list[int]]:
    slots: dict[int, list[int]] = {}
    for row in grid.rows_of(kind):
        slots.setdefault(grid.slots[row].microbatch, []).append(row)
    return slots


def _common_to_stages(grid: OperationGrid, kind: str, rest: Times, sequence: Times) -> None:
    """Set the factors of microbatches in `sequence`, in place, relative to their mean.

    A microbatch's factor is the median over stages of `rest` (the durations without the other factors, relative to the
    mean of their kind). For an even number of stages, it is the value nearest to 1 between the two middle values.
    """
    microbatches = _by_microbatch(grid, kind)
    if not microbatches:
        return
    common = {}
    for microbatch, rows in microbatches.items():
        ordered = np.sort(rest[rows], axis=0)
        low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
        common[microbatch] = np.clip(1.0, low, high)
    mean = float(np.mean([values.mean() for values in common.values()]))
    for microbatch, rows in microbatches.items():
        sequence[rows] = np.maximum(common[microbatch] / mean, 1e-9)  # positive, because durations are divided by it


def _correlation(grid: OperationGrid, rest: Times) -> float | None:
    """Return the correlation, over microbatches, of forward and backward durations (each the mean over stages).

    Return None for fewer than three microbatches, and if all take the same time. `rest` is as in `_common_to_stages`.
    """
    forward, backward = _by_microbatch(grid, FORWARD), _by_microbatch(grid, BACKWARD)
    both = sorted(set(forward) & set(backward))
    if not both:
        return None
    pairs = [np.stack([rest[forward[at]].mean(axis=0), rest[backward[at]].mean(axis=0)]) for at in both]
    first, second = np.concatenate([pair.reshape(2, -1) for pair in pairs], axis=1)
    if len(first) < 3 or min(first.std(), second.std()) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])
