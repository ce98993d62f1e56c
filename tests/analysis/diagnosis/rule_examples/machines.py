"""Build small machines for examples and tests of hardware rules, each in one expression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpudiag.model.facts import Bandwidth, Clock, Collective, Facts, Gpu, Host, Link, PcieLink

_MIB_256 = 256 << 20


def gpu(index: int, name: str = "Example 9000", *, sm_mhz: int = 1980, memory_mhz: int = 3201, **fields: Any) -> Gpu:
    """Return a healthy idle GPU on PCIe 5 x16, whose link is at generation 1 while idle."""
    defaults: dict[str, Any] = {
        "sm_clock": Clock(current_mhz=345, maximum_mhz=sm_mhz),
        "memory_clock": Clock(current_mhz=memory_mhz, maximum_mhz=memory_mhz),
        "memory_bytes": 80 << 30,
        "throttle_reasons": ("idle",),
        "pcie": PcieLink(generation=1, width=16, maximum_generation=5, maximum_width=16),
    }
    return Gpu(index=index, name=name, **(defaults | fields))


def loaded(generation: int, width: int, maximum_generation: int, maximum_width: int) -> PcieLink:
    """Return a PCIe link as it is read under load."""
    return PcieLink(
        generation=generation,
        width=width,
        maximum_generation=maximum_generation,
        maximum_width=maximum_width,
        under_load=True,
    )


def machine(
    *gpus: Gpu, links: Iterable[Link] = (), bandwidth: Iterable[Bandwidth | tuple[Bandwidth, ...]] = (), **fields: Any
) -> Facts:
    """Return a machine with GPUs, links and bandwidths."""
    flat = tuple(r for item in bandwidth for r in (item if isinstance(item, tuple) else (item,)))
    return Facts(host=Host(name="example"), gpus=gpus, links=tuple(links), bandwidth=flat, **fields)


def host_copies(index: int, gb_per_s: float, **fields: Any) -> tuple[Bandwidth, ...]:
    """Return the bandwidth of pinned copies of one GPU to and from the host, at the same rate."""
    common: dict[str, Any] = {"memory": "pinned", "direction": "one_way", "size_bytes": _MIB_256, "gb_per_s": gb_per_s}
    return (
        Bandwidth(path="host_to_device", src="host", dst=f"gpu:{index}", **(common | fields)),
        Bandwidth(path="device_to_host", src=f"gpu:{index}", dst="host", **(common | fields)),
    )


def together(*shares: float) -> Bandwidth:
    """Return the bandwidth of copies of all GPUs to the host at once; `shares` are GB/s of each GPU."""
    return Bandwidth(
        path="device_to_host",
        src="all",
        dst="host",
        memory="pinned",
        direction="one_way",
        size_bytes=_MIB_256,
        gb_per_s=sum(shares),
        per_device={f"gpu:{index}": share for index, share in enumerate(shares)},
    )


def peer_copies(
    a: int, b: int, one_way: float, both_ways: float | None = None, *, peer_access: bool, **fields: Any
) -> tuple[Bandwidth, ...]:
    """Return the bandwidths of copies between two GPUs: each direction alone and, if given, the sum of both at once."""
    records = [(a, b, "one_way", one_way), (b, a, "one_way", one_way)]
    if both_ways is not None:
        records.append((a, b, "both_ways", both_ways))
    return tuple(
        Bandwidth(
            path="peer",
            src=f"gpu:{source}",
            dst=f"gpu:{destination}",
            memory="device",
            direction="one_way" if direction == "one_way" else "both_ways",
            peer_access=peer_access,
            size_bytes=_MIB_256,
            gb_per_s=rate,
            **fields,
        )
        for source, destination, direction, rate in records
    )


def both_ways(index: int, gb_per_s: float) -> Bandwidth:
    """Return the total bandwidth of pinned copies of one GPU to and from the host at once."""
    return Bandwidth(
        path="host_to_device", src="host", dst=f"gpu:{index}", memory="pinned", direction="both_ways",
        size_bytes=_MIB_256, gb_per_s=gb_per_s,
    )  # fmt: skip


def reduced(*, verified: bool) -> Collective:
    """Return the result of an all-reduce of two GPUs, whose sums are right if `verified`."""
    return Collective(
        operation="all_reduce", strategy="nccl", ranks=2, bytes=1 << 20, time_us=40.0, algbw_gb_per_s=26.0,
        busbw_gb_per_s=26.0, verified=verified,
    )  # fmt: skip


def all_pairs(denied: set[tuple[int, int]], count: int, reason: str | None = None) -> tuple[Link, ...]:
    """Return links between all pairs of GPUs, with peer access except for the denied pairs."""
    return tuple(
        Link(a=a, b=b, kind="PHB", peer_access=(a, b) not in denied, reason=reason if (a, b) in denied else None)
        for a in range(count)
        for b in range(a + 1, count)
    )
