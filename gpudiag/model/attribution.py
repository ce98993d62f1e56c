"""Attribution: each nanosecond of each device window is in exactly one bucket."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals
from gpudiag.model.analysis import BUCKETS

Times = NDArray[np.int64]


class TrackAttribution(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one device track, divided into buckets.

    Attributes:
        bounds: int64[k + 1], the windows.
        parts: intervals of each of the eight buckets; disjoint, and together all of [bounds[0], bounds[k]).
        buckets_ns: int64[k, 8], length of each bucket in each window, in the order of `BUCKETS`.
        hidden_ns: int64[k], communication beside compute, in each window.
        waits_ns: rank waited for → int64[k], its share of `communication_wait`.
        unsplit_ns: int64[k], part of `communication_transfer` without a known partner, which may include waiting.
        unmarked_input: part of `idle` between a step's start and its first op while the host recorded nothing: usually
            an input pipeline without marks.
        queued: part of `idle` while the next op was already launched (gaps between queued kernels, dependencies between
            streams).
    """

    rank: int
    bounds: Times
    parts: dict[str, Intervals]
    buckets_ns: Times
    hidden_ns: Times
    waits_ns: dict[int, Times]
    unsplit_ns: Times
    unmarked_input: Intervals
    queued: Intervals

    @property
    def step_ns(self) -> Times:
        """int64[k], length of each window."""
        return np.diff(self.bounds)

    def check(self) -> None:
        """Check the conservation law: the buckets of each window sum exactly to its length.

        Raises:
            ArithmeticError: they do not, which is a defect of gpudiag, not of the trace.
        """
        if self.buckets_ns.shape != (len(self.bounds) - 1, len(BUCKETS)):
            raise ArithmeticError(f"rank {self.rank}: buckets of shape {self.buckets_ns.shape}")
        off = self.buckets_ns.sum(axis=1) - self.step_ns
        if (off != 0).any() or (self.buckets_ns < 0).any():
            raise ArithmeticError(f"rank {self.rank}: buckets miss their windows by {off.tolist()} ns")


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """All device tracks, in the order of the timeline's."""

    tracks: tuple[TrackAttribution, ...]

    def check(self) -> None:
        """Call `TrackAttribution.check` for every track."""
        for track in self.tracks:
            track.check()
