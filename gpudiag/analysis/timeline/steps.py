"""Find the steps of a process, and the device windows in which they are measured."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import ALIKE_OPS, AT_ONCE_NS, FEWEST_REPEATS, PERIOD_APART
from gpudiag.intervals import Intervals, median, outermost, union, within
from gpudiag.model.event import NO_NUMBER, EventKind, EventTable, Role, StepMarks, Trace
from gpudiag.model.timeline import DeviceOps, HostSteps

Times = NDArray[np.int64]

_THREE = 3


def marked_steps(trace: Trace) -> HostSteps | None:
    """Return the steps of a process from its step marks, else from its optimizer's steps; None if it has neither."""
    return _marked(trace.events, trace.step_marks[0]) if trace.step_marks else _after_optimizer(trace.events)


def steps_of_launches(events: EventTable, launches: NDArray[np.intp], labels: NDArray[np.int32]) -> HostSteps:
    """Return the steps of a process without marks: enclosing ranges, else a repeating pattern, else one step.

    Args:
        events: the process's events. Events and returned steps are on the trace's own clock.
        launches: rows of the runtime calls that launched device work (CPU-only: of the top-level ops), sorted by start.
        labels: int32[n], name of the work of each launch, as an index into the events' names.
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
    """Return steps from ranges around launches: user-defined ranges, else calls of the whole model, else None.

    Only the outermost ranges are used, because repeated layers inside a range are not steps. If ranges have several
    names, the repeating name with the longest total time is used. Its ranges must contain most launches of the busiest
    thread. Launches between ranges count too if about equally many launches follow the begin of each range.
    """
    thread = _busiest_thread(events, launches)
    launched = events.start_ns[launches[events.thread[launches] == thread]]
    on_thread = events.thread == thread
    for named in ((events.kind == EventKind.ANNOTATION) & (events.role == Role.OTHER), events.role == Role.MODULE_CALL):
        rows = np.flatnonzero(on_thread & named)
        rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
        rows = rows[events.end_ns[rows] > events.start_ns[rows]]
        values, position, counts = np.unique(events.name[rows], return_inverse=True, return_counts=True)
        if len(values) > 1 and counts.max() > 1:
            total = np.bincount(position, weights=events.end_ns[rows] - events.start_ns[rows])
            rows = rows[position == int(np.argmax(np.where(counts > 1, total, -1.0)))]
        held = within(union(Intervals(events.start_ns[rows], events.end_ns[rows])), launched)
        # Work between two ranges belongs to the first range, for example the backward pass after a forward range.
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
    """Return whether about equally many launches follow each begin, as they do if each range begins a step."""
    if len(begins) < FEWEST_REPEATS:
        return False
    counts = np.diff(np.searchsorted(launched, begins))
    usual = median(counts)
    return usual > 0 and bool((np.abs(counts - usual) <= ALIKE_OPS * usual).all())


def _marked(events: EventTable, marks: StepMarks) -> HostSteps:
    """Return the steps that begin at the training thread's marks."""
    # A step may be marked on several threads; the thread with the most marks is the training thread.
    threads, counts = np.unique(events.thread[marks.row], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    on_thread = events.thread[marks.row] == thread
    rows, number = marks.row[on_thread], marks.number[on_thread]
    # If numbers repeat (a reused mark, two loops in one recording), the steps are numbered anew.
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
    """Return steps that begin where a step of the optimizer ends; None for fewer than `FEWEST_REPEATS` of these.

    These steps are correct with gradient accumulation too. Of several optimizers, the most frequent optimizer is used.
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
    """Return steps from names of launches that recur after a constant number of launches; None if none recurs so.

    A name that recurs at a constant distance (number of launches) votes for this distance. The distance with most votes
    is the step's length. If votes are equal, the longest distance wins, because names that occur twice per step vote
    for half a step. Steps begin at the name that is launched first among the names with this distance.
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
        # A period of 1 is a series of equal launches. Also in short steps, distances may differ by two launches.
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


class Windows(msgspec.Struct, frozen=True):
    """k windows without gaps: window i is [bounds[i], bounds[i + 1]) in ns and has the step number steps[i]."""

    bounds: Times
    steps: NDArray[np.int64]


def device_windows(ops: DeviceOps, steps: HostSteps) -> Windows:
    """Return the windows of one device.

    The window of a step lasts from its first device op to the first device op of the next step. The first and the last
    step are omitted: the first contains work launched before the recording, and the last has no end. For example:

        step      #3        #4        #5        #6        #7
        first op  21.8 ms   53.1      84.3      115.5     146.7

    The windows are [53.1, 84.3) for #4, [84.3, 115.5) for #5 and [115.5, 146.7) for #6. If only two steps are recorded,
    the first step is the window; if only one step is recorded, all work is the window. If two or three steps give only
    one window, `_two_steps` looks for a second window.
    """
    known = np.flatnonzero(ops.step >= 0)[::-1]
    launched = np.flatnonzero(np.bincount(ops.step[known]))
    if len(launched) == 0:
        return _everything(ops.start, ops.end)
    first = np.empty(len(steps), np.int64)
    first[ops.step[known]] = ops.start[known]  # ops are in reverse order, so that each step keeps its first op
    # A copy that was launched late but ran early must not make a step begin before its predecessor.
    first = np.maximum.accumulate(first[launched])
    numbers = steps.number[launched]
    windows = _tile(first, numbers, int(ops.end.max()))
    if len(first) in {2, 3} and len(windows.steps) == 1 and bool((np.diff(first) > 0).all()):
        return _two_steps(ops, steps, first, launched) or windows
    return windows


def _two_steps(ops: DeviceOps, steps: HostSteps, first: Times, launched: NDArray[np.intp]) -> Windows | None:
    """Return the windows of two steps of a recording with two or three steps; None if only one step has known bounds.

    Of three steps, the middle step is used, together with the last step if the device still works after the last mark's
    end, else with the first step. An edge step must have about as many ops as its neighbour.

    The end of the last step is known if its mark has an end. Each step then begins at its mark, or later, when the
    device has finished the earlier steps. A step does not begin at its first op, because this op may follow a wait for
    data. The begin of the first step is known if the device was idle before, so that the step contains no earlier work.

    Args:
        ops: the device's work.
        steps: the steps of the device's process.
        first: begin of the first op of each launched step.
        launched: indices of the `steps` that launched work.
    """
    counts = np.bincount(ops.step[ops.step >= 0], minlength=len(steps))[launched]
    whole = np.abs(counts - counts[1]) <= ALIKE_OPS * counts[1]
    begin_known = bool(whole[0]) and _idle_before(ops, int(first[0]))
    last = ops.step == launched[-1]
    end_known = bool(whole[-1]) and steps.ends_known and steps.end > steps.start[launched[-1]]
    end_known = end_known and bool((ops.launch_end[last] <= steps.end).all())
    numbers = steps.number[launched]
    works_on = int(ops.end[last].max()) > steps.end
    if end_known and (works_on if len(first) == _THREE else begin_known):
        marks = np.append(steps.start[launched], steps.end)
        done = [int(ops.end[(ops.step >= 0) & (ops.step <= step)].max()) for step in launched]
        bounds = np.maximum(marks, [marks[0], *done])[-_THREE:]
        if bool((np.diff(bounds) > 0).all()):
            return Windows(bounds, numbers[-2:])
    return Windows(first, numbers[:-1]) if begin_known and len(first) == _THREE else None


def _idle_before(ops: DeviceOps, begin: int) -> bool:
    """Return whether the device was idle before `begin` and started the op at `begin` right after its launch."""
    opening = ops.start == begin
    before = ops.end[ops.start < begin]
    at_once = bool((begin - ops.launch_end[opening] <= AT_ONCE_NS).any())
    return at_once and (len(before) == 0 or int(before.max()) < begin)


def host_windows(steps: HostSteps) -> Windows:
    """Return the windows of a CPU device track: the training thread's steps, without those that `_tile` omits."""
    return _tile(steps.start, steps.number, steps.end)


def _tile(first: Times, numbers: NDArray[np.int64], end: int) -> Windows:
    """Return the windows of steps that begin at `first` and have the step numbers `numbers`.

    Of three or more steps, the first and the last have no window; of two steps, the last has none. A single step ends
    at `end`. Steps that begin at the same time as the step before are left out.
    """
    opens = np.concatenate([[True], np.diff(first) > 0])
    first, numbers = first[opens], numbers[opens]
    if len(first) >= 3:
        return Windows(first[1:], numbers[1:-1])
    if len(first) == 2:
        return Windows(first, numbers[:1])
    return Windows(np.array([first[0], max(end, int(first[0]) + 1)], np.int64), numbers[:1])


def _everything(start: Times, end: Times) -> Windows:
    bounds = np.array([start.min(), max(int(end.max()), int(start.min()) + 1)], np.int64)
    return Windows(bounds, np.zeros(1, np.int64))


def common_steps(all_windows: list[Windows]) -> list[Windows]:
    """Return the windows of the steps that all device tracks have, so that tracks are compared over the same work.

    Recordings of different ranks start and end at different times. If a track has no window, or no window of a common
    step, all windows stay unchanged.
    """
    if len(all_windows) < 2 or any(len(windows.steps) == 0 for windows in all_windows):
        return all_windows
    low = max(int(windows.steps[0]) for windows in all_windows)
    high = min(int(windows.steps[-1]) for windows in all_windows)
    if low > high:
        return all_windows
    cut = []
    for windows in all_windows:
        a = int(np.searchsorted(windows.steps, low))
        b = int(np.searchsorted(windows.steps, high, side="right"))
        if b <= a:
            return all_windows
        cut.append(Windows(windows.bounds[a : b + 1], windows.steps[a:b]))
    return cut
