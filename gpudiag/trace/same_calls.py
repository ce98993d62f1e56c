"""Which calls of CUDA two recordings of a job have in common, though their steps are not all alike.

Steps differ: lengths that take turns, a kernel more for some shapes, allocators and watchdogs that ask whether an event
has happened. So each step is compared with the step of the other recording that is most like it, and calls in their
order: those that give a device work or wait for it, by what they are and what they launch.

    here     gemm ─ norm ─────── gemm ─ add           the longest sequence that both have, and between
    there    gemm ─ norm ─ sum ─ gemm ─ add           two of its calls those that launch other kernels likewise
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, NO_CORRELATION, EventKind, EventTable, Role, any_of

Places = NDArray[np.intp]

#: What gives a device work or waits for it is the job's own. Whoever takes memory or asks for news does so as it comes.
_TELLS = (Role.LAUNCH, Role.COPY, Role.SYNCHRONIZATION, Role.RELEASE, Role.STREAM_WAIT)
_MOST_COMPARED = 20_000
"""Of more calls of one thread in a step a common sequence is not sought: it takes their number squared, in bits."""


class Calls(msgspec.Struct, frozen=True):
    """Calls of one thread in one step that lie in no other call: columns of equal length n, by start.

    Attributes:
        row: intp[n], rows in the event table.
        name: int64[n], the call; the same number in both recordings.
        work: int64[n], the call and what it gives the device; likewise.
        tells: bool[n], whether it is a call that steps of the same kind have in common.
    """

    row: Places
    name: NDArray[np.int64]
    work: NDArray[np.int64]
    tells: NDArray[np.bool_]


NONE = Calls(np.empty(0, np.intp), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
Step = dict[int, Calls]
"""The calls of a step by thread."""


def calls_of_steps(events: EventTable, steps: Sequence[tuple[int, int]], numbers: dict[str, int]) -> list[Step]:
    """The calls of each step.

    Args:
        events: a recording.
        steps: (begin, end) of each, ns.
        numbers: a number from 0 on for each name of both recordings.
    """
    number = np.array([numbers[name] for name in events.names], np.int64)
    rows = events.rows_of(EventKind.RUNTIME)
    name = number[events.name[rows]]
    work = name * (len(numbers) + 1) + _given(events, rows, number)
    tells = any_of(events.role[rows], *_TELLS)
    start, thread = events.start_ns[rows], events.thread[rows]
    found = []
    for a, b in np.searchsorted(start, np.array(steps)).tolist():
        step = {}
        for one in distinct(thread[a:b]).tolist():
            mine = a + np.flatnonzero(thread[a:b] == one)
            reach = np.maximum.accumulate(events.end_ns[rows[mine]])
            mine = mine[np.concatenate([[True], start[mine[1:]] >= reach[:-1]])]
            step[one] = Calls(rows[mine], name[mine], work[mine], tells[mine])
        found.append(step)
    return found


def _given(events: EventTable, calls: Places, number: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: 1 + the number of the name of the first op that each call gave a device; 0 for none."""
    ops = events.rows_of(*DEVICE_WORK)
    ops = ops[np.argsort(events.correlation[ops], kind="stable")]
    wanted = events.correlation[calls]
    ops = np.append(ops, ops[-1:]) if len(ops) else np.zeros(1, np.intp)
    place = np.searchsorted(events.correlation[ops[:-1]], wanted)
    found = (events.correlation[ops[place]] == wanted) & (wanted != NO_CORRELATION) & (len(ops) > 1)
    return np.where(found, 1 + number[events.name[ops[place]]], 0)


def same_threads(here: Sequence[Step], there: Sequence[Step]) -> dict[int, int]:
    """By the threads there that have no namesake here, those here that have none there and do the same.

    Who records no operator of a thread knows it by another number than who does.
    """
    ours, theirs = _by_thread(here), _by_thread(there)
    return _paired(ours, theirs, ours.keys() - theirs.keys(), theirs.keys() - ours.keys())


