"""Match the CUDA calls of two traces of a job whose steps are not all equal.

Steps differ, because sequence lengths alternate, some shapes need an additional kernel, and allocators query events.
Each step is compared with the most similar step of the other trace. Calls that launch device work or wait for device
work are compared in order, by their name and the name of the launched work. All calls of the longest common sequence
match:

    here     gemm ─ norm ─────── gemm ─ add           common: gemm, norm, gemm, add
    there    gemm ─ norm ─ sum ─ gemm ─ add

Calls between two matches match too if their names are equal, even if they launch different kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, NO_NUMBER, EventKind, EventTable, Role, any_of

Indices = NDArray[np.intp]

#: Roles of calls that similar steps have in common. Allocation and event-query calls vary between steps.
_SIGNIFICANT = (Role.LAUNCH, Role.COPY, Role.SYNCHRONIZATION, Role.RELEASE, Role.STREAM_WAIT)
_MAX_COMPARED = 20_000
"""Maximum number n of compared calls of one thread in a step, because the comparison takes n² bits of memory."""


class Calls(msgspec.Struct, frozen=True):
    """Outermost calls of one thread in one step as columns of equal length n, sorted by start.

    Attributes:
        row: intp[n], rows in the event table.
        name: int64[n], number of the call's name, the same in both traces.
        work: int64[n], number of the pair (name of the call, name of its work), the same in both traces.
        significant: bool[n], whether similar steps have calls of this role in common.
    """

    row: Indices
    name: NDArray[np.int64]
    work: NDArray[np.int64]
    significant: NDArray[np.bool_]


NONE = Calls(np.empty(0, np.intp), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
StepCalls = dict[int, Calls]
"""Thread → its calls in a step."""


def calls_of_steps(events: EventTable, steps: Sequence[tuple[int, int]], numbers: dict[str, int]) -> list[StepCalls]:
    """Return the outermost calls of each of `steps` (begin and end in ns). `numbers` numbers names of both traces."""
    number = np.array([numbers[name] for name in events.names], np.int64)
    rows = events.rows_of(EventKind.RUNTIME)
    name = number[events.name[rows]]
    work = name * (len(numbers) + 1) + _launched_names(events, rows, number)  # one number for each pair
    significant = any_of(events.role[rows], *_SIGNIFICANT)
    start, thread = events.start_ns[rows], events.thread[rows]
    calls_by_step = []
    for begin, end in np.searchsorted(start, np.array(steps)).tolist():
        step = {}
        for number_of_thread in distinct(thread[begin:end]).tolist():
            calls = begin + np.flatnonzero(thread[begin:end] == number_of_thread)
            # An outermost call begins after all earlier calls of the thread have ended.
            latest_end = np.maximum.accumulate(events.end_ns[rows[calls]])
            calls = calls[np.concatenate([[True], start[calls[1:]] >= latest_end[:-1]])]
            step[number_of_thread] = Calls(rows[calls], name[calls], work[calls], significant[calls])
        calls_by_step.append(step)
    return calls_by_step


def _launched_names(events: EventTable, calls: Indices, number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: 1 + the number of the name of the first op that each call launched; 0 if it launched none."""
    op = events.rows_with(events.correlation[calls], events.rows_of(*DEVICE_WORK))
    return np.where(op == NO_NUMBER, 0, 1 + number[events.name[op]])


def same_threads(here: Sequence[StepCalls], there: Sequence[StepCalls]) -> dict[int, int]:
    """Return thread of `there` → thread of `here` with the same work, for threads whose numbers are in one trace only.

    A trace without operators may number the same thread differently than a trace with operators.
    """
    ours, theirs = _work_by_thread(here), _work_by_thread(there)
    return _paired(ours, theirs, ours.keys() - theirs.keys(), theirs.keys() - ours.keys())


def step_threads(here: StepCalls, there: StepCalls) -> dict[int, int]:
    """Return thread of `there` → thread of `here` with the same work in this step, but another number.

    Such threads occur because a thread pool may run each step on a different thread. A number is left out if the two
    threads with this number have at least half of their calls in common.
    """
    ours, theirs = _work_by_thread([here]), _work_by_thread([there])
    same = {
        thread for thread in ours.keys() & theirs.keys()
        if 2 * (ours[thread] & theirs[thread]).total() >= max(ours[thread].total(), theirs[thread].total())
    }  # fmt: skip
    return _paired(ours, theirs, ours.keys() - same, theirs.keys() - same)


