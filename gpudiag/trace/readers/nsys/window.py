"""Choose the part of a large export that is read, so that memory stays bounded."""

from __future__ import annotations

import msgspec
import numpy as np

from gpudiag.trace.readers.nsys.database import Database, Window
from gpudiag.trace.readers.nsys.tables import COPIES, EVENT_TABLES, GRAPHS, KERNELS

#: Number of rows of each table whose starts are read to estimate the distribution of events over time.
_SAMPLES = 2000
#: Share of the allowed events for which the window is chosen, because the estimate is not exact.
_SHARE = 0.8


class ChosenWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The window to read, and the estimated number of events in the whole export."""

    window: Window
    events: int


def choose_window(database: Database, most_events: int) -> ChosenWindow | None:
    """Return the window in the middle of the device work that has about `most_events`; None if all events fit."""
    starts, weights, on_device = [], [], []
    total = 0
    for table in EVENT_TABLES:
        start, count = database.sampled_starts(table, _SAMPLES)
        total += count
        if len(start):
            starts.append(start)
            weights.append(np.full(len(start), count / len(start)))  # number of events that each sample represents
            on_device.append(np.full(len(start), table in {KERNELS, COPIES, GRAPHS}))
    if total <= most_events or not starts:
        return None
    start, weight, device = np.concatenate(starts), np.concatenate(weights), np.concatenate(on_device)
    order = np.argsort(start, kind="stable")
    start, weight, device = start[order], weight[order], device[order]
    events = np.cumsum(weight)
    # The middle is the number of events before the median of the samples of device work.
    middle = float(np.interp(device.sum() / 2, np.cumsum(device), events)) if device.any() else events[-1] / 2
    half = _SHARE * most_events / 2
    # The window begins `half` events before the middle, but not before the first event or too near to the last. It is
    # never empty.
    low = min(max(middle - half, 0.0), max(events[-1] - 2 * half, 0.0))
    first = min(int(np.searchsorted(events, low)), len(start) - 1)
    last = min(int(np.searchsorted(events, low + 2 * half)), len(start) - 1)
    return ChosenWindow(window=(int(start[first]), max(int(start[last]), int(start[first]) + 1)), events=total)
