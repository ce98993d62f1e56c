"""Who sends what to whom: the shapes that exchanges of gradients and parameters have.

A piece is a tensor or a bucket, in bytes, in the order in which it is needed (parameters) or made (gradients). Every
pattern says which links each piece holds and for how long; `transfers.run` says when it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.prediction.paths import HOST, Paths
from gpudiag.prediction.transfers import Transfer

_BYTES_PER_MS = 1e6
"""1 GB/s."""
#: Below this share of the one-way rate, two staged copies in opposite directions share one path through the host.
_SHARED = 0.75
#: Host memory through which a driver stages a copy between GPUs without peer access, piece by piece.
_STAGING_BYTES = 1 << 20


def owners_by_size(pieces: Sequence[int], count: int) -> list[int]:
    """An owner for each piece: whoever has the fewest bytes so far, as parameter servers place variables."""
    load = [0] * count
    chosen = []
    for size in pieces:
        owner = load.index(min(load))
        load[owner] += size
        chosen.append(owner)
    return chosen


def fetch(paths: Paths, pieces: Sequence[int], owners: Sequence[int], wire: float = 1.0) -> list[Transfer]:
    """Every GPU fetches every piece from its owner (HOST, or a GPU, which has its own already).

    Owners serve the others in the same order, piece by piece, so that they meet at the same receiver now and then.

    Args:
        paths: the machine.
        pieces: bytes of each, in the order in which they are asked for.
        owners: of each piece.
        wire: bytes on the wire per byte (0.5 for fp32 sent as bf16).
    """
    duplex = len(set(owners)) > 1
    return [
        _transfer(paths, owner, gpu, size * wire, ready_ms=0.0, duplex=duplex)
        for size, owner in zip(pieces, owners, strict=True)
        for gpu in range(len(paths))
        if gpu != owner
    ]


def deliver(
    paths: Paths, pieces: Sequence[int], owners: Sequence[int], ready_ms: Sequence[float], wire: float = 1.0
) -> list[Transfer]:
    """Every GPU sends every piece to its owner once it is ready: all of them the same piece at the same time."""
    duplex = len(set(owners)) > 1
    return [
        _transfer(paths, gpu, owner, size * wire, ready_ms=ready, duplex=duplex)
        for size, owner, ready in zip(pieces, owners, ready_ms, strict=True)
        for gpu in range(len(paths))
        if gpu != owner
    ]


def _transfer(paths: Paths, src: int, dst: int, size: float, *, ready_ms: float, duplex: bool) -> Transfer:
    """One piece over its links. `duplex`: other pieces go the other way meanwhile."""
    ways: tuple[str, ...]
    latency_ms = paths.latency_us(src, dst) / 1e3
    if src == HOST:
        rate, ways = paths.all_rate("host_to_device"), (f"in:{dst}",)
    elif dst == HOST:
        rate, ways = paths.all_rate("device_to_host"), (f"out:{src}",)
    elif paths.peer_access(src, dst):
        rate, ways = (paths.rate_both if duplex else paths.rate)(src, dst), (f"out:{src}", f"in:{dst}")
    else:
        rate, ways = paths.rate(src, dst), (f"out:{src}", f"in:{dst}")
        if paths.rate_both(src, dst) < _SHARED * rate:
            ways = (*ways, f"staged:{min(src, dst)}-{max(src, dst)}")
        # The driver's buffer has to be filled before it can be emptied: what fits into it goes there, then on.
        latency_ms += min(size, _STAGING_BYTES) / (paths.rate(src, HOST) * _BYTES_PER_MS)
    takes = latency_ms + size / (rate * _BYTES_PER_MS)
    return Transfer(ways=ways, ready_ms=ready_ms, takes_ms=takes)
