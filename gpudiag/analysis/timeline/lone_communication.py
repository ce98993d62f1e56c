"""Give communication of a single participant the roles of ordinary work.

`torch.nn.DataParallel` on one device, DistributedDataParallel with one rank, and collectives in groups of one rank have
ranges, hooks and kernels of communication, but move nothing between devices. The events of such communication get the
roles of ordinary operators, kernels and copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, Direction, EventKind, Role, Trace, any_of
from gpudiag.model.large_jobs.packed_events import plain

_OF_COMMUNICATION = (Role.COMMUNICATION, Role.BUCKET_COPY, Role.ENQUEUE)
#: Kind of event → its role if communication has a single participant.
_ORDINARY_ROLE = np.full(256, Role.OTHER, np.uint8)
_ORDINARY_ROLE[EventKind.OPERATOR] = Role.OPERATOR
_ORDINARY_ROLE[EventKind.KERNEL] = Role.COMPUTE
_ORDINARY_ROLE[EventKind.COPY] = Role.COPY
_ORDINARY_ROLE[EventKind.MEMSET] = Role.COPY


def without_lone_communication(traces: Sequence[Trace], world_size: int | None = None) -> list[Trace]:
    """Give communication of a single participant the roles of ordinary work.

    `world_size` is the number of ranks, if the job's traces do not contain it.
    """
    return [_without_lone(trace, alone=_is_alone(traces, trace, world_size)) for trace in traces]


def _is_alone(traces: Sequence[Trace], trace: Trace, world_size: int | None) -> bool:
    """Return whether the job is one process with one device, and nothing in its trace indicates other ranks."""
    stated = trace.world_size or world_size
    if len(traces) > 1 or (stated or 1) > 1 or (trace.rank or 0) > 0:
        return False
    if len(_devices(trace)) > 1 or bool((trace.events.direction == Direction.PEER).any()):
        return False
    if stated == 1:
        return True
    # If the group of a collective is unknown, the job may have other ranks whose traces are missing.
    return all(len(call.group_ranks) == 1 for call in trace.collectives)


def _devices(trace: Trace) -> NDArray[np.int16]:
    """Return the devices with work in the trace."""
    return distinct(trace.events.device[trace.events.rows_of(*DEVICE_WORK)])


def _without_lone(trace: Trace, *, alone: bool) -> Trace:
    """Give ordinary roles to collectives in groups of one rank, or if `alone` to all communication of the trace."""
    lone = [call for call in trace.collectives if alone or len(call.group_ranks) == 1]
    if not lone and not alone:
        return trace
    if len(_devices(trace)) > 1:
        return trace  # its devices communicate with each other, although they belong to one rank
    events = plain(trace.events)
    role = events.role
    rows: NDArray[np.intp] = np.array([call.row for call in lone], np.intp)
    if alone:
        rows = np.flatnonzero(any_of(role, *_OF_COMMUNICATION))
    if len(rows) == 0 and not lone:
        return trace
    changed = role.copy()
    changed[rows] = _ORDINARY_ROLE[events.kind[rows]]
    return msgspec.structs.replace(
        trace,
        events=msgspec.structs.replace(events, role=changed),
        collectives=() if alone else tuple(call for call in trace.collectives if len(call.group_ranks) != 1),
    )