def _paired(
    ours: dict[int, Counter[int]], theirs: dict[int, Counter[int]], our_threads: Set[int], their_threads: Set[int]
) -> dict[int, int]:
    """Pair threads by their number of common calls, best pairs first. Return thread of `theirs` → thread of `ours`.

    Only `our_threads` and `their_threads` may be paired, each once.
    """
    common = sorted(
        (-(ours[thread] & theirs[other]).total(), thread, other) for thread in our_threads for other in their_threads
    )
    pairs: dict[int, int] = {}
    for calls, thread, other in common:
        if calls and other not in pairs and thread not in pairs.values():
            pairs[other] = thread
    return pairs


def _work_by_thread(steps: Sequence[StepCalls]) -> dict[int, Counter[int]]:
    """Return thread → how often each `Calls.work` occurs among its significant calls, over all steps."""
    work: dict[int, Counter[int]] = {}
    for step in steps:
        for thread, calls in step.items():
            work.setdefault(thread, Counter()).update(calls.work[calls.significant].tolist())
    return work


def most_similar_steps(here: Sequence[StepCalls], there: Sequence[StepCalls]) -> list[int]:
    """Return, for each step of `here`, the index of the step of `there` with the fewest different calls.

    Of several such steps, the step whose index is nearest is returned.
    """
    ours, theirs = [_counted(step) for step in here], [_counted(step) for step in there]

    def difference(index: int, other: int) -> tuple[int, int]:
        a, b = ours[index], theirs[other]
        return a.total() + b.total() - 2 * (a & b).total(), abs(index - other)

    return [min(range(len(there)), key=lambda other: difference(index, other)) for index in range(len(here))]


def _counted(step: StepCalls) -> Counter[int]:
    return Counter(work for calls in step.values() for work in calls.work[calls.significant].tolist())


def common_calls(here: Calls, there: Calls) -> tuple[Indices, Indices]:
    """Return the indices of the common calls: in `here`, and in the same order in `there`.

    If not all calls have equal names in order, only significant calls are compared.
    """
    if np.array_equal(here.name, there.name):
        return np.arange(len(here.row)), np.arange(len(there.row))
    a, b = np.flatnonzero(here.significant), np.flatnonzero(there.significant)
    pairs = _longest_common(here.work[a].tolist(), there.work[b].tolist())
    # Calls between two matches match too if both steps have equally many there, with equal names. The pair (-1, -1) and
    # the last pair stand for the edges of the step.
    between = [
        (i + k, j + k)
        for (i, j), (next_i, next_j) in pairwise([(-1, -1), *pairs, (len(a), len(b))])
        if 1 < next_i - i == next_j - j and np.array_equal(here.name[a[i + 1 : next_i]], there.name[b[j + 1 : next_j]])
        for k in range(1, next_i - i)
    ]
    indices = np.array(sorted(pairs + between), np.intp).reshape(-1, 2)
    return a[indices[:, 0]], b[indices[:, 1]]


def _longest_common(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Return the pairs of indices of a longest common subsequence (Hyyrö's bit-parallel algorithm).

    The result is empty if a sequence is longer than `_MAX_COMPARED`.

    >>> _longest_common([1, 2, 3, 2, 4], [1, 3, 5, 2])
    [(0, 0), (2, 1), (3, 3)]
    """
    if max(len(a), len(b)) > _MAX_COMPARED:
        return []
    occurrences: dict[int, int] = {}
    for index, value in enumerate(a):
        occurrences[value] = occurrences.get(value, 0) | 1 << index
    ones = state = (1 << len(a)) - 1
    # Bit i of `states[j]` is 0 if a[: i + 1] has a longer common subsequence with b[: j + 1] than a[:i] has.
    states = []
    for value in b:
        both = state & occurrences.get(value, 0)
        state = (state + both | state - both) & ones
        states.append(state)
    pairs = []
    i, j = len(a), len(b)
    while i and j:  # follow the states back, from the last pair to the first
        if states[j - 1] >> i - 1 & 1:
            i -= 1
        elif j > 1 and not states[j - 2] >> i - 1 & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def count_common(here: StepCalls, there: StepCalls, pairs: dict[int, tuple[Indices, Indices]]) -> tuple[int, int]:
    """Return (number of common significant calls, number of significant calls of the longer step).

    `pairs` maps threads of `here` to the indices of their common calls in both steps.
    """
    common = sum(int(here.get(thread, NONE).significant[indices].sum()) for thread, (indices, _) in pairs.items())
    return common, max(sum(int(calls.significant.sum()) for calls in step.values()) for step in (here, there))
