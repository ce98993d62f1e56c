"""Reclassify communication of a single participant as compute, copies and host work.

`torch.nn.DataParallel` on one device, DistributedDataParallel in a world of one and collectives in a group of one rank
keep their ranges, hooks and kernels, but move nothing between devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, Direction, EventKind, Role, Trace, any_of

_OF_COMMUNICATION = (Role.COMMUNICATION, Role.BUCKET_COPY, Role.ENQUEUE)
#: Role of an event of each kind if its communication has a single participant.
_ORDINARY_ROLE = np.full(256, Role.OTHER, np.uint8)
_ORDINARY_ROLE[EventKind.OPERATOR] = Role.OPERATOR
_ORDINARY_ROLE[EventKind.KERNEL] = Role.COMPUTE
_ORDINARY_ROLE[EventKind.COPY] = Role.COPY
_ORDINARY_ROLE[EventKind.MEMSET] = Role.COPY


def without_lone_communication(traces: Sequence[Trace], world_size: int | None = None) -> list[Trace]:
    """Give communication of a single participant the roles of ordinary work.

    Args:
        traces: the traces of the job.
        world_size: number of ranks, if the traces do not contain it.
    """
    return [_without_lone(trace, alone=_is_alone(traces, trace, world_size)) for trace in traces]


def _is_alone(traces: Sequence[Trace], trace: Trace, world_size: int | None) -> bool:
    """Return whether the job is one process with one device, and nothing in it indicates other ranks."""
    stated = trace.world_size or world_size
    events = trace.events
    devices = _devices(trace)
    others = len(traces) > 1 or len(devices) > 1 or bool((events.direction == Direction.PEER).any())
    if others or (stated or 1) > 1 or (trace.rank or 0) > 0:
        return False
    if stated == 1:
        return True
    # If the group of a collective is unknown, it may belong to a job whose other traces are missing.
    return all(len(call.group_ranks) == 1 for call in trace.collectives)


def _devices(trace: Trace) -> NDArray[np.int16]:
    """Return the devices with work in the trace."""
    return distinct(trace.events.device[trace.events.rows_of(*DEVICE_WORK)])


def _without_lone(trace: Trace, *, alone: bool) -> Trace:
    if len(_devices(trace)) > 1:
        return trace  # its devices communicate with each other, although they belong to one rank
    lone = [call for call in trace.collectives if alone or len(call.group_ranks) == 1]
    role = trace.events.role
    rows: NDArray[np.intp] = np.array([call.row for call in lone], np.intp)
    if alone:
        rows = np.flatnonzero(any_of(role, *_OF_COMMUNICATION))
    if len(rows) == 0 and not lone:
        return trace
    changed = role.copy()
    changed[rows] = _ORDINARY_ROLE[trace.events.kind[rows]]
    return msgspec.structs.replace(
        trace,
        events=msgspec.structs.replace(trace.events, role=changed),
        collectives=() if alone else tuple(call for call in trace.collectives if len(call.group_ranks) != 1),
    )
