"""What each path of a machine carries, for transfers that a strategy makes: from its facts, measured or by its links.

Where a path was measured the figure is the measured one. Where it was not, it follows from what the hardware is (link
kind, PCIe generation and width), at the share of the ceiling that healthy links reach, and `assumed` says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise, permutations

from gpudiag.model.facts import Facts, Gpu

HOST = -1
"""The host, where GPUs are numbered from 0."""

#: Raw GB/s of a PCIe lane, one way, by generation (line rate times encoding).
_PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
#: One-way GB/s of an NVLink lane where NVML did not say: the slowest there is (NVLink 1, NVIDIA P100 data sheet).
_NVLINK_LANE = 20.0
#: What copies reach of the raw rate: packet headers take 8 to 12 %, flow control some more.
_PCIE_SHARE, _NVLINK_SHARE = 0.8, 0.85
#: A link of which nothing is known: PCIe 3 x16, the least that servers with several GPUs have had since 2012.
_UNKNOWN_PCIE = (3, 16)
#: µs to start a copy, where it was not measured: one between host and GPU, or between GPUs with peer access.
_HOP_US = 8.0
#: GB/s of host memory that a core reads and writes, and the bounds for all of them, where it was not measured: a core
#: sustains 3 to 15 GB/s alone and few sockets more than 200 together.
_MEMORY_PER_CORE, _LEAST_MEMORY, _MOST_MEMORY = 4.0, 20.0, 200.0

#: GB/s. A figure below it was not measured, and nothing is divided by it.
_LEAST_RATE = 1e-6


class Paths:
    """Rates in GB/s (1e9 bytes per second, one way unless said) and latencies in µs between host and GPUs.

    Args:
        facts: the machine.
        devices: inventory indices of the GPUs that train; the methods count within these, from 0.
        p2p: False where peer access is switched off.
    """

    def __init__(self, facts: Facts, devices: Sequence[int], *, p2p: bool = True) -> None:
        self.facts = facts
        self.devices = tuple(devices)
        self.p2p = p2p
        self.assumed: dict[str, str] = {}
        self._gpus = {gpu.index: gpu for gpu in facts.gpus}
        self._links = {frozenset((link.a, link.b)): link for link in facts.links}
        self._measured: dict[tuple[str, str, str, str, bool | None], float] = {}
        for record in facts.bandwidth:
            if record.verified is not False and record.gb_per_s >= _LEAST_RATE and record.memory != "pageable":
                key = (record.path, record.src, record.dst, record.direction, record.peer_access)
                self._measured[key] = max(record.gb_per_s, self._measured.get(key, 0.0))
        self._ring: tuple[tuple[int, int], ...] | None = None

    def __len__(self) -> int:
        return len(self.devices)

    def peer_access(self, a: int, b: int) -> bool:
        """Whether GPU a copies to b directly."""
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        return self.p2p and link is not None and link.peer_access is True

    def kind(self, a: int, b: int) -> str:
        """The link between two GPUs, as nvidia-smi names it."""
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        return "unknown" if link is None else link.kind

    def rate(self, src: int, dst: int) -> float:
        """From `src` to `dst` (HOST for the host), one transfer at a time."""
        if src == HOST:
            return self._host_rate("host_to_device", dst)
        if dst == HOST:
            return self._host_rate("device_to_host", src)
        return self._peer_rate(src, dst, "one_way")

    def rate_both(self, a: int, b: int) -> float:
        """From a to b while as much goes from b to a: half of the sum of both ways."""
        if HOST in (a, b):
            gpu = b if a == HOST else a
            place = f"gpu:{self.devices[gpu]}"
            found = [
                rate
                for (path, src, dst, way, _), rate in self._measured.items()
                if way == "both_ways" and path in ("host_to_device", "device_to_host") and place in (src, dst)
            ]
            one_way = self.rate(a, b)
            return min(one_way, max(found) / 2) if found else one_way
        return min(self._peer_rate(a, b, "one_way"), self._peer_rate(a, b, "both_ways") / 2)

    def all_rate(self, path: str) -> float:
        """Of each GPU while all copy to (`device_to_host`) or from (`host_to_device`) the host at once.

        Measured with all GPUs of the machine; fewer get at most what their own links carry.
        """
        alone = min(self._host_rate(path, gpu) for gpu in range(len(self)))
        ends = ("host", "all") if path == "host_to_device" else ("all", "host")
        together = self._measured.get((path, *ends, "one_way", None))
        if together is None or len(self) < 2:
            return alone
        return min(alone, together / len(self))

    def all_rate_both(self) -> float:
        """Of each GPU and each way while all copy to and from the host at once."""
        found = [
            record.gb_per_s
            for record in self.facts.bandwidth
            if record.direction == "both_ways"
            and record.gb_per_s >= _LEAST_RATE
            and "all" in (record.src, record.dst)
            and record.path != "peer"
        ]
        one_way = min(self.all_rate("host_to_device"), self.all_rate("device_to_host"))
        return min(one_way, found[0] / 2 / len(self)) if found and len(self) > 1 else one_way

    def latency_us(self, src: int, dst: int) -> float:
        """To start one transfer. A staged one between GPUs is two, so half of it is one with the host."""
        if HOST in (src, dst):
            place = f"gpu:{self.devices[dst if src == HOST else src]}"
            found = [
                record.time_us
                for record in self.facts.latency
                if record.kind == "small_copy"
                and "host" in (record.src, record.dst)
                and place in (record.src, record.dst)
            ]
            if found:
                return statistics.median(found)
            staged = [
                record.time_us / 2
                for record in self.facts.latency
                if record.kind == "small_copy" and record.peer_access is False and place in (record.src, record.dst)
            ]
            return statistics.median(staged) if staged else self._assume("latency", _HOP_US, "µs per copy")
        direct = self.peer_access(src, dst)
        ends = {f"gpu:{self.devices[src]}", f"gpu:{self.devices[dst]}"}
        found = [
            record.time_us
            for record in self.facts.latency
            if record.kind == "small_copy" and {record.src, record.dst} == ends and record.peer_access is direct
        ]
        if found:
            return statistics.median(found)
        return self._assume("latency", _HOP_US if direct else 2 * _HOP_US, "µs per copy")

    def host_memory(self) -> float:
        """GB/s that the CPUs read and write together. Copied bytes count once where it was measured, here twice."""
        found = [
            record.gb_per_s
            for record in self.facts.bandwidth
            if record.path == "host_memory" and record.gb_per_s >= _LEAST_RATE
        ]
        if found:
            return 2 * max(found)
        cores = self.facts.host.cores or (self.facts.host.threads or 0) / 2 or 10
        return self._assume("host memory", min(_MOST_MEMORY, max(_LEAST_MEMORY, _MEMORY_PER_CORE * cores)), "GB/s")

    @property
    def ring(self) -> tuple[tuple[int, int], ...]:
        """The pairs of neighbours of the best ring over all GPUs: the one whose slowest link carries most.

        Neighbours alone count: GPUs of a mesh in which not all reach each other (DGX-1) have a ring of direct links.
        """
        if self._ring is None:
            count = len(self)
            if count > 8:  # 5040 rings of 8 can be tried; beyond, neighbours by number, as NCCL numbers them well
                rings: Iterable[tuple[int, ...]] = [tuple(range(1, count))]
            else:
                rings = permutations(range(1, count))
            closed = (tuple(pairwise((0, *rest, 0))) for rest in rings)
            rates = {(a, b): self.rate_both(a, b) for a, b in permutations(range(count), 2)}
            self._ring = max(closed, key=lambda pairs: min(rates[pair] for pair in pairs)) if count > 1 else ()
        return self._ring

    @property
    def ring_is_direct(self) -> bool:
        """Whether all neighbours in the best ring copy directly: what a ring needs, whoever else reaches whom."""
        return all(self.peer_access(a, b) for a, b in self.ring)

    @property
    def ring_is_nvlink(self) -> bool:
        """Whether the best ring is of NVLink alone."""
        return self.ring_is_direct and all(self.nvlink(a, b) for a, b in self.ring)

    def ring_rate(self) -> float:
        """Each way along the slowest link of the best ring over all GPUs, in which each sends while it receives."""
        return min((self.rate_both(a, b) for a, b in self.ring), default=float("inf"))

    @property
    def ring_staging_is_measured(self) -> bool:
        """Whether copies through the host were measured while as much went the other way, along the whole ring."""
        wanted = ("peer", "both_ways", False)
        ways = {(src, dst) for path, src, dst, way, access in self._measured if (path, way, access) == wanted}
        names = [(f"gpu:{self.devices[a]}", f"gpu:{self.devices[b]}") for a, b in self.ring]
        return all((a, b) in ways or (b, a) in ways for a, b in names)

    def nvlink(self, a: int, b: int) -> bool:
        """Whether NVLink joins two GPUs: by the link's kind, or, where that is not known, two boards whose direct
        links have been NVLink since there are any (SXM)."""
        kind = self.kind(a, b)
        if kind != "unknown":
            return kind.startswith("NV")
        boards = [self._gpus.get(self.devices[gpu]) for gpu in (a, b)]
        return self.peer_access(a, b) and all(board is not None and "SXM" in board.name for board in boards)

    def _host_rate(self, path: str, gpu: int) -> float:
        place = f"gpu:{self.devices[gpu]}"
        ends = ("host", place) if path == "host_to_device" else (place, "host")
        found = self._measured.get((path, *ends, "one_way", None))
        return found if found is not None else self._pcie(self._gpus.get(self.devices[gpu]))

    def _peer_rate(self, a: int, b: int, way: str) -> float:
        direct = self.peer_access(a, b)
        src, dst = f"gpu:{self.devices[a]}", f"gpu:{self.devices[b]}"
        found = self._measured.get(("peer", src, dst, way, direct))
        if found is None and way == "both_ways":
            found = self._measured.get(("peer", dst, src, way, direct))
        if found is not None:
            return found
        both = 2.0 if way == "both_ways" else 1.0
        if not direct:
            # Through the host: out of one GPU and into the other at once, each over its own link.
            return both * min(self._host_rate("device_to_host", a), self._host_rate("host_to_device", b))
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        if link is not None and self.nvlink(a, b):
            lanes = link.lanes or int(link.kind.removeprefix("NV")) if link.kind.startswith("NV") else 1
            gpu = self._gpus.get(self.devices[a])
            known = [lane.gb_per_s for lane in gpu.nvlinks if lane.gb_per_s] if gpu is not None else []
            lane_rate = min(known) if known else _NVLINK_LANE
            return both * self._assume(f"{src}-{dst}", lanes * lane_rate * _NVLINK_SHARE, "GB/s by its lanes")
        return both * min(self._host_rate("device_to_host", a), self._host_rate("host_to_device", b))

    def _pcie(self, gpu: Gpu | None) -> float:
        link = gpu.pcie if gpu is not None else None
        generation = link and (link.maximum_generation or link.generation)
        width = link and (link.maximum_width or link.width)
        if not generation or not width or generation not in _PCIE_LANE:
            generation, width = _UNKNOWN_PCIE
        return self._assume(
            "host link", width * _PCIE_LANE[generation] * _PCIE_SHARE, f"GB/s, as PCIe {generation} x{width}"
        )

    def _assume(self, what: str, value: float, unit: str) -> float:
        self.assumed[what] = f"{value:.3g} {unit}"
        return value
