"""Select the rows of a table of modules: repeated modules share a row, and children replace large modules."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from statistics import fmean, median

import msgspec

from gpudiag.model.analysis import Modules, ModuleTime
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.kernel_names import shorten_middle
from gpudiag.report.rank_rows import duration

#: A row is shown if it has at least this share of all modules' time.
_SEEN_SHARE = 0.01
#: Maximum length of a label.
_LONGEST = 80
#: A module with more than this share of all modules' time is always replaced by its children.
_ALWAYS_SPLIT_SHARE = 0.5
#: A repeated module gets a separate row if its time exceeds this multiple of the median over its siblings of the same
#: class.
_OUTLIER = 2.0
#: Headings of `module_cells`.
MODULE_COLUMNS = ("module", "ms per step", "forward", "backward", "calls")


class ModuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A module, or all modules of one class at the same position of a repeated block. Values are means over devices.

    Attributes:
        label: `fc (Linear)`, `layer3.*.conv2 (6 x Conv2d)`, or `layer3 (Sequential), self` for time without children.
        short: the label without the class.
        calls, forward_ms, backward_ms: number of calls and time per step, as sums over the modules.
    """

    label: str
    short: str
    calls: float
    forward_ms: float
    backward_ms: float

    @property
    def ms(self) -> float:
        """Sum of the times of forward and backward."""
        return self.forward_ms + self.backward_ms


class _ModuleGroup:
    """Modules of one class at the same position of a repeated block.

    `pattern` is their path with `*` for the numbers of repeated modules, and `prefix` precedes it in labels.
    """

    def __init__(self, pattern: str, prefix: str) -> None:
        self._pattern = pattern
        self._prefix = prefix
        self.members: list[ModuleTime] = []
        self.children: dict[tuple[str, str], _ModuleGroup] = {}

    @cached_property
    def total(self) -> ModuleRow:
        """Time of the modules with their children."""
        return self._row("forward_ms", "backward_ms", "")

    @cached_property
    def self_time(self) -> ModuleRow:
        """Time of the modules without their children."""
        return self._row("own_forward_ms", "own_backward_ms", ", self")

    def _row(self, forward: str, backward: str, note: str) -> ModuleRow:
        """Return a row. `forward` and `backward` are the fields of `ModuleTime` to sum; `note` ends the label."""
        many, first = len(self.members), self.members[0]
        path = self._pattern if many > 1 else first.path
        count = f"{many} {figures.TIMES} " * (many > 1)
        name = one_line(self._prefix + path if path else first.root)
        return ModuleRow(
            label=f"{name} ({count}{one_line(first.type)}){note}" if path else name + note,
            short=name + note,
            calls=sum(duration(module.calls) for module in self.members),
            forward_ms=sum(_mean(getattr(module, forward)) for module in self.members),
            backward_ms=sum(_mean(getattr(module, backward)) for module in self.members),
        )


def module_rows(modules: Modules, most: int) -> tuple[list[ModuleRow], float]:
    """Return at most `most` rows, longest first, and the time in ms of all modules without a row.

    At first, the rows are the root modules. Rows are considered by size, largest first. A row is replaced by its
    children if the result has at most `most` visible rows, or if the row takes more than half of all time. At the end,
    the smallest rows are omitted if there are too many.

    Worked example. `net` has `stem` (2 ms) and four blocks, each of `attn` (3 ms) and `mlp` (5 ms). With at most three
    rows, `net` is replaced by `stem` and `blocks.*` (32 ms). Then `blocks.*` is replaced by `blocks.*.attn` (12 ms) and
    `blocks.*.mlp` (20 ms).
    """
    groups = _roots(modules.times)
    total_ms = sum(group.total.ms for group in groups)
    least_ms = _SEEN_SHARE * total_ms
    final_rows: list[ModuleRow] = []
    while groups := [group for group in groups if group.total.ms >= least_ms and group.total.ms > 0]:
        largest = max(groups, key=lambda group: group.total.ms)
        groups.remove(largest)
        children = [child for child in largest.children.values() if child.total.ms > 0]
        rows_if_split = [*final_rows, largest.self_time, *(group.total for group in (*groups, *children))]
        fits = len(_visible(rows_if_split, least_ms)) <= most
        if children and (fits or largest.total.ms > _ALWAYS_SPLIT_SHARE * total_ms):
            final_rows.append(largest.self_time)
            groups += children
        else:
            final_rows.append(largest.total)
    rows = sorted(_visible(final_rows, least_ms), key=lambda row: -row.ms)[:most]
    return rows, max(0.0, total_ms - sum(row.ms for row in rows))


