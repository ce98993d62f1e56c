"""Where TensorFlow's executor waited for a device: TensorFlow records no event for it.

Some ops end on the host only when their work has ended on the device: NcclAllReduce, and copies to the host. What comes
after them in the graph is launched then:

    launches   ── grad grad all-reduce ─┤        nothing        ├─ optimizer optimizer ──
    device        ──── grad ──── grad ──── all-reduce ────┤          ├─ optimizer ──
                                                     the wait's end

So a wait is a pause in launching for a device in which the last work that had been launched there ended, shortly before
launching went on; unless the training thread waited for data meanwhile.

It is an exchange that the executor waits for where that work was one, and in every pause before an op that needs what
other devices sent: its inputs' copies, on other devices and the host, had to end first. After a device's last launch,
the function ends when the others' exchanges have.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, intersect, lengths_between, subtract, union
from gpudiag.model.event import HOST, NO_CORRELATION, Direction, Role
from gpudiag.trace.readers.xspace.host import is_function
from gpudiag.trace.readers.xspace.process import Process
from gpudiag.units import NS_PER_US

Times = NDArray[np.int64]

#: The names that these waits are given.
DEVICE_WAIT = "tf.executor waits for the device"
COMMUNICATION_WAIT = "tf.executor waits for an exchange"

#: Shorter pauses are Python's and the executor's own.
_PAUSE_NS = 500 * NS_PER_US
#: The same where it is known that the op after it waited. Ops that wait for nothing are launched 5 to 10 µs apart.
SHORT_PAUSE_NS = 20 * NS_PER_US
#: Launching goes on this soon after the work's end: a polling thread notices it and wakes others. Measured: 0.5 to
#: 0.7 ms with four GPUs.
_SOON_NS = 2_000 * NS_PER_US


class _Launches(msgspec.Struct, frozen=True):
    """The n calls that launch a device's work, by start, and the row of the work of each."""

    calls: NDArray[np.intp]
    work: NDArray[np.intp]


def executor_waits(process: Process, device: int, calls: NDArray[np.intp]) -> tuple[Intervals, NDArray[np.uint8]]:
    """When the executor waited for this GPU or for an exchange, and the role of each of these waits.

    Args:
        process: the process.
        device: which GPU.
        calls: rows of the calls that give it work, by start.
    """
    launches = _launches(process, device, calls)
    if len(launches.calls) < 2:
        return EMPTY, np.empty(0, np.uint8)
    pauses, last = _pauses(process, launches)
    of_communication = process.trace.events.role[launches.work[last]] == Role.COMMUNICATION
    communications = union(
        Intervals(pauses.start[of_communication], _until_launched(process, launches, pauses.end[of_communication])),
        _before_needs(process, launches),
        _at_function_ends(process, launches),
    )
    others = subtract(union(Intervals(pauses.start[~of_communication], pauses.end[~of_communication])), communications)
    roles = [
        np.full(len(communications), Role.COMMUNICATION, np.uint8),
        np.full(len(others), Role.SYNCHRONIZATION, np.uint8),
    ]
    return (
        Intervals(
            np.concatenate([communications.start, others.start]), np.concatenate([communications.end, others.end])
        ),
        np.concatenate(roles),
    )


def _launches(process: Process, device: int, calls: NDArray[np.intp]) -> _Launches:
    events = process.trace.events
    work = np.flatnonzero((events.device == device) & (events.correlation != NO_CORRELATION))
    work = work[np.argsort(events.correlation[work], kind="stable")]
    if not len(work):
        return _Launches(work, work)
    slot = np.minimum(np.searchsorted(events.correlation[work], events.correlation[calls]), len(work) - 1)
    found = events.correlation[work[slot]] == events.correlation[calls]
    return _Launches(calls[found], work[slot[found]])


def _pauses(process: Process, launches: _Launches) -> tuple[Intervals, NDArray[np.intp]]:
    """Waits for the work that was launched last, each from the last launch to that work's end; and which that was."""
    events = process.trace.events
    start, end = events.start_ns[launches.calls], events.end_ns[launches.calls]
    ends = events.end_ns[launches.work]
    reach = np.maximum.accumulate(end)[:-1]
    done = np.maximum.accumulate(ends)[:-1]
    last = np.maximum.accumulate(np.where(ends[:-1] == done, np.arange(len(done)), 0))
    following = start[1:]
    waits = (following - reach >= _PAUSE_NS) & (done > reach) & (done <= following) & (following - done <= _SOON_NS)
    begin, until = reach[waits], done[waits]
    fetching = np.flatnonzero(events.role == Role.INPUT)
    waiting = union(Intervals(events.start_ns[fetching], events.end_ns[fetching]))
    bounds = np.stack([begin, until], axis=1).ravel()
    own = np.ones(len(begin), np.bool_)
    if len(bounds):
        own = lengths_between(intersect(waiting, union(Intervals(begin, until))), bounds)[::2] < _PAUSE_NS
    return Intervals(begin[own], until[own]), last[waits][own]


def _until_launched(process: Process, launches: _Launches, time: Times) -> Times:
    """When, in the same function, a thread that noticed each of these ends had woken others and these launched."""
    begin, end = functions(process)
    if not len(begin):
        return time
    start = process.trace.events.start_ns[launches.calls]
    following = start[np.minimum(np.searchsorted(start, time), len(start) - 1)]
    slot = np.maximum(np.searchsorted(begin, time, side="right") - 1, 0)
    return np.maximum(np.minimum(following, end[slot]), time)


def _before_needs(process: Process, launches: _Launches) -> Intervals:
    """The pauses before work that needs what was exchanged. What is sent to the host needs nothing from elsewhere."""
    events = process.trace.events
    needs = process.needs_communication[launches.work] & (events.direction[launches.work] != Direction.DEVICE_TO_HOST)
    reach = np.maximum.accumulate(events.end_ns[launches.calls])[:-1]
    following = events.start_ns[launches.calls][1:]
    waits = needs[1:] & (following - reach >= SHORT_PAUSE_NS)
    return Intervals(reach[waits], following[waits])


def _at_function_ends(process: Process, launches: _Launches) -> Intervals:
    """From the device's last launch in a function to its end, where exchanges of other devices go on meanwhile."""
    events = process.trace.events
    begin, end = functions(process)
    slot = np.searchsorted(events.start_ns[launches.calls], end) - 1
    reach = np.maximum.accumulate(events.end_ns[launches.calls])[np.maximum(slot, 0)]
    mine = (slot >= 0) & (reach >= begin) & (end - reach >= SHORT_PAUSE_NS)
    exchanged = np.sort(events.end_ns[process.needs_communication])
    mine &= np.searchsorted(exchanged, end) > np.searchsorted(exchanged, reach)
    return Intervals(reach[mine], end[mine])


def functions(process: Process) -> tuple[Times, Times]:
    """Begin and end of each function that the training thread ran, by begin; none lies within another."""
    events = process.trace.events
    function = np.array([is_function(name) for name in events.names], np.bool_)[events.name]
    runs = np.flatnonzero(function & (events.device == HOST) & (events.thread == process.training_thread))
    return events.start_ns[runs], events.end_ns[runs]
