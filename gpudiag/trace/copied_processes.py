"""Leave out copies among the files of processes whose ranks are counted through the files: a copy takes no rank."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from gpudiag.intervals import distinct
from gpudiag.model.event import Trace
from gpudiag.trace.sources import Source

Process = tuple[Source, tuple[Trace, ...]]
#: Recordings of fewer different durations may be alike by chance.
_FEWEST_DURATIONS = 100


def without_copied_processes(processes: Iterable[Process]) -> list[Process]:
    """Return the processes less those that repeat an earlier one, whose first trace names the files of its copies."""
    kept: list[Process] = []
    for source, traces in processes:
        twin = next((place for place, (_, earlier) in enumerate(kept) if _are_copies(earlier, traces)), None)
        if twin is None:
            kept.append((source, traces))
            continue
        of_twin, (first, *others) = kept[twin]
        kept[twin] = of_twin, (msgspec.structs.replace(first, copies=(*first.copies, source.shown)), *others)
    return kept


def _are_copies(first: tuple[Trace, ...], second: tuple[Trace, ...]) -> bool:
    return len(first) == len(second) and all(map(_same_events, first, second))


def _same_events(one: Trace, other: Trace) -> bool:
    """Return whether two traces hold the same events at the same times, to the nanosecond."""
    a, b = one.events, other.events
    if one.origin_ns != other.origin_ns or len(a) != len(b):
        return False
    if not (np.array_equal(a.start_ns, b.start_ns) and np.array_equal(a.end_ns, b.end_ns)):
        return False
    return len(distinct(a.end_ns - a.start_ns)) >= _FEWEST_DURATIONS
