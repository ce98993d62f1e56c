"""Convert event times from microseconds, as profilers write them, to ordered integer nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.units import NS_PER_US

_DAY_US = 86_400e6
_LAST_US = 4e15  # the year 2096: later times are invalid; fits int64 nanoseconds


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Starts and ends in order.

    Attributes:
        order: intp[m], indices of the m <= n valid events, by start; ties: the longer first, else as given.
        start_ns: int64[m], in that order, since the first start.
        end_ns: int64[m].
        first_ns: the first start on the profiler's clock.
    """

    order: NDArray[np.intp]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    first_ns: int

    @classmethod
    def from_microseconds(
        cls,
        start_us: NDArray[np.float64],
        length_us: NDArray[np.float64],
        recordings: Sequence[tuple[float, float]],
        notes: list[str],
    ) -> Times:
        """Convert times, repair or leave out invalid ones, and sort.

        Args:
            start_us: float64[n], starts.
            length_us: float64[n], durations.
            recordings: start and duration of the profiler's spans, within which every event must end and fit.
            notes: receives descriptions of repairs and omissions.
        """
        stay = _possible(start_us, length_us)
        if len(stay) < len(start_us):
            lost = len(start_us) - len(stay)
            notes.append(f"{lost} events had impossible times (off by more than a day) and were left out")
            start_us, length_us = start_us[stay], length_us[stay]
        if (negative := length_us < 0).any():
            notes.append(f"{int(negative.sum())} events had negative durations; taken as 0")
            length_us = np.where(negative, 0.0, length_us)
        start_ns = nanoseconds(start_us)
        end_ns = start_ns + nanoseconds(length_us)
        _cut_endless(start_ns, end_ns, recordings, notes)
        order = _order(start_ns, end_ns)
        start_ns, end_ns = start_ns[order], end_ns[order]
        first_ns = int(start_ns[0]) if len(start_ns) else 0
        return cls(order=stay[order], start_ns=start_ns - first_ns, end_ns=end_ns - first_ns, first_ns=first_ns)


def nanoseconds(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert microseconds to integer nanoseconds without losing precision: whole and fraction are scaled separately.

    Example: 1712000000000000.25 µs times 1000 exceeds the exact range of a float; 1712000000000000 and 0.25 do not.
    """
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * NS_PER_US).astype(np.int64)
    return np.asarray(whole.astype(np.int64) * NS_PER_US + fraction_ns, dtype=np.int64)


def _possible(start_us: NDArray[np.float64], length_us: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of events that start within a day of the other events and last less than a day."""
    # Comparisons with NaN are false, so NaN is left out too.
    possible = (np.abs(start_us) < _LAST_US) & (np.abs(length_us) <= _DAY_US)
    if possible.any() and np.ptp(start_us[possible]) > _DAY_US:
        possible &= np.abs(start_us - np.median(start_us[possible])) <= _DAY_US
    return np.flatnonzero(possible)


def _cut_endless(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    recordings: Sequence[tuple[float, float]],
    notes: list[str],
) -> None:
    """Cut, in place, events that last longer than the recording and end after it: their end was not recorded."""
    spans = [(start, length) for start, length in recordings if abs(start) < _LAST_US and 0 < length <= _DAY_US]
    if not spans:
        return
    begins = nanoseconds(np.array([start for start, _ in spans]))
    lengths = nanoseconds(np.array([length for _, length in spans]))
    last_ns = int((begins + lengths).max())
    endless = (end_ns > last_ns) & (end_ns - start_ns > int(lengths.max()))
    if endless.any():
        notes.append(f"{int(endless.sum())} events claim to last longer than the recording; cut at its end")
        end_ns[endless] = np.maximum(start_ns[endless], last_ns)


def _order(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return indices sorted by start; among equal starts the longer first, then as given."""
    order = np.argsort(start_ns, kind="stable")
    equal = np.diff(start_ns[order]) == 0
    if equal.any():
        # Few starts are equal: only those are sorted again, within their positions.
        tied_positions = np.flatnonzero(np.append(equal, False) | np.insert(equal, 0, False))
        tied = order[tied_positions]
        order[tied_positions] = tied[np.lexsort((-end_ns[tied], start_ns[tied]))]
    return order
