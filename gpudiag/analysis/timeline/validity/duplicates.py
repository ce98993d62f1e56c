"""One rank twice: two files with the same events, or two that say the same rank."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gpudiag.analysis.timeline.calibration import FEWEST_DURATIONS
from gpudiag.intervals import distinct
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace


class Repetitions(msgspec.Struct, frozen=True):
    """The traces that count, the ranks whose traces repeat another's, and what to say of what was left out."""

    kept: tuple[Trace, ...]
    repeated_ranks: frozenset[int]
    validity: tuple[Validity, ...]


def without_copies(traces: Sequence[Trace]) -> Repetitions:
    """Leave out the traces that hold the events of an earlier one; those that know their rank go first.

    This comes before ranks are given to traces that do not know theirs: a copy takes no rank.
    """
    kept: list[Trace] = []
    ranks: set[int] = set()
    found = [
        _left_out(trace.source, copy, "hold the same events: the second was left out")
        for trace in traces
        for copy in trace.copies
    ]
    for trace in sorted(traces, key=lambda trace: trace.rank is None):
        twin = next((earlier for earlier in kept if _same_events(earlier, trace)), None)
        if twin is None:
            kept.append(trace)
            continue
        also = ""
        if trace.rank is not None and trace.rank != twin.rank:
            ranks.add(trace.rank)
            also = f", so that rank {trace.rank} has no trace of its own"
        found.append(_left_out(twin.source, trace.source, f"hold the same events: the second was left out{also}"))
    return Repetitions(tuple(kept), frozenset(ranks), tuple(found))


def without_claims(traces: Sequence[Trace]) -> Repetitions:
    """Leave out the traces that claim the rank of an earlier one.

    Which of two that claim one rank is of this run cannot be known: the first is kept, and nothing is certain.
    """
    kept: dict[int | None, Trace] = {}
    found = []
    for trace in traces:
        if trace.rank in kept:
            claim = f"both claim rank {trace.rank}: the second was left out"
            found.append(_left_out(kept[trace.rank].source, trace.source, claim))
        else:
            kept[trace.rank] = trace
    return Repetitions(tuple(kept.values()), frozenset(), tuple(found))


def _left_out(kept: str, copy: str, why: str) -> Validity:
    message = f"{kept} and {copy} {why}. Give one trace of each rank, all of the same run."
    return Validity(code="duplicate-ranks", message=message)


def _same_events(one: Trace, other: Trace) -> bool:
    """Whether two traces are one recording: on the same threads, and to the nanosecond at the same times."""
    a, b = one.events, other.events
    if one.source == other.source or one.origin_ns != other.origin_ns or len(a) != len(b):
        return False  # the devices of one process have a trace each, of one file
    if not all(np.array_equal(column, b.columns()[name]) for name, column in a.columns().items()):
        return False
    return len(distinct(a.end_ns - a.start_ns)) >= FEWEST_DURATIONS
