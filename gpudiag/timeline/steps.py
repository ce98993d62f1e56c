"""Where the steps of a process begin: marks on the training thread, or else a pattern that repeats."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.model.event import EventKind, EventTable
from gpudiag.model.timeline import HostSteps

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Marks by preference. Each captures the step number where the mark carries one.
_MARKS = (
    ("gpudiag.step", re.compile(r"gpudiag\.step(?:#(\d+))?$")),
    ("ProfilerStep", re.compile(r"ProfilerStep[#*](\d+)?")),
    ("step_num", re.compile(r"[^#]*#step_num=(\d+)#$")),  # TensorFlow's Trace(name, step_num=…, _r=1)
)
_OPTIMIZER = re.compile(r"Optimizer\.step#")

#: Fewer repetitions than this are no pattern.
_FEWEST_REPEATS = 3


def find_steps(events: EventTable, launches: NDArray[np.intp], labels: NDArray[np.int32]) -> HostSteps:
    """Steps of one process, on the trace's own clock.

    Args:
        events: the process's events.
        launches: rows of the runtime calls that launched device work (CPU-only traces: of the top-level ops), by start;
            in them a repeating pattern is looked for when nothing is marked.
        labels: int32[n], for each launch the name of what it launched, as an index into the events' names.
    """
    annotations = events.rows_of(EventKind.ANNOTATION)
    for source, pattern in _MARKS:
        marks = _marked(events, annotations, source, pattern)
        if marks is not None:
            return marks
    optimizer = _after_optimizer(events, annotations)
    if optimizer is not None:
        return optimizer
    pattern_steps = _repeating(events, launches, labels)
    if pattern_steps is not None:
        return pattern_steps
    begin = int(events.start_ns[launches[0]]) if len(launches) else 0
    end = int(events.end_ns[launches].max()) if len(launches) else 0
    thread = _busiest_thread(events, launches)
    return HostSteps(
        start=np.array([begin], np.int64), number=np.zeros(1, np.int64), end=end, source="none", thread=thread
    )


def _marked(
    events: EventTable, annotations: NDArray[np.intp], source: str, pattern: re.Pattern[str]
) -> HostSteps | None:
    numbers: dict[int, int | None] = {}
    for index, name in enumerate(events.names):
        found = pattern.match(name)
        if found:
            numbers[index] = int(found[1]) if found[1] is not None and len(found[1]) < 18 else None
    if not numbers:
        return None
    rows = annotations[np.isin(events.name[annotations], list(numbers))]
    if len(rows) == 0:
        return None
    # A name may be marked on several threads; the training thread is the one with the most marks.
    threads, counts = np.unique(events.thread[rows], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    rows = rows[events.thread[rows] == thread]
    carried = [numbers[int(events.name[row])] for row in rows]
    known = [number for number in carried if number is not None]
    # Numbers that repeat (a mark reused, two loops in one capture) order nothing; count instead.
    ordered = len(known) == len(carried) and all(a < b for a, b in pairwise(known))
    number = np.array(known if ordered else range(len(rows)), np.int64)
    return HostSteps(
        start=events.start_ns[rows],
        number=number,
        end=int(events.end_ns[rows].max()),
        source=source,
        thread=thread,
    )


def _after_optimizer(events: EventTable, annotations: NDArray[np.intp]) -> HostSteps | None:
    """Steps that begin where an optimizer step ends: every training loop has that, marked or not.

    Gradient accumulation and several optimizers per step still give a true period: with several optimizers, the one
    that steps first after a pause defines it only if all step equally often; so one optimizer's name is taken.
    """
    names = [index for index, name in enumerate(events.names) if _OPTIMIZER.match(name)]
    rows = annotations[np.isin(events.name[annotations], names)]
    if len(rows) == 0:
        return None
    values, counts = np.unique(events.name[rows], return_counts=True)
    rows = rows[events.name[rows] == values[np.argmax(counts)]]
    thread = int(events.thread[rows[0]])
    rows = rows[events.thread[rows] == thread]
    if len(rows) < _FEWEST_REPEATS:
        return None
    return HostSteps(
        start=events.end_ns[rows],
        number=np.arange(len(rows), dtype=np.int64),
        end=int(events.end_ns[rows[-1]]),
        source="optimizer",
        thread=thread,
    )


def _repeating(events: EventTable, launches: NDArray[np.intp], names: NDArray[np.int32]) -> HostSteps | None:
    """Steps from what the process launches: names that come back after the same number of launches each time.

    Each name votes for the distance between its occurrences, if that is constant. One step holds the distance that most
    distinct names vote for; among equals the longest, as names that occur twice in a step vote for half of it.
    """
    count = len(launches)
    if count < 2 * _FEWEST_REPEATS:
        return None
    order = np.argsort(names, kind="stable")
    _, first = np.unique(names[order], return_index=True)
    votes: dict[int, list[NDArray[np.intp]]] = {}
    for begin, end in zip(first, [*first[1:], count], strict=True):
        positions = order[begin:end]
        if len(positions) < _FEWEST_REPEATS:
            continue
        distance = np.diff(positions)
        period = int(np.median(distance))
        if period > 1 and np.all(np.abs(distance - period) <= max(2, period // 50)):
            votes.setdefault(period, []).append(positions)
    # Periods within 2 % are one period, told apart by a launch more or less.
    best = max(votes, key=lambda p: (sum(len(votes[q]) for q in votes if abs(q - p) <= p // 50), p), default=None)
    if best is None:
        return None
    anchor = min(votes[best], key=lambda positions: int(positions[0]))
    if (anchor[-1] - anchor[0] + best) < count // 2:
        return None  # it repeats in a small part of the trace only
    rows = launches[anchor]
    return HostSteps(
        start=events.start_ns[rows],
        number=np.arange(len(rows), dtype=np.int64),
        end=int(events.end_ns[launches].max()),
        source="pattern",
        thread=int(events.thread[rows[0]]),
    )


def _busiest_thread(events: EventTable, rows: NDArray[np.intp]) -> int:
    if len(rows) == 0:
        rows = events.rows_of(EventKind.OPERATOR, EventKind.ANNOTATION)
    if len(rows) == 0:
        return 0
    threads, counts = np.unique(events.thread[rows], return_counts=True)
    return int(threads[np.argmax(counts)])
