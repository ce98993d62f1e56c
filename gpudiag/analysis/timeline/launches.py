"""Join the device work of one process to the host calls that launched it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.communication import Spans, copies_beside, launched_within
from gpudiag.model.event import NO_CORRELATION, EventKind, EventTable, Role
from gpudiag.model.timeline import UNKNOWN, DeviceOps, OpClass

_CLASS_OF = np.full(256, OpClass.COPY, np.uint8)
_CLASS_OF[Role.COMPUTE] = OpClass.COMPUTE
_CLASS_OF[Role.BUCKET_COPY] = OpClass.COMPUTE
_CLASS_OF[Role.COMMUNICATION] = OpClass.COMMUNICATION


def runtime_call_of(events: EventTable, device_rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for each device row the row of the runtime call with its correlation id, or `UNKNOWN`.

    Several device ops may share one call (a CUDA graph launch). If several calls have the same id (a runtime call and
    the driver call inside it), the first to start is used, which is the outer call.
    """
    calls = events.rows_of(EventKind.RUNTIME)
    calls = calls[events.correlation[calls] != NO_CORRELATION]
    if len(calls) == 0:
        return np.full(len(device_rows), UNKNOWN, np.intp)
    order = np.argsort(events.correlation[calls], kind="stable")
    ids = events.correlation[calls[order]]
    wanted = events.correlation[device_rows]
    slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    known = (ids[slot] == wanted) & (wanted != NO_CORRELATION)
    return np.where(known, calls[order[slot]], UNKNOWN)


def device_ops(
    events: EventTable,
    rows: NDArray[np.intp],
    calls: NDArray[np.intp],
    *,
    step_start: NDArray[np.int64],
    shift_ns: int,
    communication: Spans,
) -> DeviceOps:
    """Return the work of one device, with launch and step.

    Args:
        events: the process's events, on the trace's own clock.
        rows: rows of the device's work.
        calls: for each device row, the row of the call that launched it, or `UNKNOWN`.
        step_start: int64[n], sorted starts of the host steps, on the trace's own clock.
        shift_ns: offset from the trace's clock to the common clock, added to every time.
        communication: host threads' communication spans, on the trace's own clock. Copies launched then are part of it.
    """
    known = calls != UNKNOWN
    launch_start = np.where(known, events.start_ns[calls], 0)
    launch_end = np.where(known, events.end_ns[calls], 0)
    # The step is the last mark at or before the launch; none if launched before the first mark or the capture.
    step = np.where(known, np.searchsorted(step_start, launch_start, side="right") - 1, UNKNOWN)
    op_class = _CLASS_OF[events.role[rows]]
    thread = np.where(known, events.thread[calls], UNKNOWN)
    beside = np.where(known, launched_within(communication, thread, launch_start), copies_beside(events, rows))
    copied = (op_class == OpClass.COPY) & beside
    op_class = np.where(copied, np.uint8(OpClass.COMMUNICATION), op_class)
    return DeviceOps(
        start=events.start_ns[rows] + shift_ns,
        end=events.end_ns[rows] + shift_ns,
        op_class=op_class,
        row=rows.astype(np.int64),
        stream=events.thread[rows],
        step=step.astype(np.int32),
        launch_start=np.where(known, launch_start + shift_ns, UNKNOWN),
        launch_end=np.where(known, launch_end + shift_ns, UNKNOWN),
        launch_thread=thread,
    )
