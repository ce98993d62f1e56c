"""Leave out a second trace of a rank: a file with the same events, or a file that claims the same rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from gpudiag.analysis.timeline.calibration import FEWEST_DURATIONS
from gpudiag.intervals import distinct
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace


class Deduplicated(msgspec.Struct, frozen=True):
    """The traces that are kept, the ranks whose only trace repeats another's, and the warnings."""

    kept: tuple[Trace, ...]
    repeated_ranks: frozenset[int]
    validity: tuple[Validity, ...]


def without_copies(traces: Sequence[Trace]) -> Deduplicated:
    """Leave out traces with the events of an earlier trace; traces that know their rank come first.

    Call this before giving ranks to traces that do not know theirs, because a copy takes no rank.
    """
    kept: list[Trace] = []
    alike: dict[tuple[int, int], list[Trace]] = defaultdict(list)
    ranks: set[int] = set()
    warnings = [
        _left_out(trace.source, copy, "hold the same events: the second was left out")
        for trace in traces
        for copy in trace.copies
    ]
    for trace in sorted(traces, key=lambda trace: trace.rank is None):
        candidates = alike[trace.origin_ns, len(trace.events)]
        original = _original(trace, candidates)
        if original is None:
            kept.append(trace)
            candidates.append(trace)
            continue
        also = ""
        if trace.rank is not None and trace.rank != original.rank:
            ranks.add(trace.rank)
            also = f", so that rank {trace.rank} has no trace of its own"
        reason = f"hold the same events: the second was left out{also}"
        warnings.append(_left_out(original.source, trace.source, reason))
    return Deduplicated(tuple(kept), frozenset(ranks), tuple(warnings))


def without_claims(traces: Sequence[Trace]) -> Deduplicated:
    """Leave out traces that claim the rank of an earlier one, and warn, because the first may be from a different
    run."""
    kept: dict[int | None, Trace] = {}
    warnings = []
    for trace in traces:
        if trace.rank in kept:
            reason = f"both claim rank {trace.rank}: the second was left out"
            warnings.append(_left_out(kept[trace.rank].source, trace.source, reason))
        else:
            kept[trace.rank] = trace
    return Deduplicated(tuple(kept.values()), frozenset(), tuple(warnings))


def _left_out(kept: str, copy: str, reason: str) -> Validity:
    message = f"{kept} and {copy} {reason}. Give one trace of each rank, all of the same run."
    return Validity(code="duplicate-ranks", message=message)


def _original(trace: Trace, candidates: Sequence[Trace]) -> Trace | None:
    """Return the trace with the same events to the nanosecond, among those with the same origin and event count.

    The devices of one process have a trace each from one file, so these are not copies.
    """
    events = trace.events
    if not candidates or len(distinct(events.end_ns - events.start_ns)) < FEWEST_DURATIONS:
        return None
    columns = events.columns()
    for candidate in candidates:
        others = candidate.events.columns()
        if candidate.source != trace.source and all(np.array_equal(others[name], columns[name]) for name in columns):
            return candidate
    return None
