"""Interpolate the duration of a collective of any size from measured durations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gpudiag.model.facts import QUEUED, Collective, Facts
from gpudiag.units import bus_factor

#: Above the largest measured size L, the slope between L and the largest size of at most `_FAR` times L is continued.
_FAR = 0.7
#: µs to start a ring all-reduce, µs per hop over NVLink, and µs per hop over PCIe or host memory. The values are from
#: the tables by which NCCL chooses its algorithm (`baseLatencies`, `hwLatencies` in src/graph/tuning.cc, Ring, Simple;
#: the same since 2.8).
_RING_US, _NVLINK_HOP_US, _PCIE_HOP_US = 8.4, 3.4, 5.7
#: An all-reduce of at most this many bytes takes only its latency, on any link.
_SMALL = 1 << 15


class Curve:
    """Time in ms of an all-reduce of any number of bytes over one transport.

    Between two measured sizes the time is interpolated linearly. Above the largest size, the slope between the largest
    and a clearly smaller size is continued. Below the smallest size, the time falls linearly to the time of an empty
    all-reduce, so that one measured size is enough for a curve. If the number of ranks changes from n to m, the latency
    scales with the number of hops, and the remaining time with the bytes per link: time(m) = latency (m - 1)/(n - 1) +
    (time(n) - latency) factor(m) / factor(n). The latency is the time of the smallest known size.

    Args:
        points: measured bytes → ms.
        ranks: number of ranks in the measurement.
        empty_ms: time of an empty all-reduce; ignored if small sizes were measured.
    """

    def __init__(self, points: dict[int, float], ranks: int, *, empty_ms: float | None = None) -> None:
        self._points = sorted(points.items())
        self.ranks = ranks
        smallest, smallest_ms = self._points[0]
        if empty_ms is not None and smallest > _SMALL and empty_ms < smallest_ms:
            self._points.insert(0, (0, empty_ms))

    def time_ms(self, size: float, ranks: int | None = None) -> float:
        """Return the time of an all-reduce of `size` bytes on each of `ranks` ranks (None: as many as measured).

        A single rank reduces nothing, in 0 ms.
        """
        measured_ms = self._interpolated(size)
        # A curve of fewer than two ranks has no hops to scale.
        if ranks is None or ranks == self.ranks or self.ranks < 2:
            return measured_ms
        if ranks < 2:
            return 0.0
        latency_ms = min(measured_ms, self._points[0][1])
        link_bytes = (bus_factor("all_reduce", ranks) or 1.0) / (bus_factor("all_reduce", self.ranks) or 1.0)
        return latency_ms * (ranks - 1) / (self.ranks - 1) + (measured_ms - latency_ms) * link_bytes

    def busbw(self, size: float) -> float:
        """Return the bus bandwidth in GB/s at this size; for a single rank, bytes / time."""
        return size * (bus_factor("all_reduce", self.ranks) or 1.0) / (self._interpolated(size) * 1e6)

    def _interpolated(self, size: float) -> float:
        """Return the time in ms of an all-reduce of `size` bytes with the measured number of ranks."""
        points = self._points
        if size <= points[0][0]:
            return points[0][1]
        for (low, low_ms), (high, high_ms) in pairwise(points):
            if low <= size <= high:
                return low_ms + (size - low) / (high - low) * (high_ms - low_ms)
        largest, largest_ms = points[-1]
        # A slope between similar sizes would be mostly noise. Without a smaller size, time is proportional to size.
        smaller = [(point, ms) for point, ms in points if point <= _FAR * largest]
        if not smaller:
            return largest_ms * size / largest
        low, low_ms = smaller[-1]
        # At least half of the mean time per byte, because noise may make the slope too small or negative.
        slope = max((largest_ms - low_ms) / (largest - low), 0.5 * largest_ms / largest)
        return largest_ms + (size - largest) * slope


def measured_curve(facts: Facts, transport: str, ranks: int) -> Curve | None:
    """Return the curve of a transport; None if the transport was not measured.

    Of the measured numbers of ranks, the nearest to `ranks` is used, of two the smaller. If a size was measured twice,
    the measurement `QUEUED`, in which the host runs ahead of the device, is used, as in training.
    """
    by_ranks: dict[int, dict[int, float]] = {}
    for name in (transport, transport + QUEUED):
        for collective in facts.collectives:
            if (
                (collective.operation, collective.strategy) == ("all_reduce", name)
                and collective.verified is not False
                and collective.time_us > 0
            ):
                by_ranks.setdefault(collective.ranks, {})[collective.bytes] = collective.time_us / 1e3
    if not by_ranks:
        return None
    nearest = min(by_ranks, key=lambda measured: (abs(measured - ranks), measured))
    return Curve(by_ranks[nearest], nearest, empty_ms=empty_all_reduce_ms(nearest))


def curves_of(collectives: Iterable[Collective]) -> dict[str, Curve]:
    """Return transport → curve. Each transport must have been measured with one number of ranks."""
    points: dict[str, dict[int, float]] = {}
    ranks: dict[str, int] = {}
    for collective in collectives:
        points.setdefault(collective.strategy, {})[collective.bytes] = collective.time_us / 1e3
        ranks[collective.strategy] = collective.ranks
    return {
        transport: Curve(measured, ranks[transport], empty_ms=empty_all_reduce_ms(ranks[transport]))
        for transport, measured in points.items()
    }


def empty_all_reduce_ms(ranks: int, *, nvlink: bool = False) -> float:
    """Return the time of an empty ring all-reduce of n ranks: its start and 2(n - 1) hops."""
    return (_RING_US + 2 * (ranks - 1) * (_NVLINK_HOP_US if nvlink else _PCIE_HOP_US)) / 1e3
