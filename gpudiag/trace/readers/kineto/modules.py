"""Which module of the model each operator worked for, by marks of modules' calls and what autograd says of operators.

    forward    gpudiag.module:Net/fc (Linear) ├────────────────────────┤
                 aten::linear                    ├──────────────────┤     innermost mark around it: fc
                   aten::addmm, sequence 7          ├────────────┤
    backward   …evaluate_function: AddmmBackward0, sequence 7, of thread 1 ├──────────┤   that of sequence 7: fc
                 aten::mm                                                    ├──────┤

An operator that is recorded for autograd says which number the next node made in its thread will have; of several that
say the same the last made it. A backward operator says which node it carries out, and in which thread that was made;
that thread is called otherwise there than in the rest of the trace, and is the one that made most of those nodes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import EventKind, EventTable, Module, ModuleWork

#: As training processes write it (`MarkedModules`); what a damaged file has instead is a module by its whole text.
_MARK = re.compile(r"gpudiag\.module:(?P<root>[^/]*)/(?P<path>.*) \((?P<kind>[^()]*)\)", re.DOTALL)
_NONE = -1
#: (module, in backward), of a row or of what encloses it.
_Place = tuple[int, bool]


class Autograd(NamedTuple):
    """What operators say of autograd's nodes, as columns.

    Attributes:
        row: the operator's row.
        sequence: the node's number in its thread.
        forward_thread: the thread that made the node, where this carries out its backward; else 0.
    """

    row: NDArray[np.int64]
    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int64]


def module_work(table: EventTable, nodes: Autograd) -> ModuleWork:
    """What each operator and mark worked for.

    Args:
        table: the events, with marks of modules.
        nodes: what its operators say of autograd.
    """
    marks = np.flatnonzero(table.kind == EventKind.MODULE)
    names = distinct(table.name[marks]).tolist()
    modules = tuple(_module(table.names[name]) for name in names)
    own = dict(zip(marks.tolist(), np.searchsorted(names, table.name[marks]).tolist(), strict=True))
    rows = table.rows_of(EventKind.OPERATOR, EventKind.MODULE)
    found = _Nesting(own, _made(table, nodes), _carried_out(table, nodes)).places(table, rows)
    module = np.array([place[0] for place in found], np.int32)
    backward = np.array([place[1] for place in found], np.bool_)
    stays = module != _NONE
    return ModuleWork(modules=modules, row=rows[stays].astype(np.int64), module=module[stays], backward=backward[stays])


def _module(name: str) -> Module:
    match = _MARK.fullmatch(name)
    return Module(name, "", "") if match is None else Module(match["root"], match["path"], match["kind"])


def _made(table: EventTable, nodes: Autograd) -> dict[int, tuple[int, int]]:
    """(thread, number) of the node that an operator may have made, by row."""
    made = nodes.forward_thread == 0
    rows = nodes.row[made]
    return dict(
        zip(rows.tolist(), zip(table.thread[rows].tolist(), nodes.sequence[made].tolist(), strict=True), strict=True)
    )


def _carried_out(table: EventTable, nodes: Autograd) -> dict[int, tuple[int, int]]:
    """(thread, number) of the node that an operator carries out, by row."""
    made = nodes.forward_thread == 0
    by_thread = table.thread[nodes.row[made]]
    numbers = {thread: nodes.sequence[made][by_thread == thread] for thread in distinct(by_thread).tolist()}
    found: dict[int, tuple[int, int]] = {}
    for name in distinct(nodes.forward_thread[~made]).tolist():
        mine = nodes.forward_thread == name
        wanted = nodes.sequence[mine]
        thread = max(numbers, key=lambda one: int(np.isin(wanted, numbers[one]).sum()), default=None)
        if thread is not None:
            found |= dict(zip(nodes.row[mine].tolist(), ((thread, number) for number in wanted.tolist()), strict=True))
    return found


class _Nesting:
    """Goes through the rows in order of their starts and remembers what is open in each thread."""

    def __init__(
        self, own: dict[int, int], made: dict[int, tuple[int, int]], carried_out: dict[int, tuple[int, int]]
    ) -> None:
        self._own = own
        self._made = made
        self._carried_out = carried_out
        self._of_node: dict[tuple[int, int], int] = {}

    def places(self, table: EventTable, rows: NDArray[np.intp]) -> list[_Place]:
        """What each of the rows worked for."""
        open_: dict[int, list[tuple[int, _Place]]] = {}
        found: list[_Place] = []
        columns = (rows, table.thread[rows], table.start_ns[rows], table.end_ns[rows])
        for row, thread, start, end in zip(*(column.tolist() for column in columns), strict=True):
            around = open_.setdefault(thread, [])
            while around and around[-1][0] <= start:
                around.pop()
            place = self._place(row, around[-1][1] if around else (_NONE, False))
            around.append((end, place))
            found.append(place)
        return found

    def _place(self, row: int, within: _Place) -> _Place:
        module, backward = within
        if row in self._own:
            return self._own[row], backward
        if row in self._carried_out:
            return self._of_node.get(self._carried_out[row], module), True
        if row in self._made:
            self._of_node[self._made[row]] = module
        return module, backward
