"""Derive the dependencies between the operations of a step.

A worker (a stage of one data rank) computes in the recorded order. A receive must end before the computation of its
microbatch starts, and a send starts after its computation. Sender and receiver, like all members of a collective, begin
to transfer when the last member has started. Communication, updates and garbage collection also follow the last
computation on their worker that had ended when they started, because the host starts operations in program order. The
graph depends only on the order of recorded times, so that it is the same for all steps and data-parallel ranks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from gpudiag.analysis.pipeline.grid import OperationGrid, Times
from gpudiag.errors import UnreadableInputError
from gpudiag.model.parallelism.operations import (
    BACKWARD,
    BACKWARD_RECEIVE,
    BACKWARD_SEND,
    CLIP,
    COMPUTE_KINDS,
    DATA_PARALLEL_KINDS,
    EMBEDDING_GRADIENTS,
    FORWARD,
    FORWARD_RECEIVE,
    FORWARD_SEND,
    GRADIENTS_SCATTER,
    OPERATION_KINDS,
    PARAMETERS_GATHER,
    RECEIVE_KINDS,
    SEND_KINDS,
)

#: Tolerances for the order of operations on one worker, because recorded times are rounded. The second tolerance is a
#: share of a typical computation; the smaller tolerance applies.
_TOLERANCE_MS = 0.1
_TOLERANCE = 0.05
#: Maximum number of (step, data rank) pairs that determine the order.
_MOST_SAMPLES = 1024
#: Operations of each of these streams are executed one after the other.
_DATA_STREAM = (PARAMETERS_GATHER, GRADIENTS_SCATTER)
_MAIN_STREAM = tuple(
    kind for kind in OPERATION_KINDS if kind not in (*COMPUTE_KINDS, *SEND_KINDS, *RECEIVE_KINDS, *_DATA_STREAM)
)
#: Share of samples (step, data rank) that may contradict a dependency, because clocks are sometimes adjusted.
_EXCEPTIONS = 0.02
_HINT = "The table may mix jobs, or lack operations: record every operation of whole steps."


class OperationGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Slots that transfer together, or a single slot.

    Attributes:
        rows: rows of the slots.
        across_data_ranks: whether the group also has the same slots of all data-parallel ranks.
    """

    rows: tuple[int, ...]
    across_data_ranks: bool = False


class OperationGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the slots.

    Attributes:
        groups: groups in topological order. Every slot of `grid.slots` is in exactly one group.
        before: for each slot, the indices in `grid.slots` of the slots that must end before it starts.
    """

    groups: tuple[OperationGroup, ...]
    before: tuple[tuple[int, ...], ...]


def build_graph(grid: OperationGrid) -> OperationGraph:
    """Return the dependencies of a step.

    Raises:
        UnreadableInputError: a send has no receive, or the recorded order contradicts itself.
    """
    before: list[set[int]] = [set() for _ in grid.slots]
    transfers, recorded = _Transfers(grid), _RecordedOrder(grid)
    for stage in range(grid.stages):
        _order_worker(grid, stage, transfers, recorded, before)
    groups = _groups(grid, transfers)
    return OperationGraph(groups=_sorted(groups, before), before=tuple(tuple(sorted(rows)) for rows in before))


class _Transfers:
    """Sends and receives, matched with computations and with each other.

    Attributes:
        computation: row of a send → row of the computation before it; row of a receive → row of the computation after
            it.
        pairs: (send, receive) of each transfer.
    """

    def __init__(self, grid: OperationGrid) -> None:
        self.computation: dict[int, int] = {}
        self.pairs: list[tuple[int, int]] = []
        last_chunk = max(grid.slots[row].chunk for row in grid.rows_of(*COMPUTE_KINDS))
        # Forward passes send to the next chunk of the model, and backward passes to the previous one.
        for compute, send, receive, to_chunk, first, last in (
            (FORWARD, FORWARD_SEND, FORWARD_RECEIVE, 1, 0, last_chunk),
            (BACKWARD, BACKWARD_SEND, BACKWARD_RECEIVE, -1, last_chunk, 0),
        ):
            sends = self._by_chunk(grid, compute, send, without=last)
            receives = self._by_chunk(grid, compute, receive, without=first)
            for (chunk, microbatch), row in sends.items():
                other = receives.pop((chunk + to_chunk, microbatch), None)
                if other is None:
                    raise UnreadableInputError(f"a {send} of stage {grid.slots[row].stage} has no receive", _HINT)
                self.pairs.append((row, other))
            if receives:
                stage = grid.slots[next(iter(receives.values()))].stage
                raise UnreadableInputError(f"a {receive} of stage {stage} has no send", _HINT)

    def _by_chunk(self, grid: OperationGrid, compute: str, kind: str, *, without: int) -> dict[tuple[int, int], int]:
        """Match each computation of kind `compute` with its transfer of kind `kind`, and add both to `computation`.

        The chunk `without` needs no transfer, because passes begin in it (receives) or end in it (sends). Some
        recorders write transfers for that chunk too. Such transfers move nothing and are left out of the result.

        Returns:
            (chunk, microbatch) of the computation → row of the transfer.
        """
        by_chunk: dict[tuple[int, int], int] = {}
        for stage in range(grid.stages):
            computes, transfers = grid.rows_of(compute, stage=stage), grid.rows_of(kind, stage=stage)
            real = [row for row in computes if grid.slots[row].chunk != without]
            if len(transfers) == len(computes):
                matched = list(zip(computes, transfers, strict=True))
            elif len(transfers) == len(real):
                matched = list(zip(real, transfers, strict=True))
            else:
                raise UnreadableInputError(
                    f"stage {stage} has {len(transfers)} {kind} for {len(computes)} {compute}", _HINT
                )
            for row, transfer in matched:
                self.computation[transfer] = row
                slot = grid.slots[row]
                if slot.chunk != without:
                    by_chunk[slot.chunk, slot.microbatch] = transfer
        return by_chunk


def _order_worker(
    grid: OperationGrid, stage: int, transfers: _Transfers, recorded: _RecordedOrder, before: list[set[int]]
) -> None:
    """Add the dependencies between the operations of a stage's worker to `before` (slot → slots that must end first).

    Except for transfers, whose computations are known, the order is that of the recorded times.
    """
    computes = recorded.sorted(grid.rows_of(*COMPUTE_KINDS, stage=stage))
    _chain(computes, before)
    others = grid.rows_of(*(kind for kind in OPERATION_KINDS if kind not in COMPUTE_KINDS), stage=stage)
    recorded.add_last_ended(others, computes, before)
    # Transfers of one kind follow each other, unless the recording shows that they overlap.
    for kind in (*SEND_KINDS, *RECEIVE_KINDS):
        of_kind = grid.rows_of(kind, stage=stage)
        recorded.add_last_ended(of_kind, of_kind, before)
    for row in grid.rows_of(*SEND_KINDS, stage=stage):
        before[row].add(transfers.computation[row])
    for row in grid.rows_of(*RECEIVE_KINDS, stage=stage):
        before[transfers.computation[row]].add(row)
    # Forward computations use the gathered parameters.
    gathers = recorded.sorted(grid.rows_of(PARAMETERS_GATHER, stage=stage))
    recorded.add_last_ended(grid.rows_of(FORWARD, stage=stage), gathers, before)
    data_stream = recorded.sorted(grid.rows_of(*_DATA_STREAM, stage=stage))
    main_stream = recorded.sorted(grid.rows_of(*_MAIN_STREAM, stage=stage))
    for stream, other in ((data_stream, main_stream), (main_stream, data_stream)):
        _chain(stream, before)
        recorded.add_last_ended(stream, other, before)


def _chain(rows: Sequence[int], before: list[set[int]]) -> None:
    for previous, row in pairwise(rows):
        before[row].add(previous)


class _RecordedOrder:
    """Recorded starts and ends in ms, `[slot, sample]`, for at most `_MOST_SAMPLES` samples of (step, data rank)."""

    def __init__(self, grid: OperationGrid) -> None:
        samples = grid.starts_ms.shape[1] * grid.starts_ms.shape[2]
        chosen = np.unique(np.linspace(0, samples - 1, min(samples, _MOST_SAMPLES)).astype(np.int64))
        self._starts = grid.starts_ms.reshape(len(grid.slots), -1)[:, chosen]
        self._ends = self._starts + grid.durations_ms.reshape(len(grid.slots), -1)[:, chosen]
        typical = float(np.median(grid.durations_ms[grid.rows_of(*COMPUTE_KINDS)]))
        self._tolerance = min(_TOLERANCE_MS, _TOLERANCE * typical)

    def sorted(self, rows: Sequence[int]) -> list[int]:
        """Return rows in the order of their median starts."""
        start = np.median(self._starts[list(rows)], axis=1)
        return [rows[number] for number in np.argsort(start, kind="stable").tolist()]

    def add_last_ended(self, rows: Sequence[int], stream: Sequence[int], before: list[set[int]]) -> None:
        """Let each row follow the last of a stream's operations that ended before it starts, in nearly all samples.

        `stream` is in the order of execution. An operation that has ended in only some samples is not a dependency. A
        row that is itself in the stream follows only operations ahead of it.
        """
        if not rows or not stream:
            return
        # The ends are sorted, because only the number of ended operations counts.
        starts, ends = self._starts[list(rows)] + self._tolerance, np.sort(self._ends[list(stream)], axis=0)
        ended = [np.searchsorted(ends[:, sample], starts[:, sample], "right") for sample in range(ends.shape[1])]
        ended_nearly_always = np.quantile(np.array(ended), _EXCEPTIONS, axis=0, method="lower").tolist()
        position = {row: index for index, row in enumerate(stream)}
        for row, count in zip(rows, ended_nearly_always, strict=True):
            if ended_before := min(count, position.get(row, count)):
                before[row].add(stream[ended_before - 1])


def _groups(grid: OperationGrid, transfers: _Transfers) -> list[OperationGroup]:
    """Return the groups: point-to-point transfers, then collectives across stages, then each remaining slot alone.

    Gradients are clipped by the norm over all stages and data ranks. Embedding gradients are reduced across stages.
    """
    groups = [OperationGroup(rows=pair) for pair in transfers.pairs]
    together: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, slot in enumerate(grid.slots):
        if slot.kind in (EMBEDDING_GRADIENTS, CLIP):
            together[slot.kind, slot.index].append(row)
    for (kind, _), rows in together.items():
        groups.append(OperationGroup(rows=tuple(rows), across_data_ranks=kind == CLIP))
    taken = {row for group in groups for row in group.rows}
    groups += [
        OperationGroup(rows=(row,), across_data_ranks=slot.kind in DATA_PARALLEL_KINDS)
        for row, slot in enumerate(grid.slots)
        if row not in taken
    ]
    return groups


def _sorted(groups: Sequence[OperationGroup], before: Sequence[set[int]]) -> tuple[OperationGroup, ...]:
    """Return the groups in topological order (Kahn's algorithm).

    Raises:
        UnreadableInputError: the dependencies have a cycle.
    """
    group_of = {row: number for number, group in enumerate(groups) for row in group.rows}
    needed = [{group_of[earlier] for row in group.rows for earlier in before[row]} for group in groups]
    later: dict[int, list[int]] = defaultdict(list)
    for number, earlier_groups in enumerate(needed):
        for earlier in earlier_groups:
            later[earlier].append(number)
    missing = [len(earlier_groups) for earlier_groups in needed]
    ready = deque(number for number, count in enumerate(missing) if not count)
    ordered: list[OperationGroup] = []
    while ready:
        number = ready.popleft()
        ordered.append(groups[number])
        for following in later[number]:
            missing[following] -= 1
            if not missing[following]:
                ready.append(following)
    if len(ordered) < len(groups):
        raise UnreadableInputError("the order of operations contradicts itself", _HINT)
    return tuple(ordered)


def transfer_durations(grid: OperationGrid, graph: OperationGraph) -> Times:
    """Return durations without waiting, in ms, as `[slot, step, data rank]`.

    The transfer of a group begins when its last member starts.

    Clocks of workers differ by some microseconds. A transfer that seems to end before it starts takes 0 ms.
    """
    durations = grid.durations_ms.copy()
    for group in graph.groups:
        if len(group.rows) > 1 or group.across_data_ranks:
            rows = list(group.rows)
            last = last_start(grid.starts_ms[rows], across_data_ranks=group.across_data_ranks)
            durations[rows] = np.maximum(grid.ends_ms[rows] - last, 0.0)
    return durations


def last_start(starts: Times, *, across_data_ranks: bool) -> Times:
    """Return the last start in a group, `[1, step, data rank]`, from `[member, step, data rank]`."""
    last = starts.max(axis=0, keepdims=True)
    if across_data_ranks:
        last = np.broadcast_to(last.max(axis=2, keepdims=True), last.shape)
    return np.asarray(last)
