"""Find the module for which each operator works, from marks of modules' calls and numbers of autograd's nodes.

    forward    gpudiag.module:Net/fc (Linear) ├────────────────────────┤
                 aten::linear                    ├──────────────────┤     innermost mark around it: fc
                   aten::addmm, sequence 7          ├────────────┤
    backward   …evaluate_function: AddmmBackward0, sequence 7, of thread 1 ├──────────┤   module of sequence 7: fc
                 aten::mm                                                    ├──────┤

A forward operator has the number of the next autograd node that its thread makes. Of several operators with the same
number, the last one makes the node. A backward operator has the number of the node that it executes, and autograd's
number of the thread that made the node. Autograd and the trace number threads differently. Therefore each of autograd's
thread numbers is matched to the thread of the trace that made most of the nodes executed under this number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import EventKind, EventTable, Module, ModuleWork

#: A mark as training processes write it (`MarkedModules`). Any other text counts as a module's name.
_MARK = re.compile(r"gpudiag\.module:(?P<root>[^/]*)/(?P<path>.*) \((?P<kind>[^()]*)\)", re.DOTALL)
_NONE = -1  # no module
#: (index of the module, whether in backward).
_Work = tuple[int, bool]
#: An autograd node: (thread, number).
_Node = tuple[int, int]


class AutogradNodes(NamedTuple):
    """Numbers of autograd nodes on operators, as columns.

    Attributes:
        row: the operator's row.
        sequence: the node's number in its thread.
        forward_thread: autograd's number of the thread that made the node, for operators that execute nodes; else 0.
    """

    row: NDArray[np.int64]
    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int64]


def module_work(table: EventTable, nodes: AutogradNodes) -> ModuleWork:
    """Return the module of each operator and mark inside a module, from marks and the autograd nodes of operators."""
    marks = np.flatnonzero(table.kind == EventKind.MODULE)
    names = distinct(table.name[marks]).tolist()  # sorted
    modules = tuple(_parse_mark(table.names[name]) for name in names)
    marked = dict(zip(marks.tolist(), np.searchsorted(names, table.name[marks]).tolist(), strict=True))
    rows = table.rows_of(EventKind.OPERATOR, EventKind.MODULE)
    work = _Nesting(marked, _made_nodes(table, nodes), _executed_nodes(table, nodes)).work(table, rows)
    module = np.array([index for index, _ in work], np.int32)
    backward = np.array([in_backward for _, in_backward in work], np.bool_)
    kept = module != _NONE
    return ModuleWork(modules=modules, row=rows[kept].astype(np.int64), module=module[kept], backward=backward[kept])


def _parse_mark(name: str) -> Module:
    match = _MARK.fullmatch(name)
    return Module(name, "", "") if match is None else Module(match["root"], match["path"], match["kind"])


def _made_nodes(table: EventTable, nodes: AutogradNodes) -> dict[int, _Node]:
    """Return row of a forward operator → node (thread, number) that it may have made."""
    made = nodes.forward_thread == 0
    rows = nodes.row[made].tolist()
    return dict(zip(rows, zip(table.thread[rows].tolist(), nodes.sequence[made].tolist(), strict=True), strict=True))


def _executed_nodes(table: EventTable, nodes: AutogradNodes) -> dict[int, _Node]:
    """Return row of a backward operator → node (thread, number) that it executes."""
    made = nodes.forward_thread == 0
    made_on = table.thread[nodes.row[made]]
    numbers = {thread: nodes.sequence[made][made_on == thread] for thread in distinct(made_on).tolist()}
    executed: dict[int, _Node] = {}
    for forward_thread in distinct(nodes.forward_thread[~made]).tolist():
        chosen = nodes.forward_thread == forward_thread
        wanted = nodes.sequence[chosen]
        # The thread of the trace that made most of the wanted nodes.
        thread = max(numbers, key=lambda thread: int(np.isin(wanted, numbers[thread]).sum()), default=None)
        if thread is not None:
            for row, number in zip(nodes.row[chosen].tolist(), wanted.tolist(), strict=True):
                executed[row] = (thread, number)
    return executed


class _Nesting:
    """Find each row's module by visiting rows in order of start, with a stack of enclosing rows per thread.

    `marked` maps rows of marks to indices of modules. `made` and `executed` map rows to nodes.
    """

    def __init__(self, marked: dict[int, int], made: dict[int, _Node], executed: dict[int, _Node]) -> None:
        self._marked = marked
        self._made = made
        self._executed = executed
        self._module_of_node: dict[_Node, int] = {}

    def work(self, table: EventTable, rows: NDArray[np.intp]) -> list[_Work]:
        """Return the module for which each row worked, and whether it did so in backward."""
        open_by_thread: dict[int, list[tuple[int, _Work]]] = {}
        result: list[_Work] = []
        columns = (rows, table.thread[rows], table.start_ns[rows], table.end_ns[rows])
        for row, thread, start, end in zip(*(column.tolist() for column in columns), strict=True):
            enclosing = open_by_thread.setdefault(thread, [])
            while enclosing and enclosing[-1][0] <= start:
                enclosing.pop()
            work = self._work(row, enclosing[-1][1] if enclosing else (_NONE, False))
            enclosing.append((end, work))
            result.append(work)
        return result

    def _work(self, row: int, parent: _Work) -> _Work:
        """Return a row's work from the enclosing row's work (`parent`); store the module of a node that the row made.

        A row that executes an autograd node works for the module of the row that made the node. If that row is unknown,
        the module is that of the enclosing row.
        """
        module, backward = parent
        if row in self._marked:
            return self._marked[row], backward
        if row in self._executed:
            return self._module_of_node.get(self._executed[row], module), True
        if row in self._made:
            self._module_of_node[self._made[row]] = module
        return module, backward
