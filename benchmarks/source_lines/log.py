"""The log of line, call and return events of one thread, and the tree of line times that it stands for.

An entry is `(time in ns, code, what)`: a line number, or one of `CALL`, `LEAVE`, `STEP` and the kinds of work. The time
between two entries belongs to the line that was current after the first one, and to all lines that called it.

Worked example. `f` is called from line 3 at 0, runs line 8 at 1, returns at 5; line 4 follows at 6. Line 3 took 6, of
which 5 in `f`: line 8 took 4, and 1 passed before its first line.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

#: What an entry may be instead of a line number.
CALL, LEAVE, STEP = -1, -2, -3
#: An entry that only says that a call of this kind of work was made from the current line.
WORK = {-11: "input", -12: "forward", -13: "backward", -14: "optimizer", -15: "compile"}

Entry = tuple[int, CodeType | None, int]
#: A line of a code object.
Position = tuple[CodeType, int]


class LineNode:
    """The time of one line under its callers: the line above it (its caller) and the lines below it."""

    __slots__ = ("above", "below", "position", "self_ns", "step_ns", "work")

    def __init__(self, position: Position | None, above: LineNode | None = None) -> None:
        self.position = position
        self.above = above
        #: Nanoseconds in the line itself, of all steps together.
        self.self_ns = 0
        #: By step number, nanoseconds in the line and below it.
        self.step_ns: dict[int, int] = {}
        self.below: dict[Position, LineNode] = {}
        #: By kind of work, how many calls were made directly from this line.
        self.work: dict[str, int] = {}

    def at(self, position: Position) -> LineNode:
        """Return the node of a line below this one."""
        node = self.below.get(position)
        if node is None:
            node = self.below[position] = LineNode(position, self)
        return node


def replay(entries: Sequence[Entry], stack: Sequence[Position]) -> Walk:
    """Turn a log into a tree of line times.

    Args:
        entries: in the order of time; steps are between two `STEP` entries, and what is outside of them is ignored.
        stack: the lines that were current when the log began, outermost first.

    Returns:
        The walk at its end: the root (whose time is that of all steps), and the number of whole steps.
    """
    walk = Walk(stack)
    for entry in entries:
        walk.take(entry)
    return walk


class Walk:
    """Follow the calls and lines of a log.

    Attributes:
        root: the tree of lines.
        steps: whole steps so far; time after the last of them belongs to none.
    """

    def __init__(self, stack: Sequence[Position]) -> None:
        self.root = LineNode(None)
        self.steps = 0
        #: Code objects of the frames, and their current lines; 0 before the first.
        self.codes: list[CodeType] = [code for code, _ in stack]
        self.numbers: list[int] = [number for _, number in stack]
        self.path: list[LineNode] = []
        self.last_ns = 0
        self.counting = False
        self._find_path()

    def take(self, entry: Entry) -> None:
        """Follow one entry."""
        now_ns, code, what = entry
        if what in WORK:
            if self.path:
                work = self.path[-1].work
                work[WORK[what]] = work.get(WORK[what], 0) + 1
            return
        self._charge(now_ns)
        if what == STEP:
            self.steps += self.counting
            self.counting = True
        elif code is not None:
            self._move(code, what)
            self._find_path()

    def _charge(self, now_ns: int) -> None:
        elapsed = now_ns - self.last_ns
        if self.counting and elapsed > 0:
            self.root.step_ns[self.steps] = self.root.step_ns.get(self.steps, 0) + elapsed
            for node in self.path:
                node.step_ns[self.steps] = node.step_ns.get(self.steps, 0) + elapsed
            if self.path:
                self.path[-1].self_ns += elapsed
        self.last_ns = now_ns

    def _move(self, code: CodeType, what: int) -> None:
        if what == CALL:
            self.codes.append(code)
            self.numbers.append(0)
        elif what == LEAVE:
            if code in self.codes:
                at = len(self.codes) - 1 - self.codes[::-1].index(code)
                del self.codes[at:], self.numbers[at:]
        else:
            if code not in self.codes:  # its call came before its events were asked for
                self.codes.append(code)
                self.numbers.append(0)
            at = len(self.codes) - 1 - self.codes[::-1].index(code)
            del self.codes[at + 1 :], self.numbers[at + 1 :]
            self.numbers[at] = what

    def _find_path(self) -> None:
        self.path = []
        node = self.root
        for position in zip(self.codes, self.numbers, strict=True):
            if position[1] > 0:
                node = node.at(position)
                self.path.append(node)


def work_of(node: LineNode) -> str:
    """Return the kind of work that a line calls; the rarest kind if there are several."""
    for kind in ("compile", "backward", "optimizer", "input", "forward"):
        if node.work.get(kind):
            return kind
    return "other"
