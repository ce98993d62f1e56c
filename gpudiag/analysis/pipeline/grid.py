"""Arrange a table of operations as slots, whose times are arrays over steps and data-parallel ranks.

A slot is the k-th operation of one kind on one stage. All complete steps of all data-parallel ranks have the same
slots, so that one graph of slots describes every step. Arithmetic on `[step, data rank]` simulates all steps at once.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import UnreadableInputError
from gpudiag.model.parallelism.operations import COMPUTE_KINDS, FORWARD, OPERATION_KINDS, Integers, OperationTable

Times = NDArray[np.float64]
_LONGEST_STEP_NS = 10**15
_NO_STEP_HINT = "Record every operation of every worker, for at least one step."


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The `index`-th operation of a kind on a stage; `microbatch` and `chunk` are -1 except for passes."""

    stage: int
    kind: str
    index: int
    microbatch: int
    chunk: int


class OperationGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Times of all slots in complete steps.

    Attributes:
        slots: all slots, sorted by stage, kind and start.
        starts_ms, durations_ms: `[slot, step, data rank]`; starts count from the start of the step's first operation.
        rows: kind → stage → indices of the slots.
        ranks: global rank, `[stage, data rank]`.
        steps_recorded: number of steps in the table, complete or not.
    """

    slots: tuple[Slot, ...]
    starts_ms: Times
    durations_ms: Times
    rows: dict[str, dict[int, list[int]]]
    ranks: Integers
    steps_recorded: int

    @property
    def ends_ms(self) -> Times:
        """Return the ends, `[slot, step, data rank]`."""
        return np.asarray(self.starts_ms + self.durations_ms)

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return int(self.ranks.shape[0])

    @property
    def step_ms(self) -> Times:
        """Return the recorded time of each step in ms, from its first start to its last end."""
        return np.asarray(self.ends_ms.max(axis=(0, 2)) - self.starts_ms.min(axis=(0, 2)))

    def rows_of(self, *kinds: str, stage: int | None = None) -> list[int]:
        """Return the rows of slots of these kinds, by default on all stages."""
        by_stage = [self.rows.get(kind, {}) for kind in kinds]
        if stage is not None:
            return sorted(row for rows in by_stage for row in rows.get(stage, ()))
        return sorted(row for rows in by_stage for of_stage in rows.values() for row in of_stage)

    @property
    def microbatches(self) -> int:
        """Return the number of microbatches per step and data-parallel rank."""
        return len({self.slots[row].microbatch for row in self.rows_of(FORWARD, stage=0)})

    @property
    def chunks_per_stage(self) -> int:
        """Return the number of model chunks on each stage."""
        return len({self.slots[row].chunk for row in self.rows_of(*COMPUTE_KINDS, stage=0)})


def arrange(table: OperationTable) -> OperationGrid:
    """Return the complete steps of a table. In these, each data rank has the most frequent sequence of operations.

    Two sequences are the same if their operations have the same stages and kinds.

    Raises:
        UnreadableInputError: stages are not numbered from 0, no step is complete, or a step takes more than 11 days.
    """
    stages, data_ranks = (np.unique(column) for column in (table.stage, table.data_rank))
    if not len(table) or stages[0] != 0 or stages[-1] != len(stages) - 1:
        raise UnreadableInputError(f"{table.source}: its stages are not numbered from 0", _NO_STEP_HINT)
    # Receives may start together, so that receives of one start are sorted by their ends.
    order = np.lexsort(
        (table.start_ns + table.duration_ns, table.start_ns, table.kind, table.stage, table.data_rank, table.step)
    )
    step, data_rank = table.step[order], np.searchsorted(data_ranks, table.data_rank[order])
    # One slice [begin, end) of `order` for each step of each data rank.
    begins = np.flatnonzero(np.r_[True, (np.diff(step) != 0) | (np.diff(data_rank) != 0)])
    ends = np.r_[begins[1:], len(order)]
    codes = (table.stage * len(OPERATION_KINDS) + table.kind)[order]
    forms = [codes[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
    usual, _ = Counter(forms).most_common(1)[0]
    ranks_of_step = Counter(int(step[begin]) for begin, form in zip(begins, forms, strict=True) if form == usual)
    kept = [
        (begin, end)
        for begin, end, form in zip(begins, ends, forms, strict=True)
        if form == usual and ranks_of_step[int(step[begin])] == len(data_ranks)
    ]
    if not kept:
        raise UnreadableInputError(
            f"{table.source}: in no step do all data-parallel ranks have the same operations", _NO_STEP_HINT
        )
    rows = order[np.array([np.arange(begin, end) for begin, end in kept])]  # [step x data rank, slot]
    rows = rows.reshape(-1, len(data_ranks), rows.shape[1]).transpose(2, 0, 1)  # [slot, step, data rank]
    starts = table.start_ns[rows]
    starts = starts - starts.min(axis=(0, 2), keepdims=True)
    if starts.max() > _LONGEST_STEP_NS:
        raise UnreadableInputError(f"{table.source}: a step takes more than 11 days", "Check the column start_ts.")
    slots = _slots(table, rows)
    by_place: dict[str, dict[int, list[int]]] = {}
    for row, slot in enumerate(slots):
        by_place.setdefault(slot.kind, {}).setdefault(slot.stage, []).append(row)
    return OperationGrid(
        slots=slots,
        rows=by_place,
        starts_ms=starts / 1e6,
        durations_ms=table.duration_ns[rows] / 1e6,
        ranks=_global_ranks(table, rows, len(stages)),
        steps_recorded=len(np.unique(table.step)),
    )


def _slots(table: OperationTable, rows: Integers) -> tuple[Slot, ...]:
    """Return the slots; `rows` has their rows in the table, `[slot, step, data rank]`.

    If the table has no microbatches, the k-th computation of a kind is of microbatch k. If the table has no chunks, a
    stage is one chunk.
    """
    count: Counter[tuple[int, str]] = Counter()
    slots = []
    for row in rows[:, 0, 0].tolist():
        stage, kind = int(table.stage[row]), OPERATION_KINDS[table.kind[row]]
        index = count[stage, kind]
        count[stage, kind] += 1
        computes = kind in COMPUTE_KINDS
        microbatch = int(table.microbatch[row]) if computes else -1
        chunk = int(table.chunk[row]) if computes else -1
        slots.append(
            Slot(
                stage=stage,
                kind=kind,
                index=index,
                microbatch=index if computes and microbatch < 0 else microbatch,
                chunk=stage if computes and chunk < 0 else chunk,
            )
        )
    return tuple(slots)


def _global_ranks(table: OperationTable, rows: Integers, stages: int) -> Integers:
    first = rows[:, 0, :]
    ranks = np.zeros((stages, first.shape[1]), np.int64)
    ranks[table.stage[first], np.arange(first.shape[1])] = table.rank[first]
    return ranks
