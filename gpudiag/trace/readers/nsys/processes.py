"""Build the traces of the training processes in an export."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, HOST, EventKind, EventTable, Role, Trace, in_order
from gpudiag.trace.readers.kineto.event_args import collective_calls
from gpudiag.trace.readers.kineto.roles import roles_of, roles_with_hooks, workload_of
from gpudiag.trace.readers.names import count_unrecorded_graphs, events_named, roles_without_idle_launches
from gpudiag.trace.readers.nsys.capture import CaptureFacts, read_capture
from gpudiag.trace.readers.nsys.database import Database
from gpudiag.trace.readers.nsys.devices import trace_per_device
from gpudiag.trace.readers.nsys.nccl_payloads import Payloads, collective_facts, read_payloads
from gpudiag.trace.readers.nsys.nvtx_names import framework_of, is_enqueue, user_role
from gpudiag.trace.readers.nsys.steps import with_step_marks
from gpudiag.trace.readers.nsys.tables import (
    UNKNOWN_PROCESS,
    EventColumns,
    TableReader,
    TooManyEventsError,
    processes_of,
)
from gpudiag.trace.readers.nsys.waits import Synchronizations, event_waits, read_synchronizations
from gpudiag.trace.readers.nsys.window import ChosenWindow, choose_window
from gpudiag.trace.unpack import ReadLimits, free_memory_bytes
from gpudiag.units import NS_PER_S

#: Maximum number of events that are read from one export: dozens of steps of a host with eight GPUs.
MOST_EVENTS = 4_000_000
#: Bytes of memory per event: 54 in the columns, and several times as many while they are split and sorted.
MEMORY_PER_EVENT = 400
#: Processes with less than this share of the busiest process's device work do not count as training.
_LEAST_SHARE = 0.01
#: Beginnings of names of tables, and a table that every export with events has.
_TABLES = ("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "NVTX_EVENTS", "META_DATA_EXPORT")
_STRINGS = {"StringIds"}
_DAY_NS = 86_400 * NS_PER_S
_RECORD = "Record with `nsys profile --trace=cuda,nvtx,osrt`, while steps run, and export the report again."
_TOO_MANY = "Record fewer steps: nsys profile --capture-range=cudaProfilerApi, or --delay and --duration."


def read_export(path: Path, shown: str, limits: ReadLimits, most_events: int = MOST_EVENTS) -> tuple[Trace, ...]:
    """Return one trace per process with device work, or per device if a process's devices communicate.

    Without device work, return one trace per process with host events. Traces are sorted by GPU. If an export has more
    than `most_events` events, only its middle is read. The other arguments, and the errors, are those of `Reader.read`.
    """
    free = free_memory_bytes()
    if free is not None:
        most_events = max(1, min(most_events, free // MEMORY_PER_EVENT))
    with Database(path, shown, limits) as database:
        if not is_export(database):
            raise NotATraceError(
                f"{shown} is an SQLite database without tables of Nsight Systems",
                "Give an export of Nsight Systems: nsys export --type sqlite REPORT.nsys-rep",
            )
        window = choose_window(database, most_events)
        reader = TableReader(database, window.window if window else None, most_events)
        try:
            events = reader.read()
        except TooManyEventsError:
            raise TooLargeError(f"{shown} has more than {most_events} events in one place", _TOO_MANY) from None
        capture = read_capture(database)
        payloads = read_payloads(database, window.window if window else None, most_events)
        synchronizations = read_synchronizations(database, window.window if window else None, most_events)
    notes = list(_notes(shown, window, events, reader.graph_launches, capture))
    events = _possible(events, notes)
    if not len(events.kind):
        raise _nothing_recorded(shown)
    processes = _training_processes(_with_process(events, shown), notes)
    export = _Export(shown, tuple(reader.names), capture, synchronizations, payloads)
    traces = [
        (capture.gpu(process, device), process, trace)
        for process, rows in processes
        for device, trace in trace_per_device(_trace(process, rows, export))
    ]
    traces.sort(key=lambda entry: entry[:2])
    first, *others = (trace for _, _, trace in traces)
    return (msgspec.structs.replace(first, notes=(*notes, *first.notes)), *others)


def is_export(database: Database) -> bool:
    """Return whether a database has tables of Nsight Systems."""
    return any(name.startswith(_TABLES) for name in database.tables) and bool(_STRINGS & set(database.tables))


def _nothing_recorded(shown: str) -> UnreadableInputError:
    return UnreadableInputError(f"{shown} has no events of CUDA or NVTX: nothing was recorded", _RECORD)


def _notes(
    shown: str, window: ChosenWindow | None, events: EventColumns, graph_launches: int, capture: CaptureFacts
) -> list[str]:
    """Return notes about events outside of `window` (None if all were read), and the problems that nsys reported."""
    notes = []
    if window is not None:
        begin, end = (time / NS_PER_S for time in window.window)
        notes.append(
            f"of about {window.events / 1e6:.1f} million events in {shown}, the {len(events.kind) / 1e6:.1f} million "
            f"from {begin:.3f} s to {end:.3f} s of the capture were read, which bounds memory"
        )
    if graph_launches:
        notes.append(
            f"{graph_launches} launches of CUDA graphs are recorded as a whole, so that their kernels are unknown: "
            "record with nsys profile --cuda-graph-trace=node"
        )
    return [*notes, *capture.problems]


def _possible(events: EventColumns, notes: list[str]) -> EventColumns:
    """Return the events with possible times: no end before the start, and within a day of the other events."""
    length = events.end - events.start  # overflows to a negative length in damaged files
    possible = (events.end >= events.start) & (length >= 0) & (length <= _DAY_NS) & (np.abs(events.start) < 2**61)
    if possible.any():  # differences of the possible starts fit int64
        median = int(np.median(events.start[possible]))
        possible &= np.abs(events.start - median) <= _DAY_NS
    if possible.all():
        return events
    notes.append(f"{int((~possible).sum())} events had impossible times (off by more than a day) and were left out")
    return events.chosen(possible)


def _with_process(events: EventColumns, shown: str) -> EventColumns:
    """Return the events with the process of device work, which old exports do not state; unchanged if none is stated.

    Raises:
        UnreadableInputError: the process of device work is unknown, and there are several processes.
    """
    unknown = events.process == UNKNOWN_PROCESS
    if not unknown.any() or unknown.all():
        return events
    calling = processes_of(events, (EventKind.RUNTIME,))
    calling.pop(UNKNOWN_PROCESS, None)
    if len(calling) > 1 and unknown[np.isin(events.kind, [int(kind) for kind in DEVICE_WORK])].any():
        raise UnreadableInputError(
            f"{shown} has {len(calling)} processes, and does not say whose work the devices did",
            "Export the report again with Nsight Systems 2021 or later.",
        )
    known = events.process[~unknown]
    process = next(iter(calling), int(known[0]))  # the calling process, or without calls, that of another host event
    return events._replace(process=np.where(unknown, process, events.process))


def _training_processes(events: EventColumns, notes: list[str]) -> list[tuple[int, EventColumns]]:
    """Return (process, its events) for processes with much device work, or if there is none, with many host events."""
    working = processes_of(events, DEVICE_WORK) or processes_of(events, EventKind)
    least = max(working.values()) * _LEAST_SHARE
    chosen = [process for process, count in working.items() if count >= least]
    if len(chosen) < len(working):
        notes.append(
            f"{len(working) - len(chosen)} processes with less than {100 * _LEAST_SHARE:.0f} % of the device work of "
            "the busiest one were left out"
        )
    if len(chosen) == 1 and (events.process == chosen[0]).all():
        return [(chosen[0], events)]
    return [(process, events.chosen(events.process == process)) for process in chosen]


class _Export(NamedTuple):
    """Parts of an export that all processes share."""

    shown: str
    names: tuple[str, ...]
    capture: CaptureFacts
    synchronizations: Synchronizations
    payloads: Payloads


def _trace(process: int, events: EventColumns, export: _Export) -> Trace:
    """Return the trace of a process, with all of its devices."""
    capture = export.capture
    table, first_ns = _table(events, export.names)
    table, step_marks = with_step_marks(table)
    facts = collective_facts(table, process, first_ns, export.payloads)
    ordinals = distinct(table.device[table.device != HOST]).tolist()
    return Trace(
        source=export.shown,
        framework=framework_of(table.names),
        events=table,
        origin_ns=max(capture.begun_ns + first_ns, 1),  # positive marks the clock as known: one clock for all processes
        rank=capture.mpi_ranks.get(process),
        host=capture.host,
        device_names={device: name for device in ordinals if (name := capture.gpu_name(process, device))},
        collectives=collective_calls(table, facts, {}),
        step_marks=step_marks,
        event_waits=event_waits(table, process, export.synchronizations),
        uses_devices=bool((table.kind == EventKind.RUNTIME).any()),
        workload=workload_of(table),
        unrecorded_graphs=count_unrecorded_graphs(table),
    )


def _table(events: EventColumns, names: tuple[str, ...]) -> tuple[EventTable, int]:
    """Return (sorted table with roles and only the names in use, first start in ns)."""
    used = distinct(events.name)
    name = np.searchsorted(used, events.name).astype(np.int32)
    names = tuple(names[index] for index in used.tolist())
    roles = roles_of(events.kind, name, names)
    first_ns = int(events.start.min())
    columns: dict[str, NDArray[np.generic]] = {
        "kind": events.kind,
        "name": name,
        "start_ns": events.start - first_ns,
        "end_ns": events.end - first_ns,
        "thread": events.thread,
        "device": events.device,
        "correlation": events.correlation,
        "size_bytes": events.size,
        "role": roles.role,
        "direction": roles.direction,
        "host_memory": roles.host_memory,
    }
    table, _ = in_order(columns, names)
    for assign in (_library_and_user_roles, roles_with_hooks, roles_without_idle_launches):
        table = msgspec.structs.replace(table, role=assign(table))
    return table, first_ns


def _library_and_user_roles(table: EventTable) -> NDArray[np.uint8]:
    """Return the role column, with roles added for NCCL's ranges and for users' ranges with usual names."""
    role = table.role.copy()
    operators = table.kind == EventKind.OPERATOR
    role[operators & events_named(table, is_enqueue)] = Role.ENQUEUE
    roles = np.array([user_role(name) for name in table.names], np.uint8)[table.name]
    of_user = (table.kind == EventKind.ANNOTATION) & (table.role == Role.OTHER) & (roles != Role.OTHER)
    role[of_user] = roles[of_user]
    return role
