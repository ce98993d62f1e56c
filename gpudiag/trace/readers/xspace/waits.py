"""Find the waits of TensorFlow's executor for a device, for which TensorFlow records no event.

Some ops (NcclAllReduce, copies to the host) end on the host only after their work has ended on the device. Only then
are the next ops of the graph launched:

    launches   ── grad grad all-reduce ─┤        nothing        ├─ optimizer optimizer ──
    device        ──── grad ──── grad ──── all-reduce ────┤          ├─ optimizer ──
                                                     end of the wait

A pause in the launches for a device is a wait if the last launched work ended in the pause, shortly before launching
resumed. A pause in which the training thread waited for data does not count.

JAX records most waits (`jax_host`), but not `block_until_ready`. Pauses in which JAX's main thread recorded nothing
count as waits in `block_until_ready`. A call of a compiled function also waits until another thread (`H2D Dispatch`)
has copied the arguments of `jax.device_put` to memory from which the device reads:

    python       device_put │ PjitFunction(train_step): waits            launches │
    other thread            │ H2D Dispatch: Transpose::Execute │

In TensorFlow, a wait is for communication if the last launched work was communication. Every pause before an op that
needs tensors from other devices is a wait for communication too, because the copies of the op's inputs had to end
first. The time from a device's last launch in a function to the function's end is such a wait too, if communication
ends in this time.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, intersect, lengths_between, subtract, union
from gpudiag.model.event import HOST, NO_NUMBER, Direction, EventKind, Role
from gpudiag.trace.readers.names import events_named
from gpudiag.trace.readers.xspace.host import is_function
from gpudiag.trace.readers.xspace.jax_host import called_function, copies_arguments
from gpudiag.trace.readers.xspace.process import Process
from gpudiag.units import NS_PER_US

Times = NDArray[np.int64]

#: Names of the executor's waits in the event table.
DEVICE_WAIT = "tf.executor waits for the device"
COMMUNICATION_WAIT = "tf.executor waits for communication"
#: Name of an unrecorded wait of JAX's main thread.
UNRECORDED_WAIT = "wait for the device"
#: Name of JAX's wait for the copy of a call's arguments in host memory, from which they are sent to the device.
ARGUMENTS_WAIT = "copy of the batch in host memory, for jax.device_put"

#: Minimum pause that counts as a wait. Shorter pauses are overhead of Python and the executor.
_PAUSE_NS = 500 * NS_PER_US
#: Minimum pause that counts as a wait before an op that needs communicated tensors; other ops are 5 to 10 µs apart.
SHORT_PAUSE_NS = 20 * NS_PER_US
#: Maximum time from the end of the awaited work to the next launch, in which a polling thread notices the end and wakes
#: the other threads. Measured: 0.5 to 0.7 ms with four GPUs.
_SOON_NS = 2_000 * NS_PER_US


class _DeviceLaunches(msgspec.Struct, frozen=True):
    """Rows of the calls that launch a device's work, sorted by start, and the row of each call's work."""

    calls: NDArray[np.intp]
    work: NDArray[np.intp]


class AddedWaits(msgspec.Struct, frozen=True):
    """Waits of the training thread that the profile has not recorded as such, as columns of equal length."""

    spans: Intervals
    role: NDArray[np.uint8]
    name: tuple[str, ...]


def executor_waits(process: Process, device: int, calls: NDArray[np.intp]) -> AddedWaits:
    """Return the waits of TensorFlow's executor for the GPU `device` or for communication.

    `calls` has the rows of the calls that give the GPU work, sorted by start.
    """
    launches = _launches(process, device, calls)
    if len(launches.calls) < 2:  # no pause between launches
        return _added()
    pauses, last = _pauses(process, launches)
    communicated = process.trace.events.role[launches.work[last]] == Role.COMMUNICATION
    communications = union(
        Intervals(pauses.start[communicated], _until_launched(process, launches, pauses.end[communicated])),
        _before_needs(process, launches),
        _at_function_ends(process, launches),
    )
    others = subtract(union(Intervals(pauses.start[~communicated], pauses.end[~communicated])), communications)
    return _added((communications, Role.COMMUNICATION, COMMUNICATION_WAIT), (others, Role.SYNCHRONIZATION, DEVICE_WAIT))


def unrecorded_jax_waits(process: Process, device: int, calls: NDArray[np.intp]) -> AddedWaits:
    """Return the waits of JAX's main thread for a GPU or a call's arguments; arguments are as in `executor_waits`."""
    launches = _launches(process, device, calls)
    if len(launches.calls) < 2:  # no pause between launches
        return _added()
    pauses, _ = _pauses(process, launches)
    waits = subtract(union(pauses), _recorded(process))
    long = waits.end - waits.start >= _PAUSE_NS
    return _added(
        (Intervals(waits.start[long], waits.end[long]), Role.SYNCHRONIZATION, UNRECORDED_WAIT),
        (_argument_copies(process), Role.INPUT, ARGUMENTS_WAIT),
    )


def split_jax_waits(process: Process, calls: NDArray[np.intp]) -> tuple[NDArray[np.intp], AddedWaits]:
    """Split the main thread's waits for a value at the copies of this value to the host.

    Another thread waits for the value's computation, and then calls the copy:

        main thread    np.asarray(jax.Array): ── waits for the computation ──┤     ├─ waits for the copy ─┤
        other thread                                                         │ copy │

    Args:
        process: the whole process.
        calls: rows of the calls that give a GPU work.

    Returns:
        The rows of the waits that have copies, and the parts of these waits without the copies' calls.
    """
    events = process.trace.events
    on_main_thread = events.thread == process.training_thread
    waits = np.flatnonzero(on_main_thread & (events.role == Role.SYNCHRONIZATION))
    copies = calls[(events.role[calls] == Role.COPY) & ~on_main_thread[calls]]
    first = np.searchsorted(events.start_ns[copies], events.start_ns[waits])
    after = np.searchsorted(events.start_ns[copies], events.end_ns[waits])
    waits = waits[first < after]
    copied = union(Intervals(events.start_ns[copies], events.end_ns[copies]))
    parts = []
    for row in waits.tolist():
        whole = Intervals(events.start_ns[row : row + 1], events.end_ns[row : row + 1])
        parts.append((subtract(whole, copied), Role.SYNCHRONIZATION, events.name_of(row)))
    return waits, _added(*parts)


def joined_waits(*parts: AddedWaits) -> AddedWaits:
    """Return the waits of all parts."""
    spans = Intervals(*(np.concatenate([getattr(part.spans, end) for part in parts]) for end in ("start", "end")))
    return AddedWaits(
        spans, np.concatenate([part.role for part in parts]), tuple(name for part in parts for name in part.name)
    )


def _added(*groups: tuple[Intervals, Role, str]) -> AddedWaits:
    """Return waits from groups of (spans, role, name)."""
    if not groups:
        return AddedWaits(EMPTY, np.empty(0, np.uint8), ())
    return joined_waits(
        *(AddedWaits(spans, np.full(len(spans), role, np.uint8), (name,) * len(spans)) for spans, role, name in groups)
    )


def _launches(process: Process, device: int, calls: NDArray[np.intp]) -> _DeviceLaunches:
    """Return the calls that have work on a GPU with the same correlation."""
    events = process.trace.events
    work = events.rows_with(events.correlation[calls], np.flatnonzero(events.device == device))
    has_work = work != NO_NUMBER
    return _DeviceLaunches(calls[has_work], work[has_work])


def _pauses(process: Process, launches: _DeviceLaunches) -> tuple[Intervals, NDArray[np.intp]]:
    """Return (waits for device work, index of the launch of the awaited work in `launches`).

    A wait lasts from the last launch before a pause to the end of all work launched until then. Index i of the local
    arrays is the pause before launch i + 1. Pauses with a wait for input are left out.
    """
    events = process.trace.events
    start, end = events.start_ns[launches.calls], events.end_ns[launches.calls]
    work_end = events.end_ns[launches.work]
    launched = np.maximum.accumulate(end)[:-1]  # end of all launches before the pause
    done = np.maximum.accumulate(work_end)[:-1]  # end of the work of these launches
    last = np.maximum.accumulate(np.where(work_end[:-1] == done, np.arange(len(done)), 0))
    resumed = start[1:]
    waits = (resumed - launched >= _PAUSE_NS) & (done > launched) & (done <= resumed) & (resumed - done <= _SOON_NS)
    begin, until = launched[waits], done[waits]
    fetching = np.flatnonzero(events.role == Role.INPUT)
    input_waits = union(Intervals(events.start_ns[fetching], events.end_ns[fetching]))
    bounds = np.stack([begin, until], axis=1).ravel()
    without_input = np.ones(len(begin), np.bool_)
    if len(bounds):
        # Every second length lies within a pause; the others are between pauses.
        input_ns = lengths_between(intersect(input_waits, union(Intervals(begin, until))), bounds)[::2]
        without_input = input_ns < _PAUSE_NS
    return Intervals(begin[without_input], until[without_input]), last[waits][without_input]


def _recorded(process: Process) -> Intervals:
    """Return the times in which the main thread recorded an operator or a call."""
    events = process.trace.events
    rows = events.rows_of(EventKind.OPERATOR, EventKind.RUNTIME)
    rows = rows[events.thread[rows] == process.training_thread]
    return union(Intervals(events.start_ns[rows], events.end_ns[rows]))


def _argument_copies(process: Process) -> Intervals:
    """Return the times in which a call of a compiled function waits for the copy of its arguments in host memory."""
    events = process.trace.events
    on_main_thread = events.thread == process.training_thread
    copies = np.flatnonzero(events_named(events, copies_arguments) & ~on_main_thread)
    calls = np.flatnonzero(events_named(events, called_function) & on_main_thread)
    copied, called = (union(Intervals(events.start_ns[rows], events.end_ns[rows])) for rows in (copies, calls))
    return intersect(copied, called)


def _until_launched(process: Process, launches: _DeviceLaunches, time: Times) -> Times:
    """Return, for each time, the time of the next launch, or the end of the function if the function ends earlier.

    A time after the last launch and function is unchanged. If no function was recorded, all times are unchanged.
    """
    begin, end = functions(process)
    if not len(begin):
        return time
    start = process.trace.events.start_ns[launches.calls]
    resumed = start[np.minimum(np.searchsorted(start, time), len(start) - 1)]
    slot = np.maximum(np.searchsorted(begin, time, side="right") - 1, 0)
    return np.maximum(np.minimum(resumed, end[slot]), time)


def _before_needs(process: Process, launches: _DeviceLaunches) -> Intervals:
    """Return the pauses before work that needs communicated tensors. Copies to the host need no such tensors."""
    events = process.trace.events
    needs = process.needs_communication[launches.work] & (events.direction[launches.work] != Direction.DEVICE_TO_HOST)
    launched = np.maximum.accumulate(events.end_ns[launches.calls])[:-1]
    resumed = events.start_ns[launches.calls][1:]
    waits = needs[1:] & (resumed - launched >= SHORT_PAUSE_NS)
    return Intervals(launched[waits], resumed[waits])


def _at_function_ends(process: Process, launches: _DeviceLaunches) -> Intervals:
    """Return the times from a device's last launch in a function to the function's end in which a communication ends.

    The communication may be of another device, because a function ends when all devices have ended.
    """
    events = process.trace.events
    begin, end = functions(process)
    slot = np.searchsorted(events.start_ns[launches.calls], end) - 1
    launched = np.maximum.accumulate(events.end_ns[launches.calls])[np.maximum(slot, 0)]
    waits = (slot >= 0) & (launched >= begin) & (end - launched >= SHORT_PAUSE_NS)
    communicated = np.sort(events.end_ns[process.needs_communication])
    waits &= np.searchsorted(communicated, end) > np.searchsorted(communicated, launched)
    return Intervals(launched[waits], end[waits])


def functions(process: Process) -> tuple[Times, Times]:
    """Return begins and ends (ns) of the functions that the training thread ran, sorted. Functions do not nest."""
    events = process.trace.events
    on_thread = (events.device == HOST) & (events.thread == process.training_thread)
    runs = np.flatnonzero(events_named(events, is_function) & on_thread)
    return events.start_ns[runs], events.end_ns[runs]
