"""Follow the line events of a process to find when each line runs, and its callers.

The time between two events belongs to the line that is current after the first event, and to that line's callers.

Worked example. Line 3 calls `f` at 0 ns. `f` runs its line 8 from 1 ns and returns at 5 ns. Line 4 follows at 6 ns.
Line 3 takes 6 ns, of which 4 ns are in line 8 of `f`.

With a GPU, backward hooks run on autograd's thread while a line of the training thread waits in `backward`. The hooks'
lines count as called from the line that waits.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.source_lines import LineWork
from gpudiag.model.source_lines.log import (
    CALL,
    CALLS,
    INPUT_BEGIN,
    INPUT_END,
    LEAVE,
    PAUSE,
    STEP,
    WORK,
    Events,
    LogSection,
    ProcessLines,
)

Times = NDArray[np.float64]

#: The node for time outside of any line of the user.
ROOT = 0
#: Placeholder for a node while gpudiag itself runs, between two steps.
NO_LINE = -1
#: Number of the training thread.
_TRAINING = -1

#: Kinds of work, rarest first. A line that calls several kinds of work counts as the first of them in this order.
_RAREST_WORK: tuple[LineWork, ...] = ("backward", "optimizer", "input", "forward")


class LineTree:
    """Tree of a process's lines below their callers. A node, given as an index, is a line with its call stack.

    Attributes:
        parent: node of the caller.
        position: (index of the code in the log, line number) of each node.
        work: per node, the number of calls by kind of work.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [ROOT]
        self.position: list[tuple[int, int]] = [(-1, 0)]
        self.work: list[Counter[str]] = [Counter()]
        self._index: dict[tuple[int, int, int], int] = {}

    def node(self, parent: int, code: int, line: int) -> int:
        """Return the node of a line of function `code` (an index) called from node `parent`; add it if it is new."""
        key = (parent, code, line)
        node = self._index.get(key)
        if node is None:
            node = self._index[key] = len(self.parent)
            self.parent.append(parent)
            self.position.append((code, line))
            self.work.append(Counter())
        return node

    def path(self, node: int) -> list[int]:
        """Return the nodes from the outermost caller to `node`, without the root."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]

    def kind(self, node: int) -> LineWork:
        """Return the kind of work that the line itself calls; work that its callees call does not count."""
        calls = self.work[node]
        return next((kind for kind in _RAREST_WORK if calls[kind]), "other")

    def subtree(self, node: int) -> list[int]:
        """Return a node and all nodes below it."""
        chosen = {node}
        for other in range(node + 1, len(self.parent)):  # a caller is always before its callees
            if self.parent[other] in chosen:
                chosen.add(other)
        return sorted(chosen)

    def with_callees(self, amounts: Times) -> Times:
        """Return the amount of each node plus the amounts of all nodes below it. The first axis is the node."""
        total = amounts.astype(np.float64, copy=True)
        for node in range(len(total) - 1, ROOT, -1):  # a caller is always before its callees
            total[self.parent[node]] += total[node]
        return total

    def children(self) -> dict[int, list[int]]:
        """Return node → nodes directly below it."""
        below: dict[int, list[int]] = defaultdict(list)
        for node in range(1, len(self.parent)):
            below[self.parent[node]].append(node)
        return below


class Walked(msgspec.Struct, frozen=True, kw_only=True):
    """Timeline of the current source line in one section.

    Attributes:
        time_ns: times at which the current line changes, ascending.
        node: the node that is current from each time on, or `NO_LINE`.
        step_ns: the section's beginning, then the times at which steps end.
        calls: index in `time_ns` (-1: before the first) → number of calls of unrecorded functions from that time on.
        frames: number of outermost frames of the log's stack that stay open throughout the section.
    """

    time_ns: list[int]
    node: list[int]
    step_ns: list[int]
    calls: dict[int, int]
    frames: int


class _Stack:
    """Frames of one thread, outermost first, each with its code and the node of its current line."""

    def __init__(self, tree: LineTree, base: int = ROOT) -> None:
        self.tree = tree
        self.base = base
        self.codes: list[int] = []
        self.nodes: list[int] = []

    @property
    def current(self) -> int:
        return self.nodes[-1] if self.nodes else self.base

    def move(self, code: int, value: int) -> None:
        """Follow an event in the function `code`: `CALL`, `LEAVE`, or the number of the line that runs."""
        if value == CALL:
            self._call(code)
        elif value == LEAVE:
            self._leave(code)
        else:
            self._line(code, value)

    def _call(self, code: int) -> None:
        # Until the function's first line runs, the time belongs to the caller.
        self.nodes.append(self.current)
        self.codes.append(code)

    def _leave(self, code: int) -> None:
        index = self._last(code)
        if index is not None:
            del self.codes[index:], self.nodes[index:]

    def _line(self, code: int, line: int) -> None:
        """Make `line` current in the innermost frame of `code`, and drop the frames inside that frame."""
        index = self._last(code)
        if index is None:  # the function was called before its events were recorded
            self._call(code)
            index = len(self.codes) - 1
        del self.codes[index + 1 :], self.nodes[index + 1 :]
        caller = self.nodes[index - 1] if index else self.base
        self.nodes[index] = self.tree.node(caller, code, line)

    def _last(self, code: int) -> int | None:
        for index in range(len(self.codes) - 1, -1, -1):
            if self.codes[index] == code:
                return index
        return None


def walk(tree: LineTree, log: ProcessLines, section: LogSection) -> Walked:
    """Follow one section, and add its lines to the tree."""
    follower = _Follower(tree, log)
    steps = [at_ns for at_ns, _, value in section.events.rows() if value == STEP]
    times: list[int] = []
    nodes: list[int] = []
    calls: Counter[int] = Counter()
    for at_ns, thread, code, value in _merged(section):
        if value <= CALLS:  # the number of calls since the previous event, encoded as `CALLS - number`
            calls[len(nodes) - 1] = CALLS - value
            continue
        if value in WORK:
            follower.work(thread, WORK[value])
            continue
        if value in {INPUT_BEGIN, INPUT_END}:
            follower.bound_input(thread, begins=value == INPUT_BEGIN)
            continue
        if value not in {STEP, PAUSE} and not follower.move(thread, code, value):
            continue
        node = NO_LINE if value == PAUSE else follower.current
        times.append(at_ns)
        nodes.append(node)
    return Walked(time_ns=times, node=nodes, step_ns=steps, calls=calls, frames=follower.frames)


class _Follower:
    """The stacks of the training thread, and of other threads while the training thread waits in `backward`.

    Attributes:
        frames: number of outermost frames of the log's stack that have stayed open so far.
    """

    def __init__(self, tree: LineTree, log: ProcessLines) -> None:
        self._tree = tree
        self._main = _Stack(tree)
        for code, line in log.stack:
            self._main.move(code, CALL)
            if line > 0:
                self._main.move(code, line)
        self.frames = len(log.stack)
        self._others: dict[int, _Stack] = {}
        self._in_backward = False
        #: Number of open ranges named `input`.
        self._in_input = 0

    @property
    def current(self) -> int:
        """Return the node of the current line."""
        active = [stack.current for stack in self._others.values() if stack.codes]
        return active[-1] if active else self._main.current

    def work(self, thread: int, kind: str) -> None:
        """Count a call of this kind of work by the current line; ignore threads other than the training thread."""
        if thread == _TRAINING:
            self._tree.work[self._main.current][kind] += 1
            self._in_backward = self._in_backward or kind == "backward"

    def bound_input(self, thread: int, *, begins: bool) -> None:
        """Note that a range named `input` begins or ends. Lines within the range fetch input."""
        if thread == _TRAINING:
            self._in_input = max(self._in_input + (1 if begins else -1), 0)
            self._note_input()

    def _note_input(self) -> None:
        if self._in_input:
            self._tree.work[self._main.current]["input"] += 1

    def move(self, thread: int, code: int, value: int) -> bool:
        """Follow an event and return True; ignore events of other threads outside of backward and return False.

        The next event of the training thread ends its wait in `backward`, and so the other threads' lines.
        """
        if thread == _TRAINING:
            self._main.move(code, value)
            self._note_input()
            self.frames = min(self.frames, len(self._main.codes))
            self._others.clear()
            self._in_backward = False
            return True
        if self._in_backward:
            self._others.setdefault(thread, _Stack(self._tree, self._main.current)).move(code, value)
        return self._in_backward


def _merged(section: LogSection) -> Iterator[tuple[int, int, int, int]]:
    """Yield (time, thread, code, value) of all threads in order of time; the training thread is -1."""
    columns = [(_TRAINING, section.events), *enumerate(section.threads)]
    streams = [_of_thread(thread, events) for thread, events in columns]
    return heapq.merge(*streams, key=lambda event: event[0]) if len(streams) > 1 else iter(streams[0])


def _of_thread(thread: int, events: Events) -> Iterator[tuple[int, int, int, int]]:
    for at_ns, code, value in events.rows():
        yield at_ns, thread, code, value
