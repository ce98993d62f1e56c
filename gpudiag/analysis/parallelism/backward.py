"""Find the backward passes of a thread from the operators that autograd runs."""

from __future__ import annotations

import numpy as np

from gpudiag.intervals import Intervals, union
from gpudiag.model.event import EventKind, EventTable

_EVALUATES = "autograd::engine::evaluate_function"


def backward_passes(events: EventTable, shift_ns: int) -> Intervals:
    """Return the times, shifted by `shift_ns`, in which autograd runs operators, as sorted disjoint intervals."""
    rows = events.rows_of(EventKind.OPERATOR)
    of_autograd = np.array([name.startswith(_EVALUATES) for name in events.names], np.bool_)
    rows = rows[of_autograd[events.name[rows]]]
    return union(Intervals(events.start_ns[rows] + shift_ns, events.end_ns[rows] + shift_ns))
