"""Compute the share of host work in which a host compiled."""

from __future__ import annotations

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import lengths_inside


def compiling_share(case: Case, what_if: WhatIf) -> Times | None:
    """Return float64[n]: share of the time before each host node in which its process compiled; None without any."""
    if case.work is None or not case.work.compilations:
        return None
    graph = what_if.graph
    share = np.zeros(len(graph.host.time))
    for first, after in graph.chains:
        if after <= first:
            continue
        compilation = case.work.compilations.get(int(graph.host.process[first]))
        if compilation is None:
            continue
        reached = graph.host.time[first:after]
        work = (graph.host.busy + graph.host.input + graph.host.before_first_op + graph.host.untraced)[first:after]
        begin = np.concatenate([[reached[0] - work[0]], reached[:-1]])
        inside = lengths_inside(compilation.spans, begin.astype(np.int64), reached.astype(np.int64))
        share[first:after] = np.clip(inside / np.maximum(work, 1.0), 0.0, 1.0)
    return share if share.any() else None


def mostly_compiling(case: Case, what_if: WhatIf) -> bool:
    """Return whether a host compiled in most of its slow calls, so that these are recompilation."""
    share = compiling_share(case, what_if)
    slow = what_if.graph.host.slow
    return share is not None and float((slow * share).sum()) >= MOST * float(slow.sum())
