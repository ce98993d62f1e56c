"""Convert units. Times are integer nanoseconds in the code and milliseconds in results; 1 GB is 1e9 bytes."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

#: (a, b) of each collective. Over n ranks, each link carries (a * n - b) / n of the collective's bytes. nccl-tests
#: calls this factor busbw / algbw (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
_BUS_FACTORS = {
    "all_reduce": (2, 2),
    "all_gather": (1, 1),
    "reduce_scatter": (1, 1),
    "all_to_all": (1, 1),
    "broadcast": (1, 0),
    "reduce": (1, 0),
}


def milliseconds(duration_ns: float) -> float:
    """Convert nanoseconds to milliseconds."""
    return float(duration_ns) / NS_PER_MS


def gb_per_s(size_bytes: float, duration_ns: float) -> float:
    """Return the bandwidth in GB/s of `size_bytes` moved in `duration_ns`; 0 < duration."""
    if duration_ns <= 0:
        raise ValueError(f"a bandwidth needs a positive duration, not {duration_ns} ns")
    return size_bytes / duration_ns


def bus_factor(operation: str, ranks: int) -> float | None:
    """Return busbw / algbw of a collective over `ranks` ranks; None for an operation without a factor, or no ranks.

    The factor applies to the size as nccl-tests defines it. For all_gather and reduce_scatter, this size is that of the
    whole buffer, with the shares of all ranks.
    """
    if operation not in _BUS_FACTORS or ranks < 1:
        return None
    a, b = _BUS_FACTORS[operation]
    return (a * ranks - b) / ranks
