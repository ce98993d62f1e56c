"""One rank twice: two files with the same events, or two that say the same rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.timeline.calibration import FEWEST_DURATIONS
from gpudiag.intervals import distinct
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace


def without_duplicates(traces: Sequence[Trace]) -> tuple[list[Trace], list[Validity]]:
    """The traces less those that repeat an earlier one or claim its rank, and what was left out.

    Which of two that claim one rank is of this run cannot be known: the first is kept, and nothing is certain.
    """
    kept: list[Trace] = []
    found = []
    for trace in traces:
        twin = next((one for one in kept if one.rank == trace.rank or _same_events(one, trace)), None)
        if twin is None:
            kept.append(trace)
            continue
        same = "hold the same events" if _same_events(twin, trace) else f"both claim rank {trace.rank}"
        message = (
            f"{twin.source} and {trace.source} {same}: the second was left out. Give one trace of each rank, all of "
            "the same run."
        )
        found.append(Validity(code="duplicate-ranks", message=message))
    return kept, found


def _same_events(one: Trace, other: Trace) -> bool:
    """Whether two traces are one recording: on the same threads, and to the nanosecond at the same times."""
    a, b = one.events, other.events
    if one.source == other.source or one.origin_ns != other.origin_ns or len(a) != len(b):
        return False  # the devices of one process have a trace each, of one file
    if not all(np.array_equal(column, b.columns()[name]) for name, column in a.columns().items()):
        return False
    return len(distinct(a.end_ns - a.start_ns)) >= FEWEST_DURATIONS
