"""Damage traces in ways that occur in recordings; each function takes a trace and returns a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gpudiag.model.event import DEVICE_WORK, NO_CORRELATION, Role, Trace
from tests.moved_events import with_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def kept(trace: Trace, rows: NDArray[np.bool_]) -> Trace:
    """Return the trace with only the events at which `rows` is true."""
    columns = {name: column[rows] for name, column in trace.events.columns().items()}
    return with_rows(trace, columns, np.flatnonzero(rows))


def changed(trace: Trace, **columns: NDArray[np.int64]) -> Trace:
    """Return the trace with `columns` replaced, sorted by start."""
    return with_rows(trace, trace.events.columns() | columns, np.arange(len(trace.events)))


def device_rows(trace: Trace) -> NDArray[np.intp]:
    return trace.events.rows_of(*DEVICE_WORK)


def without_correlations(trace: Trace, share: float, seed: int = 0) -> Trace:
    """Remove the correlation of a share of the device ops, as if their launches had not been recorded."""
    correlation = trace.events.correlation.copy()
    rows = device_rows(trace)
    correlation[rows[np.random.default_rng(seed).random(len(rows)) < share]] = NO_CORRELATION
    return changed(trace, correlation=correlation)


def mixed_correlations(trace: Trace, share: float, seed: int = 0) -> Trace:
    """Exchange the launches of some device ops, so that ops precede their launch and dependencies form cycles."""
    correlation = trace.events.correlation.copy()
    rng = np.random.default_rng(seed)
    rows = device_rows(trace)
    rows = rows[rng.random(len(rows)) < share]
    correlation[rows] = correlation[rng.permutation(rows)]
    return changed(trace, correlation=correlation)


def overlapping(trace: Trace, factor: int) -> Trace:
    """Make every third device op `factor` times as long, so that it overlaps the next ops of its stream."""
    end = trace.events.end_ns.copy()
    rows = device_rows(trace)[::3]
    end[rows] += (factor - 1) * (end[rows] - trace.events.start_ns[rows])
    return changed(trace, end_ns=end)


def without_collectives(trace: Trace, share: float, seed: int = 0) -> Trace:
    """Remove a share of the collectives of a trace."""
    rows = np.array([call.row for call in trace.collectives], np.intp)
    lost = np.zeros(len(trace.events), np.bool_)
    lost[rows[np.random.default_rng(seed).random(len(rows)) < share]] = True
    return kept(trace, ~lost)


def since(trace: Trace, share: float) -> Trace:
    """Remove the events of the first `share` of the trace's time, as if the recording had begun late."""
    events = trace.events
    if len(events) == 0:
        return trace
    begin = events.start_ns.min() + share * (events.end_ns.max() - events.start_ns.min())
    return kept(trace, events.start_ns >= begin)


def without_marks(trace: Trace) -> Trace:
    return kept(trace, trace.events.role != Role.STEP_MARK)


def clock_ahead(trace: Trace, offset_ns: int) -> Trace:
    return replace(trace, origin_ns=trace.origin_ns + offset_ns)


def jittering_clock(trace: Trace, spread_ns: int, seed: int = 0) -> Trace:
    """End each collective up to `spread_ns` earlier, but after its start; ends differ by rank if seeds do."""
    events = trace.events
    end = events.end_ns.copy()
    rows = np.array([call.row for call in trace.collectives], np.intp)
    late = np.random.default_rng(seed).integers(0, spread_ns, len(rows))
    end[rows] = np.maximum(events.start_ns[rows] + 1, end[rows] - late)
    return changed(trace, end_ns=end)


def stretched(trace: Trace, step: int, by_ns: int) -> Trace:
    """Lengthen the mark of one step by `by_ns`, and move everything that starts after the mark by this time."""
    events = trace.events
    name = next(i for i, name in enumerate(events.names) if name == f"ProfilerStep#{step}")
    row = int(np.flatnonzero(events.name == name)[0])
    after = events.start_ns >= events.end_ns[row]
    start = events.start_ns + np.where(after, by_ns, 0)
    end = events.end_ns + np.where(after, by_ns, 0)
    end[row] += by_ns
    return changed(trace, start_ns=start, end_ns=end)
