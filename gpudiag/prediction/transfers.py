"""Simulate transfers of tensors or buckets over links that carry one transfer at a time.

Worked example. GPU 0 owns two tensors, each of which takes 10 ms to transfer. The first tensor goes to GPUs 1 and 2,
the second to GPU 1. The three transfers share the link out of GPU 0 and end at 10, 20 and 30 ms. Then a transfer of 10
ms from GPU 1 to GPU 2 is added. The link into GPU 2 is busy from 10 to 20 ms, so the added transfer also ends at 30 ms.

Communication after the end of the overlapping compute is exposed. Worked example. Backward takes 10 ms and completes
two buckets, at 4 and at 10 ms, whose transfers take 5 ms each. The first transfer ends at 9 ms and is hidden. The
second ends at 15 ms, so 5 ms are exposed. Transfers of 8 ms each would end at 12 and 20 ms, so 10 of their 16 ms would
be exposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpudiag.prediction.paths import HOST, Paths

#: Bytes per ms at 1 GB/s.
_BYTES_PER_MS = 1e6
#: If each of two simultaneous staged copies in opposite directions reaches less than this share of the one-way rate,
#: both are assumed to share one path in the host. On one path each reaches 0.5, on separate paths 1.
_SHARED = 0.75
#: Size of the host buffer through which a driver stages a copy between GPUs without peer access.
_STAGING_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer of one tensor or bucket.

    Attributes:
        links: names of the links that the transfer occupies from start to end, e.g. `out:0` and `in:1`.
        ready_ms: earliest start.
        duration_ms: time for which the transfer occupies its links.
    """

    links: tuple[str, ...]
    ready_ms: float
    duration_ms: float


def run(transfers: Iterable[Transfer]) -> list[tuple[Transfer, float]]:
    """Return (transfer, its end in ms) for each transfer. Links serve transfers in the given order."""
    free: dict[str, float] = {}
    ended = []
    for transfer in transfers:
        start = max([transfer.ready_ms, *(free.get(link, 0.0) for link in transfer.links)])
        end = start + transfer.duration_ms
        free.update(dict.fromkeys(transfer.links, end))
        ended.append((transfer, end))
    return ended


def exposed_after(ended: Iterable[tuple[Transfer, float]], compute_ms: float) -> float:
    """Return the time in ms from the end of the overlapping compute to the end of the last transfer."""
    return max([0.0, *(end - compute_ms for _, end in ended)])


def owners_by_size(sizes: Sequence[int], count: int) -> list[int]:
    """Return each tensor's owner (0 to `count` - 1): the owner with fewest bytes so far, as in parameter servers."""
    load = [0] * count
    owners = []
    for size in sizes:
        owner = load.index(min(load))
        load[owner] += size
        owners.append(owner)
    return owners


def fetch(paths: Paths, sizes: Sequence[int], owners: Sequence[int], wire: float = 1.0) -> list[Transfer]:
    """Return the transfers by which every GPU fetches every tensor from its owner (HOST, or a GPU).

    All owners serve the GPUs in the same order, so transfers of different owners sometimes share a receiver's link.

    Args:
        paths: the machine's paths.
        sizes: bytes of each tensor, in the order of the requests.
        owners: owner of each tensor.
        wire: bytes on the wire per byte (0.5 for fp32 sent as bf16).
    """
    duplex = len(set(owners)) > 1
    return [
        _transfer(paths, owner, gpu, size * wire, ready_ms=0.0, duplex=duplex)
        for size, owner in zip(sizes, owners, strict=True)
        for gpu in range(len(paths))
        if gpu != owner
    ]


def deliver(
    paths: Paths, sizes: Sequence[int], owners: Sequence[int], ready_ms: Sequence[float], wire: float = 1.0
) -> list[Transfer]:
    """Return the transfers by which every GPU sends every tensor to its owner when the tensor is ready.

    All GPUs send a tensor at the same time. Arguments are those of `fetch`; `ready_ms` has a time for each tensor.
    """
    duplex = len(set(owners)) > 1
    return [
        _transfer(paths, gpu, owner, size * wire, ready_ms=ready, duplex=duplex)
        for size, owner, ready in zip(sizes, owners, ready_ms, strict=True)
        for gpu in range(len(paths))
        if gpu != owner
    ]


def _transfer(paths: Paths, src: int, dst: int, size: float, *, ready_ms: float, duplex: bool) -> Transfer:
    """Return one transfer of `size` bytes between two GPUs (positions), or a GPU and HOST.

    If `duplex`, the opposite direction of its links is used at the same time. This is so if tensors have several
    owners, because each GPU then sends and receives at once.
    """
    links: tuple[str, ...] = (f"out:{src}", f"in:{dst}")
    latency_ms = paths.latency_us(src, dst) / 1e3
    if src == HOST:
        rate, links = paths.all_rate("host_to_device"), (f"in:{dst}",)
    elif dst == HOST:
        rate, links = paths.all_rate("device_to_host"), (f"out:{src}",)
    elif paths.peer_access(src, dst):
        rate = (paths.rate_both if duplex else paths.rate)(src, dst)
    else:
        rate = paths.rate(src, dst)
        if paths.rate_both(src, dst) < _SHARED * rate:
            links = (*links, f"staged:{min(src, dst)}-{max(src, dst)}")
        # The driver fills its buffer before emptying it, so the first block crosses the two links in sequence.
        latency_ms += min(size, _STAGING_BYTES) / (paths.rate(src, HOST) * _BYTES_PER_MS)
    return Transfer(links=links, ready_ms=ready_ms, duration_ms=latency_ms + size / (rate * _BYTES_PER_MS))
