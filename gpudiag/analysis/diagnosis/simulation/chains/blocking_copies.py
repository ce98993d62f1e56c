"""Model copy calls that block the host until their copy is complete as two nodes: start and return of the call.

A call that copies from or to pageable memory returns when its copy has ended, or some microseconds earlier. Other
blocking calls wait for an op that ended during the call. By that rule such a copy would wait for nothing if the device
was idle, and the whole copy would count as host work: 12 of 68 ms on a host that launches too slowly to keep its device
busy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Times
from gpudiag.analysis.diagnosis.simulation.streams import TrackOps
from gpudiag.model.timeline import UNKNOWN


class BlockingCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of calls; a call that waits for its own copy has two, one behind the other; columns of length n.

    Attributes:
        call: the call of each node.
        begins: whether such a call begins here; its other node is where it returns.
        track, op: where such a call returns, its copy: the position of the track and the op there; else `NONE`.
        end: when that copy ended; -inf at other nodes.
    """

    call: Index
    begins: NDArray[np.bool_]
    track: Index
    op: Index
    end: Times

    @property
    def returns(self) -> NDArray[np.bool_]:
        """bool[n]: whether a call returns here that waited for its own copy."""
        returns: NDArray[np.bool_] = self.track != NONE
        return returns

    def or_else(self, track: Index, op: Index, end: Times) -> tuple[Index, Index, Times]:
        """Return what each node waits for, and when that ended: its own copy, or else what is given."""
        returns = self.returns
        return np.where(returns, self.track, track), np.where(returns, self.op, op), np.where(returns, self.end, end)

    def move_to_begin(self, events: Index) -> Index:
        """Move the event counts of calls that wait for their own copy to the node where they begin and work."""
        moved = np.where(self.returns, 0, events)
        moved[:-1] += np.where(self.begins[:-1], events[1:], 0)
        return moved


def blocking_copies(
    ops: Sequence[TrackOps], call_start: Index, time: Index, copying: NDArray[np.bool_]
) -> BlockingCopies:
    """Return the nodes of these calls.

    A call that returned during the first half of its copy did not wait: the driver had staged the copy.

    Args:
        ops: the ops of the process's tracks.
        call_start, time: int64[k], begin and return of each call, in order of their returns.
        copying: bool[k], whether the call copies and blocks the host.
    """
    track, op, end = np.full(len(time), NONE), np.full(len(time), NONE), np.full(len(time), -np.inf)
    calls = np.flatnonzero(copying)
    calls = calls[np.argsort(call_start[calls], kind="stable")]
    for position, track_ops in enumerate(ops if len(calls) else ()):
        slot = np.minimum(np.searchsorted(call_start[calls], track_ops.launch_time), len(calls) - 1)
        call = calls[slot]
        held = track_ops.host_copy & (track_ops.launch_time != UNKNOWN) & (call_start[call] == track_ops.launch_time)
        held &= np.minimum(track_ops.end, time[call]) - track_ops.start > MOST * (track_ops.end - track_ops.start)
        held &= track_ops.end > end[call]
        copies = np.flatnonzero(held)
        track[call[copies]], op[call[copies]], end[call[copies]] = position, copies, track_ops.end[copies]
    two_nodes = track != NONE
    call_of_node = np.repeat(np.arange(len(time)), np.where(two_nodes, 2, 1))
    begins = two_nodes[call_of_node]
    begins[:-1] &= call_of_node[1:] == call_of_node[:-1]
    begins[-1:] = False
    return BlockingCopies(
        call=call_of_node,
        begins=begins,
        track=np.where(begins, NONE, track[call_of_node]),
        op=np.where(begins, NONE, op[call_of_node]),
        end=np.where(begins, -np.inf, end[call_of_node]),
    )