def step_threads(here: Step, there: Step) -> dict[int, int]:
    """By the threads there, those here that do the same in this step, where that is not their namesake.

    An executor runs a step on any thread of its pool, and the next on another. A thread of which a namesake does half
    of the calls or more stays what it is called.
    """
    ours, theirs = _by_thread([here]), _by_thread([there])
    stay = {
        one for one in ours.keys() & theirs.keys()
        if 2 * (ours[one] & theirs[one]).total() >= max(ours[one].total(), theirs[one].total())
    }  # fmt: skip
    return _paired(ours, theirs, ours.keys() - stay, theirs.keys() - stay)


def _paired(
    ours: dict[int, Counter[int]], theirs: dict[int, Counter[int]], mine: Set[int], others: Set[int]
) -> dict[int, int]:
    """By each of the other threads the one of mine with which it has most calls in common, the most first."""
    common = sorted((-(ours[one] & theirs[other]).total(), one, other) for one in mine for other in others)
    found: dict[int, int] = {}
    for calls, one, other in common:
        if calls and other not in found and one not in found.values():
            found[other] = one
    return found


def _by_thread(steps: Sequence[Step]) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {}
    for step in steps:
        for thread, calls in step.items():
            found.setdefault(thread, Counter()).update(calls.work[calls.tells].tolist())
    return found


def most_alike(here: Sequence[Step], there: Sequence[Step]) -> list[int]:
    """For each step here the one there with which it has the fewest calls not in common; the nearest of several."""
    mine, others = [_counted(step) for step in here], [_counted(step) for step in there]

    def unlike(index: int, other: int) -> tuple[int, int]:
        a, b = mine[index], others[other]
        return a.total() + b.total() - 2 * (a & b).total(), abs(index - other)

    return [min(range(len(there)), key=lambda other: unlike(index, other)) for index in range(len(here))]


def _counted(step: Step) -> Counter[int]:
    return Counter(work for calls in step.values() for work in calls.work[calls.tells].tolist())


def same_calls(here: Calls, there: Calls) -> tuple[Places, Places]:
    """Places in both of the calls that they have in common, in order."""
    if np.array_equal(here.name, there.name):
        return np.arange(len(here.row)), np.arange(len(there.row))
    a, b = np.flatnonzero(here.tells), np.flatnonzero(there.tells)
    pairs = _longest_common(here.work[a].tolist(), there.work[b].tolist())
    between = [
        (i + k, j + k)
        for (i, j), (next_i, next_j) in pairwise([(-1, -1), *pairs, (len(a), len(b))])
        if 1 < next_i - i == next_j - j and np.array_equal(here.name[a[i + 1 : next_i]], there.name[b[j + 1 : next_j]])
        for k in range(1, next_i - i)
    ]
    places = np.array(sorted(pairs + between), np.intp).reshape(-1, 2)
    return a[places[:, 0]], b[places[:, 1]]


def _longest_common(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Places in both of a longest common sequence, as Hyyrö finds it: a number for each of `b`, a bit for each of `a`.

    >>> _longest_common([1, 2, 3, 2, 4], [1, 3, 5, 2])
    [(0, 0), (2, 1), (3, 3)]
    """
    if max(len(a), len(b)) > _MOST_COMPARED:
        return []
    where: dict[int, int] = {}
    for place, value in enumerate(a):
        where[value] = where.get(value, 0) | 1 << place
    ones = state = (1 << len(a)) - 1
    states = []
    for value in b:
        both = state & where.get(value, 0)
        state = (state + both | state - both) & ones
        states.append(state)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if states[j - 1] >> i - 1 & 1:
            i -= 1
        elif j > 1 and not states[j - 2] >> i - 1 & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def in_common(here: Step, there: Step, pairs: dict[int, tuple[Places, Places]]) -> tuple[int, int]:
    """How many calls that tell steps apart two steps have in common, by thread `pairs`, and of how many."""
    common = sum(int(here.get(thread, NONE).tells[places].sum()) for thread, (places, _) in pairs.items())
    return common, max(sum(int(calls.tells.sum()) for calls in step.values()) for step in (here, there))
