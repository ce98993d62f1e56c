"""What the events of TensorFlow's host threads are.

A function call of TensorFlow goes through several layers on the training thread, each an event around the next, and the
innermost waits until executor threads have run the function: in

    python3      train │ EagerExecute │ EagerKernelExecute │ KernelAndDeviceFunc::Run                              │
    tf_Compute                                                  ExecutorState::Process (launch launch launch …) │

the training thread does nothing from the first launch to the end, though four of its events say otherwise. So on that
thread only events without others inside are work.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import EventKind, Role
from gpudiag.trace.readers.cuda_calls import role_of_call
from gpudiag.trace.readers.xspace.communication_names import CommunicationNames
from gpudiag.trace.readers.xspace.planes import CORRELATION, STEP, Plane

#: The iterator of a tf.data pipeline gives its next element: where the training thread waits when input is late.
INPUT = re.compile(r"Iterator(?:GetNext|GetNextAsOptional|GetNextSync)(?:Op)?::DoCompute")
#: Layers of a function call; innermost ones where a low trace level records nothing inside.
_LAYERS = re.compile(r"KernelAndDeviceFunc::Run|EagerKernelExecute|EagerExecute|EagerLocalExecute|TFE_Py_Execute")
#: The layer within which executors run a function.
_FUNCTION = "KernelAndDeviceFunc::Run"
_OWN_INPUT = re.compile(r"gpudiag\.input$")
_PYTHON = re.compile(r"\$")  # the Python tracer: "$file.py:12 function"

#: Ops in which executor threads wait for the other processes, named `scope/of/op:Type`.
_COLLECTIVE = re.compile(r"[^:]*:Collective(Reduce|Gather|ReduceScatter|AllToAll)(?:V\d)?$")
_OPERATIONS = {
    "Reduce": "all_reduce",
    "Gather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
}

NO_STEP = -1


def host_operation(name: str) -> str | None:
    """The collective that an op of this name does between processes; None where it does none.

    >>> host_operation("gpudiag.exchange/CollectiveReduceV2:CollectiveReduceV2")
    'all_reduce'
    """
    match = _COLLECTIVE.match(name)
    return _OPERATIONS[match[1]] if match else None


def is_function(name: str) -> bool:
    """Whether an event is a function's run, which ends when all that its executors had to do has."""
    return name == _FUNCTION


def host_kinds(plane: Plane, *, has_devices: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64], int | None]:
    """An `EventKind` and a step number (`NO_STEP`) for every event of a host plane, and the line with the step marks.

    Without devices the training thread stands in for one, and the function calls on it are its work.
    """
    kind = np.full(len(plane.name), EventKind.OPERATOR, np.uint8)
    kind[_named(plane, _PYTHON)] = EventKind.PYTHON
    step = plane.whole(STEP, NO_STEP)
    marks = np.flatnonzero(step >= 0)
    training = None
    if len(marks):
        training = int(np.bincount(plane.line[marks]).argmax())
        mine = np.flatnonzero(plane.line == training)
        around = _around_others(plane.start_ns[mine], plane.end_ns[mine])
        if not has_devices:
            waits = _named(plane, INPUT)[mine]
            around = _around_others(plane.start_ns[mine], plane.end_ns[mine], waits)
        kind[mine[around]] = EventKind.ANNOTATION
    if has_devices:
        kind[_named(plane, _LAYERS)] = EventKind.ANNOTATION
    kind[marks] = EventKind.ANNOTATION
    if CORRELATION in plane.stats:
        kind[plane.stats[CORRELATION][0]] = EventKind.RUNTIME
    overhead = plane.overhead & (kind != EventKind.RUNTIME)
    kind[overhead] = EventKind.OVERHEAD
    return kind, step, training


def host_roles(
    plane: Plane,
    kind: NDArray[np.uint8],
    step: NDArray[np.int64],
    communications: CommunicationNames,
    *,
    has_devices: bool,
) -> NDArray[np.uint8]:
    """uint8[n]: a `Role` for every event of a host plane, but for calls that are known by what they launch."""
    role = np.where(kind == EventKind.OPERATOR, np.uint8(Role.OPERATOR), np.uint8(Role.OTHER))
    if not has_devices:
        communicates = np.array([host_operation(name) is not None for name in plane.names], np.bool_)
        role[communicates[plane.name] & (kind == EventKind.OPERATOR)] = Role.COMMUNICATION
    exchanging = communications.sends(plane) | communications.adds(plane) | communications.receives(plane)
    role[exchanging & (kind == EventKind.OPERATOR)] = Role.COMMUNICATION
    may_wait = np.isin(kind, (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON))
    role[may_wait & (_named(plane, INPUT) | _named(plane, _OWN_INPUT))] = Role.INPUT
    role[(step != NO_STEP) & (kind == EventKind.ANNOTATION)] = Role.STEP_MARK
    calls = kind == EventKind.RUNTIME
    for index in distinct(plane.name[calls]).tolist():
        role[calls & (plane.name == index)] = role_of_call(plane.names[index])
    return role


def _named(plane: Plane, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    names = np.fromiter((pattern.match(name) is not None for name in plane.names), np.bool_, len(plane.names))
    return names[plane.name]


def _around_others(
    start: NDArray[np.int64], end: NDArray[np.int64], inner: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """bool[n]: inside which of the events of one thread another one lies (of those in `inner`, if given)."""
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    counts = np.ones(len(order), np.int64) if inner is None else inner[order].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(counts)])
    # Events of a thread are nested: what starts later, but before the end, lies inside.
    inside = before[np.searchsorted(start, end, side="left")] - before[np.arange(len(order)) + 1]
    found = np.zeros(len(order), np.bool_)
    found[order] = inside > 0
    return found
