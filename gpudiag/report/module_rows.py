"""Which modules of a model are shown: repeated ones as one, and parts of what takes most instead of the whole."""

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

#: Below this share of all modules' time a row tells nothing, and does not count as one of the most that are shown.
_SEEN_SHARE = 0.01
_LONGEST = 80
#: That one module takes more than this share of all tells less than which of its parts do.
_TELLS_LITTLE = 0.5
#: Repeated modules are shown as one but for those that take more than this many times the median one.
_ALIKE = 2.0
#: What stands above `module_cells`.
MODULE_COLUMNS = ("module", "ms per step", "forward", "backward", "calls")


class ModuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of a kind; means of all devices, per step.

    Attributes:
        label: `fc (Linear)`, `layer3.*.conv2 (6 x Conv2d)`; `layer3 (Sequential), own`: without modules in rows.
        short: the same without the class.
    """

    label: str
    short: str
    calls: float
    forward_ms: float
    backward_ms: float

    @property
    def ms(self) -> float:
        """Both ways."""
        return self.forward_ms + self.backward_ms


class _Group:
    """Modules of one class at the same place of what is repeated."""

    def __init__(self, pattern: str, prefix: str) -> None:
        self._pattern = pattern
        self._prefix = prefix
        self.members: list[ModuleTime] = []
        self.below: dict[tuple[str, str], _Group] = {}

    @cached_property
    def whole(self) -> ModuleRow:
        """All that its modules do."""
        return self._row("forward_ms", "backward_ms", "")

    @cached_property
    def own(self) -> ModuleRow:
        """What they do themselves."""
        return self._row("own_forward_ms", "own_backward_ms", ", own")

    def _row(self, forward: str, backward: str, note: str) -> ModuleRow:
        many, first = len(self.members), self.members[0]
        path = self._pattern if many > 1 else first.path
        kind = f" ({many} {figures.TIMES} " if many > 1 else " ("
        name = one_line(self._prefix + path if path else first.root)
        return ModuleRow(
            label=f"{name}{kind}{one_line(first.type)}){note}" if path else name + note,
            short=name + note,
            calls=sum(duration(one.calls) for one in self.members),
            forward_ms=sum(_mean(getattr(one, forward)) for one in self.members),
            backward_ms=sum(_mean(getattr(one, backward)) for one in self.members),
        )


def module_rows(modules: Modules, most: int) -> tuple[list[ModuleRow], float]:
    """The rows, most time first, and what all that have none take. Together they are what the modules take.

    Beginning with the roots, what takes most is shown by its parts instead, as long as no more than `most` can be seen,
    or where it takes more than half of all: then those that take least have no row.

    Worked example. `net` has `stem` (2 ms) and four blocks, each of `attn` (3 ms) and `mlp` (5 ms). In at most three
    rows it is shown as `stem` and `blocks.*` (32 ms), and that as `blocks.*.attn` (12 ms) and `blocks.*.mlp` (20 ms).
    """
    groups = _roots(modules.times)
    total = sum(group.whole.ms for group in groups)
    least = _SEEN_SHARE * total
    shown: list[ModuleRow] = []
    while groups := [group for group in groups if group.whole.ms > 0 and group.whole.ms >= least]:
        largest = max(groups, key=lambda group: group.whole.ms)
        groups.remove(largest)
        parts = [part for part in largest.below.values() if part.whole.ms > 0]
        beside = [*shown, largest.own, *(group.whole for group in (*groups, *parts))]
        if parts and (sum(row.ms >= least for row in beside) <= most or largest.whole.ms > _TELLS_LITTLE * total):
            shown.append(largest.own)
            groups += parts
        else:
            shown.append(largest.whole)
    shown.sort(key=lambda row: -row.ms)
    kept = [row for row in shown if row.ms > 0 and row.ms >= least][:most]
    return kept, max(0.0, total - sum(row.ms for row in kept))


def module_cells(row: ModuleRow) -> tuple[str, ...]:
    """A row in figures, as Markdown and the page show it."""
    times = (figures.milliseconds(ms, beside=row.ms) for ms in (row.ms, row.forward_ms, row.backward_ms))
    return shorten_middle(row.label, _LONGEST), *times, figures.count(row.calls)


def rest_of_modules(modules: Modules, rest_ms: float) -> list[str]:
    """What the modules without a row take, and what is outside of modules; a line, if there are any."""
    parts = [
        (rest_ms, "in other modules"),
        (_mean(modules.outside_ms), "outside of modules (optimizer, loss)"),
    ]
    said = [f"{figures.milliseconds(ms)} ms {where}" for ms, where in parts if ms > 0]
    return [f"and {', '.join(said)}"] if said else []


def _roots(times: Sequence[ModuleTime]) -> list[_Group]:
    """The outermost modules' groups, with all that is below them."""
    holds = {(one.root, above) for one in times for above in _above(one.path)}
    repeated = _repeated(times, holds)
    several = len({root for root, _ in holds}) > 1
    group_of: dict[tuple[str, str], _Group] = {}
    roots: dict[tuple[str, str], _Group] = {}
    for one in sorted(times, key=lambda one: one.path.count(".") + bool(one.path)):
        around = next((group_of[one.root, above] for above in _above(one.path) if (one.root, above) in group_of), None)
        pattern = _pattern(one, repeated)
        key = (pattern, one.type) if around is not None else (f"{one.root}.{pattern}", one.type)
        siblings = roots if around is None else around.below
        named = several or pattern[:1] == "*" or pattern[:1].isdecimal()  # a number alone would tell little
        group = siblings.setdefault(key, _Group(pattern, f"{one.root}." * named))
        group.members.append(one)
        group_of[one.root, one.path] = group
    return list(roots.values())


def _above(path: str) -> list[str]:
    """The paths of what a module is in, the nearest first; the root's is empty.

    >>> _above("layer3.0.conv2")
    ['layer3.0', 'layer3', '']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1)]


def _repeated(times: Sequence[ModuleTime], holds: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """(root, path) of numbered modules that hold modules and take no more than those of their class beside them."""
    alike: dict[tuple[str, str, str], list[ModuleTime]] = {}
    for one in times:
        if one.path.rsplit(".", 1)[-1].isdecimal() and (one.root, one.path) in holds:
            alike.setdefault((one.root, _above(one.path)[0], one.type), []).append(one)
    found = set()
    for ones in alike.values():
        each = [_mean(one.forward_ms) + _mean(one.backward_ms) for one in ones]
        most = _ALIKE * median(each)
        found |= {(one.root, one.path) for one, ms in zip(ones, each, strict=True) if ms <= most}
    return found


def _pattern(module: ModuleTime, repeated: Set[tuple[str, str]]) -> str:
    """The module's path with `*` for the number of each repeated one."""
    paths = [*_above(module.path)[-2::-1], module.path]  # from below the root down to the module
    named = [path.rsplit(".", 1)[-1] for path in paths]
    return ".".join("*" if (module.root, path) in repeated else name for path, name in zip(paths, named, strict=True))


def _mean(values: Sequence[float]) -> float:
    return fmean(map(duration, values)) if values else 0.0
