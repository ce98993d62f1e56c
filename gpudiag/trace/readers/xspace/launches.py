"""Match the runtime calls of a host with the device work that they launched, and name the calls after this work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION, Direction, EventKind, Role
from gpudiag.trace.readers.names import is_graph_launch, is_memset
from gpudiag.trace.readers.xspace.planes import Plane

#: (kind, direction) of launched work → (name, role) of the driver call; TensorFlow names calls after the launched work.
_CALLS = {
    (EventKind.KERNEL, Direction.NONE): ("cuLaunchKernel", Role.LAUNCH),
    (EventKind.MEMSET, Direction.NONE): ("cuMemsetAsync", Role.LAUNCH),
    (EventKind.COPY, Direction.NONE): ("cuMemcpyAsync", Role.COPY),
    (EventKind.COPY, Direction.HOST_TO_DEVICE): ("cuMemcpyHtoDAsync", Role.COPY),
    (EventKind.COPY, Direction.DEVICE_TO_HOST): ("cuMemcpyDtoHAsync", Role.COPY),
    (EventKind.COPY, Direction.DEVICE_TO_DEVICE): ("cuMemcpyDtoDAsync", Role.COPY),
    (EventKind.COPY, Direction.HOST_TO_HOST): ("cuMemcpyHtoHAsync", Role.COPY),
    (EventKind.COPY, Direction.PEER): ("cuMemcpyPeerAsync", Role.COPY),
}


class LaunchedWork(msgspec.Struct, frozen=True):
    """Columns of device work, sorted by correlation. `feeds_devices` marks copies of a loader's batches."""

    correlation: NDArray[np.int64]
    kind: NDArray[np.uint8]
    device: NDArray[np.int16]
    direction: NDArray[np.uint8]
    feeds_devices: NDArray[np.bool_]


class LaunchColumns(msgspec.Struct, frozen=True):
    """Columns of a host's plane for `name_calls`, which changes `name`, `role` and `target` in place.

    `target` is the GPU for which a call launches work; -1 for other events.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    role: NDArray[np.uint8]
    target: NDArray[np.int64]
    correlation: NDArray[np.int64]


def launched_work(columns: Mapping[str, NDArray[Any]]) -> LaunchedWork:
    """Return the work of all GPUs that has a correlation, sorted by correlation. Without GPUs, `columns` is empty."""
    if not columns:
        none = np.empty(0, np.uint8)
        return LaunchedWork(none.astype(np.int64), none, none.astype(np.int16), none, none.astype(np.bool_))
    order = np.argsort(columns["correlation"], kind="stable")
    order = order[columns["correlation"][order] != NO_CORRELATION]
    return LaunchedWork(**{field: columns[field][order] for field in LaunchedWork.__struct_fields__})


def name_calls(plane: Plane, launched: LaunchedWork, names: Callable[[str], int], columns: LaunchColumns) -> None:
    """Give the calls of a host's plane the name and role of their launch, and the GPU for which they launch work.

    Args:
        plane: the host's plane.
        launched: the work of all GPUs.
        names: returns the index of a name among the names of all planes.
        columns: columns of the plane's events.
    """
    calls = np.flatnonzero(columns.kind == EventKind.RUNTIME)
    if not len(calls) or not len(launched.correlation):
        return
    correlation = columns.correlation[calls]
    slot = np.minimum(np.searchsorted(launched.correlation, correlation), len(launched.correlation) - 1)
    has_work = launched.correlation[slot] == correlation
    # CUPTI gives a correlation only to calls that launch. If a call with a correlation has no device work, the work
    # was lost, unless the call is a memset or a graph launch, which may launch nothing.
    may_be_idle = plane.named(lambda text: is_memset(text) or is_graph_launch(text))
    lost = calls[~has_work & (correlation != NO_CORRELATION) & ~may_be_idle[calls]]
    call_name, call_role = _CALLS[EventKind.KERNEL, Direction.NONE]
    columns.name[lost], columns.role[lost] = names(call_name), call_role
    calls, slot = calls[has_work], slot[has_work]
    columns.target[calls] = launched.device[slot]
    of_hip = plane.named(lambda text: text.startswith("hip"))  # HIP calls keep their names
    for (work_kind, direction), (call_name, call_role) in _CALLS.items():
        rows = calls[(launched.kind[slot] == work_kind) & (launched.direction[slot] == direction)]
        if len(rows):
            columns.role[rows] = call_role
            columns.name[rows[~of_hip[rows]]] = names(call_name)
    # A loader waits for its copy to the host in a separate thread, so the call itself does not wait.
    fed = launched.feeds_devices[slot] & (launched.direction[slot] == Direction.DEVICE_TO_HOST)
    columns.role[calls[fed]] = Role.LAUNCH