def _visible(rows: Sequence[ModuleRow], least_ms: float) -> list[ModuleRow]:
    return [row for row in rows if row.ms >= least_ms and row.ms > 0]


def module_cells(row: ModuleRow) -> tuple[str, ...]:
    """Return the cells of a row in Markdown and on the page."""
    times = (figures.milliseconds(ms, beside=row.ms) for ms in (row.ms, row.forward_ms, row.backward_ms))
    return shorten_middle(row.label, _LONGEST), *times, figures.count(row.calls)


def rest_of_modules(modules: Modules, rest_ms: float) -> list[str]:
    """Return a line with the time of modules without a row and of work outside modules, if any."""
    other_times = ((rest_ms, "in other modules"), (_mean(modules.outside_ms), "outside of modules (optimizer, loss)"))
    times = [f"{figures.milliseconds(ms)} ms {where}" for ms, where in other_times if ms > 0]
    return [f"and {', '.join(times)}"] if times else []


def _roots(times: Sequence[ModuleTime]) -> list[_ModuleGroup]:
    """Group modules of one class at the same position of a repeated block.

    Return the outermost groups, which contain all other groups. A module whose parents have no times is outermost.
    Labels name the root if there are several.
    """
    parents = {(module.root, path) for module in times for path in _parents(module.path)}
    repeated = _repeated(times, parents)
    several = len({root for root, _ in parents}) > 1
    group_of: dict[tuple[str, str], _ModuleGroup] = {}
    roots: dict[tuple[str, str], _ModuleGroup] = {}
    # Sorted by depth, so that the group of each parent exists before the groups of its children.
    for module in sorted(times, key=lambda module: module.path.count(".") + bool(module.path)):
        above = (group_of.get((module.root, path)) for path in _parents(module.path))
        parent = next((group for group in above if group is not None), None)
        pattern = _pattern(module, repeated)
        key = (pattern, module.type) if parent is not None else (f"{module.root}.{pattern}", module.type)
        siblings = roots if parent is None else parent.children
        named = several or pattern[:1] == "*" or pattern[:1].isdecimal()  # a number alone is no usable name
        group = siblings.setdefault(key, _ModuleGroup(pattern, f"{module.root}." * named))
        group.members.append(module)
        group_of[module.root, module.path] = group
    return list(roots.values())


def _parents(path: str) -> list[str]:
    """Return the paths of the modules around a module, nearest first; the path of the root is empty.

    >>> _parents("layer3.0.conv2")
    ['layer3.0', 'layer3', '']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1)]


def _repeated(times: Sequence[ModuleTime], parents: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return (root, path) of repeated modules.

    A repeated module has a number as its name, has children, and takes at most `_OUTLIER` times as long as the median
    of its siblings of the same class.
    """
    siblings: dict[tuple[str, str, str], list[ModuleTime]] = {}
    for module in times:
        if module.path.rsplit(".", 1)[-1].isdecimal() and (module.root, module.path) in parents:
            siblings.setdefault((module.root, _parents(module.path)[0], module.type), []).append(module)
    repeated = set()
    for modules in siblings.values():
        durations = [_mean(module.forward_ms) + _mean(module.backward_ms) for module in modules]
        most = _OUTLIER * median(durations)
        repeated |= {(module.root, module.path) for module, ms in zip(modules, durations, strict=True) if ms <= most}
    return repeated


def _pattern(module: ModuleTime, repeated: Set[tuple[str, str]]) -> str:
    """Return the module's path with `*` for the number of each repeated module."""
    paths = [*_parents(module.path)[-2::-1], module.path]  # from below the root down to the module
    return ".".join("*" if (module.root, path) in repeated else path.rsplit(".", 1)[-1] for path in paths)


def _mean(values: Sequence[float]) -> float:
    return fmean(map(duration, values)) if values else 0.0
