"""Make the table of lines that reports show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpudiag.analysis.lines.choose import Times, is_users, loop_depth, shortened
from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import ROOT
from gpudiag.model.source_lines import LineProcess, SourceLine
from gpudiag.statistics import mean_of
from gpudiag.units import NS_PER_MS

#: Minimum share of the step for a line in the table, and maximum number of lines per caller.
_LEAST_SHARE, _MOST_CHILDREN = 0.005, 30


def line_table(
    process: ProcessTimes, rank: int, kind: LineProcess, idle_ns: Times | None = None
) -> tuple[SourceLine, ...]:
    """Return the lines of one process, callers before callees, lines of one caller in file order; empty without steps.

    Args:
        process: the lines.
        rank: rank of the process.
        kind: kind of the process.
        idle_ns: float64[nodes], idle time of the device per step while the line itself runs; None if unknown.
    """
    if not process.steps:
        return ()
    return tuple(_Table(process, rank, kind, idle_ns).rows(ROOT, 0))


class _Table:
    """The lines of one process and their mean times per step, in ms."""

    def __init__(self, process: ProcessTimes, rank: int, kind: LineProcess, idle_ns: Times | None) -> None:
        self._process = process
        self._rank = rank
        self._kind = kind
        self._children = process.tree.children()
        self._loop_depth = loop_depth(process)
        self._total_ms = process.total_ns / NS_PER_MS
        self._self_ms = process.self_ns.mean(axis=1) / NS_PER_MS
        self._idle_ms = None if idle_ns is None else process.tree.with_callees(idle_ns) / NS_PER_MS
        self._mean_ms = self._total_ms.mean(axis=1)

    def rows(self, parent: int, depth: int) -> Iterator[SourceLine]:
        """Yield the longest lines below `parent` in file order, indented by `depth`, each followed by its callees."""
        least = _LEAST_SHARE * self._mean_ms[ROOT]
        kept = [node for node in self._children.get(parent, ()) if self._mean_ms[node] >= least]
        kept = sorted(kept, key=lambda node: -float(self._mean_ms[node]))[:_MOST_CHILDREN]
        for node in sorted(kept, key=lambda node: self._process.tree.position[node][1]):
            # Lines of the loop's callers and lines of libraries are left out.
            shown = is_users(self._process, node) and len(self._process.tree.path(node)) >= self._loop_depth
            if shown:
                yield self._row(node, depth)
            yield from self.rows(node, depth + shown)

    def _row(self, node: int, depth: int) -> SourceLine:
        """Return the table's row about this node, indented by `depth`.

        Self time may exceed the line's time by rounding, and idle time may exceed the line's time because traces have
        other steps. Both are limited to the line's time.
        """
        log, tree = self._process.log, self._process.tree
        code, line = tree.position[node]
        function = log.codes[code]
        per_step = self._total_ms[node]
        mean_ms = float(self._mean_ms[node])
        idle = None if self._idle_ms is None else min(float(self._idle_ms[node]), mean_ms)
        return SourceLine(
            rank=self._rank,
            process=self._kind,
            file=shortened(function.file, log.directory),
            line=line,
            function="" if function.function == "<module>" else function.function,
            source=log.texts.get(function.file, {}).get(str(line), ""),
            depth=depth,
            work=tree.kind(node),
            ms_per_step=mean_ms,
            self_ms=min(float(self._self_ms[node]), mean_ms),
            device_idle_ms=idle,
            samples=int(np.size(per_step)),
            ci95=mean_of(per_step.tolist()).half_width if np.size(per_step) > 1 else None,
            estimated=node in self._process.omitted,
        )
