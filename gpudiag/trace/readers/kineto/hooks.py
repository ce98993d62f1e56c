"""A user's communication hook under DistributedDataParallel, which nothing names, by where the engine runs it.

    evaluate_function: torch::autograd::AccumulateGrad ├───────────────────────────────────────────────┤
      torch::autograd::AccumulateGrad                    ├── aten::add_ ──┤
      torch.distributed.ddp.reducer::mul_out                               ├──┤
      aten::to, aten::div, c10d::allreduce_, …  the hook's                     ├────────────────────┤

What the engine runs for a parameter after it has accumulated its gradient is DDP's packing, marked as such, and then
the hook.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, among, distinct, subtract, union
from gpudiag.model.event import EventKind, EventTable, Role, any_of

_EVALUATED = re.compile(r"autograd::engine::evaluate_function: (?:torch::autograd::)?AccumulateGrad$")
_ACCUMULATED = re.compile(r"(?:torch::autograd::)?AccumulateGrad$")
_DDP = re.compile(r"DistributedDataParallel\.forward$|torch(?:::|\.)distributed(?:::|\.).*reducer::")


def with_hooks(table: EventTable) -> NDArray[np.uint8]:
    """uint8[n]: the roles of a table's events, a communication hook's operators `EXCHANGE`."""
    role = table.role
    if not any(_DDP.match(name) for name in table.names):
        return role
    operators = np.flatnonzero((table.kind == int(EventKind.OPERATOR)) & (role == int(Role.OPERATOR)))
    evaluated = _named(table, _EVALUATED, operators)
    accumulated = _named(table, _ACCUMULATED, operators)
    # DDP's packing, a collective handed over, and an optimizer that runs in the backward pass are known as such.
    known = np.flatnonzero(any_of(role, Role.BUCKET_COPY, Role.ENQUEUE, Role.OPTIMIZER))
    role = role.copy()
    for thread in distinct(table.thread[evaluated]).tolist():
        around = _spans(table, evaluated[table.thread[evaluated] == thread])
        own = np.concatenate([rows[table.thread[rows] == thread] for rows in (accumulated, known)])
        hooked = subtract(around, _spans(table, own))
        if len(hooked) == 0:
            continue
        rows = operators[table.thread[operators] == thread]
        slot = np.searchsorted(hooked.start, table.start_ns[rows], side="right") - 1
        rows = rows[(slot >= 0) & (table.end_ns[rows] <= hooked.end[np.maximum(slot, 0)])]
        role[rows[~among(rows, evaluated) & ~among(rows, accumulated)]] = Role.COMMUNICATION
    return role


def _named(table: EventTable, pattern: re.Pattern[str], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    wanted = np.array([pattern.match(name) is not None for name in table.names], np.bool_)
    named: NDArray[np.intp] = rows[wanted[table.name[rows]]]
    return named


def _spans(table: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return union(Intervals(table.start_ns[rows], table.end_ns[rows]))
