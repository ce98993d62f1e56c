"""Calls that copy and hold the host until their own copy is done: two nodes each, where it begins and where it returns.

A call that copies from or to pageable memory returns when its copy has ended, or microseconds before. Told by what
ended while it was there, as of other calls that wait, it would wait for nothing where the device was idle, and all of
the copy would be work of the host: 12 of 68 ms on a host that launches too slowly to keep its device busy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps
from gpudiag.model.timeline import UNKNOWN


class OwnCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of calls, of which those that wait for their own copy have two, one behind the other; columns of length n.

    Attributes:
        call: which call each node is of.
        begins: the call begins here; its other node is where it returns.
        part, op: of a node where such a call returns, its copy: the position of the part, and the index there; `NONE`.
        end: when that copy ended; -inf of other nodes.
    """

    call: NDArray[np.int64]
    begins: NDArray[np.bool_]
    part: NDArray[np.int64]
    op: NDArray[np.int64]
    end: NDArray[np.float64]

    @property
    def returns(self) -> NDArray[np.bool_]:
        """bool[n]: the node is where a call returns that waited for its own copy."""
        waited: NDArray[np.bool_] = self.part != NONE
        return waited

    def instead_of(
        self, part: NDArray[np.int64], op: NDArray[np.int64], end: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """What each node waits for, and when that ended: its own copy, or else what is given."""
        returns = self.returns
        return np.where(returns, self.part, part), np.where(returns, self.op, op), np.where(returns, self.end, end)

    def as_begun(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Events before each node, with those of a call that waits for its own copy where it begins: it works there."""
        begun = np.where(self.returns, 0, events)
        begun[:-1] += np.where(self.begins[:-1], events[1:], 0)
        return begun


def own_copies(
    parts: Sequence[TrackOps], call_start: NDArray[np.int64], time: NDArray[np.int64], copying: NDArray[np.bool_]
) -> OwnCopies:
    """The nodes of these calls.

    A copy whose call returned during its first half was put aside by the driver: that call did not wait for it.

    Args:
        parts: the process's ops.
        call_start, time: int64[k], when each call began and returned; they returned one after the other.
        copying: bool[k], the call copies, and holds the host.
    """
    part, op, end = np.full(len(time), NONE), np.full(len(time), NONE), np.full(len(time), -np.inf)
    calls = np.flatnonzero(copying)
    calls = calls[np.argsort(call_start[calls], kind="stable")]
    for position, of in enumerate(parts):
        if not len(calls):
            break
        slot = np.minimum(np.searchsorted(call_start[calls], of.launch_time), len(calls) - 1)
        call = calls[slot]
        held = of.host_copy & (of.launch_time != UNKNOWN) & (call_start[call] == of.launch_time)
        held &= np.minimum(of.end, time[call]) - of.start > MOST * (of.end - of.start)
        held &= of.end > end[call]
        ops = np.flatnonzero(held)
        part[call[ops]], op[call[ops]], end[call[ops]] = position, ops, of.end[ops]
    two = part != NONE
    of_node = np.repeat(np.arange(len(time)), np.where(two, 2, 1))
    begins = two[of_node] & np.append(of_node[1:] == of_node[:-1], [False] if len(of_node) else [])
    return OwnCopies(
        call=of_node,
        begins=begins,
        part=np.where(begins, NONE, part[of_node]),
        op=np.where(begins, NONE, op[of_node]),
        end=np.where(begins, -np.inf, end[of_node]),
    )
