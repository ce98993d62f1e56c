"""Find the beginnings of a process's steps by marks, the optimizer, ranges, or a repeating pattern."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import ALIKE_OPS, FEWEST_REPEATS, PERIOD_APART
from gpudiag.intervals import Intervals, median, union, within
from gpudiag.model.event import NO_NUMBER, EventKind, EventTable, Role, StepMarks, Trace
from gpudiag.model.timeline import HostSteps


def marked_steps(trace: Trace) -> HostSteps | None:
    """Return the steps of one process from its marks, else its optimizer, on the trace's clock; None without both."""
    return _marked(trace.events, trace.step_marks[0]) if trace.step_marks else _after_optimizer(trace.events)


def steps_of_launches(events: EventTable, launches: NDArray[np.intp], labels: NDArray[np.int32]) -> HostSteps:
    """Return the steps of a process without marks: enclosing ranges, else a repeating pattern, else one step.

    Args:
        events: the process's events. Events and returned steps are on the trace's own clock.
        launches: rows of the runtime calls that launched device work (CPU-only traces: of the top-level ops), by start.
        labels: int32[n], name of the work that each launch launched, as an index into the events' names.
    """
    steps = _enclosing(events, launches) or _repeating(events, launches, labels)
    if steps is not None:
        return steps
    begin = int(events.start_ns[launches[0]]) if len(launches) else 0
    end = int(events.end_ns[launches].max()) if len(launches) else 0
    thread = _busiest_thread(events, launches)
    return HostSteps(
        start=np.array([begin], np.int64), number=np.zeros(1, np.int64), end=end, source="none", thread=thread
    )


def _enclosing(events: EventTable, launches: NDArray[np.intp]) -> HostSteps | None:
    """Return steps from ranges around launches: user-defined ranges, or else calls of a root module.

    Only the outermost ranges are used, because repeated layers inside a range are not steps. Of several names, the
    repeating name with the longest total time is used. Its ranges must contain most launches of their thread.
    """
    thread = _busiest_thread(events, launches)
    launched = events.start_ns[launches[events.thread[launches] == thread]]
    on_thread = events.thread == thread
    for named in (
        (events.kind == EventKind.ANNOTATION) & (events.role == Role.OTHER),
        events.role == Role.MODULE_CALL,
    ):
        rows = _outermost(events, np.flatnonzero(on_thread & named))
        rows = rows[events.end_ns[rows] > events.start_ns[rows]]
        values, position, counts = np.unique(events.name[rows], return_inverse=True, return_counts=True)
        if len(values) > 1 and counts.max() > 1:
            total = np.bincount(position, weights=events.end_ns[rows] - events.start_ns[rows])
            rows = rows[position == int(np.argmax(np.where(counts > 1, total, -1.0)))]
        held = within(union(Intervals(events.start_ns[rows], events.end_ns[rows])), launched)
        # Work between a range and the next range belongs to the first, for example its backward pass and update.
        tiled = _launch_alike(events.start_ns[rows], launched) and np.count_nonzero(
            launched >= events.start_ns[rows[0]]
        )
        if len(rows) and max(np.count_nonzero(held), tiled) > len(launched) / 2:
            return HostSteps(
                start=events.start_ns[rows],
                number=np.arange(len(rows), dtype=np.int64),
                end=int(events.end_ns[rows].max()),
                source="range",
                thread=thread,
                ends_known=True,
            )
    return None


def _launch_alike(begins: NDArray[np.int64], launched: NDArray[np.int64]) -> bool:
    """Return whether equally many launches follow each begin, which excludes, for example, collectives of one step."""
    if len(begins) < FEWEST_REPEATS:
        return False
    counts = np.diff(np.searchsorted(launched, begins))
    usual = median(counts)
    return usual > 0 and bool((np.abs(counts - usual) <= ALIKE_OPS * usual).all())


def _outermost(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Select the rows that no other row encloses; rows are of one thread, by start (ties: longer first)."""
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, events.end_ns[rows]))[:-1]
    return rows[events.start_ns[rows] >= reach]


def _marked(events: EventTable, marks: StepMarks) -> HostSteps:
    # A step may be marked on several threads; the thread with the most marks is the training thread.
    threads, counts = np.unique(events.thread[marks.row], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    on_thread = events.thread[marks.row] == thread
    rows, number = marks.row[on_thread], marks.number[on_thread]
    # Repeated numbers (a reused mark, two loops in one capture) define no order, so the steps are counted instead.
    ordered = bool((number != NO_NUMBER).all()) and bool((np.diff(number) > 0).all())
    return HostSteps(
        start=events.start_ns[rows],
        number=number if ordered else np.arange(len(rows)),
        end=int(events.end_ns[rows].max()),
        source=marks.source,
        thread=thread,
        ends_known=True,
    )


def _after_optimizer(events: EventTable) -> HostSteps | None:
    """Return steps that begin where an optimizer step ends, which every training loop has.

    The period is correct with gradient accumulation too. If there are several optimizers, the most frequent is used.
    """
    rows = np.flatnonzero(events.role == Role.OPTIMIZER)
    if len(rows) == 0:
        return None
    values, counts = np.unique(events.name[rows], return_counts=True)
    rows = rows[events.name[rows] == values[np.argmax(counts)]]
    thread = int(events.thread[rows[0]])
    rows = rows[events.thread[rows] == thread]
    if len(rows) < FEWEST_REPEATS:
        return None
    return HostSteps(
        start=events.end_ns[rows],
        number=np.arange(len(rows), dtype=np.int64),
        end=int(events.end_ns[rows[-1]]),
        source="optimizer",
        thread=thread,
    )


def _repeating(events: EventTable, launches: NDArray[np.intp], names: NDArray[np.int32]) -> HostSteps | None:
    """Return steps from names of launches that recur after a constant number of launches.

    Each name votes for the distance between its occurrences, if it is constant. The distance with most votes is the
    step's length. Of equal votes, the longest wins, because names that occur twice in a step vote for half of it.
    """
    count = len(launches)
    if count < 2 * FEWEST_REPEATS:
        return None
    order = np.argsort(names, kind="stable")
    _, first = np.unique(names[order], return_index=True)
    votes: dict[int, list[NDArray[np.intp]]] = {}
    for begin, end in zip(first, [*first[1:], count], strict=True):
        positions = order[begin:end]
        if len(positions) < FEWEST_REPEATS:
            continue
        distance = np.diff(positions)
        period = int(median(distance))
        if period > 1 and np.all(np.abs(distance - period) <= max(2, int(PERIOD_APART * period))):
            votes.setdefault(period, []).append(positions)
    # Similar periods count as one period, because the number of launches of a step may vary slightly.
    best = max(
        votes, key=lambda p: (sum(len(votes[q]) for q in votes if abs(q - p) <= int(PERIOD_APART * p)), p), default=None
    )
    if best is None:
        return None
    anchor = min(votes[best], key=lambda positions: int(positions[0]))
    if (anchor[-1] - anchor[0] + best) < count // 2:
        return None  # the pattern covers only a small part of the trace
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
