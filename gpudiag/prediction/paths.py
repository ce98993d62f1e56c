"""Return the rates and latencies of a machine's paths: measured values, or else values assumed from its links.

An assumed rate is the maximum rate of a link of this kind, PCIe generation and width, times the share that healthy
links reach. `Paths.assumed` lists the assumed values.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, permutations

from gpudiag.model.facts import Facts, Gpu

#: Number of the host; GPUs are numbered from 0.
HOST = -1

#: Raw GB/s of a PCIe lane, one way, by generation (line rate times encoding efficiency).
_PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
#: Assumed one-way GB/s of an NVLink lane: that of the slowest version (NVLink 1, NVIDIA P100 data sheet).
_NVLINK_LANE = 20.0
#: Share of a link's raw rate that copies reach. Packet headers take 8 to 12 % of the rate, flow control a little more.
_PCIE_SHARE, _NVLINK_SHARE = 0.8, 0.85
#: Assumed generation and width of an unknown PCIe link: the minimum in servers with several GPUs since 2012.
_UNKNOWN_PCIE = (3, 16)
#: Assumed µs to start a copy between host and GPU, or between GPUs with peer access.
_HOP_US = 8.0
#: Assumed GB/s of host memory per core. A core alone reaches 3 to 15 GB/s.
_MEMORY_PER_CORE = 4.0
#: Bounds of the assumed GB/s of host memory. Few sockets reach more.
_LEAST_MEMORY, _MOST_MEMORY = 20.0, 200.0

#: Smallest rate in GB/s that counts as measured, so that no size is divided by a tiny rate.
_LEAST_RATE = 1e-6


class Paths:
    """Rates in GB/s (1e9 bytes per second, one direction unless stated) and latencies in µs between host and GPUs.

    Args:
        facts: the machine.
        devices: inventory indices of the training GPUs. The methods take positions in this list.
        p2p: False if peer access is disabled.

    Attributes:
        assumed: name of a path whose value was not measured → assumed value in words.
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
        self._small_copies = [record for record in facts.latency if record.kind == "small_copy"]

    def __len__(self) -> int:
        return len(self.devices)

    def peer_access(self, a: int, b: int) -> bool:
        """Return whether GPU a copies directly to GPU b."""
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        return self.p2p and link is not None and link.peer_access is True

    def kind(self, a: int, b: int) -> str:
        """Return nvidia-smi's name of the link between two GPUs."""
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        return "unknown" if link is None else link.kind

    def rate(self, src: int, dst: int) -> float:
        """Return the rate of a single transfer from `src` to `dst` (each a GPU's position, or HOST)."""
        if src == HOST:
            return self._host_rate("host_to_device", dst)
        if dst == HOST:
            return self._host_rate("device_to_host", src)
        return self._peer_rate(src, dst, "one_way")

    def rate_both(self, a: int, b: int) -> float:
        """Return the rate from a to b while b also sends to a: half of both rates' sum, at most the one-way rate."""
        if HOST in (a, b):
            gpu = b if a == HOST else a
            name = f"gpu:{self.devices[gpu]}"
            rates = [
                rate
                for (path, src, dst, way, _), rate in self._measured.items()
                if way == "both_ways" and path in ("host_to_device", "device_to_host") and name in (src, dst)
            ]
            one_way = self.rate(a, b)
            return min(one_way, max(rates) / 2) if rates else one_way
        return min(self._peer_rate(a, b, "one_way"), self._peer_rate(a, b, "both_ways") / 2)

    def all_rate(self, path: str) -> float:
        """Return each GPU's rate while all GPUs copy to (`device_to_host`) or from (`host_to_device`) the host.

        The measured sum of rates covers all GPUs of the machine. The slowest link limits the result.
        """
        slowest_link = min(self._host_rate(path, gpu) for gpu in range(len(self)))
        ends = ("host", "all") if path == "host_to_device" else ("all", "host")
        sum_of_rates = self._measured.get((path, *ends, "one_way", None))
        if sum_of_rates is None or len(self) < 2:
            return slowest_link
        return min(slowest_link, sum_of_rates / len(self))

    def all_rate_both(self) -> float:
        """Return each GPU's rate in one direction while all GPUs copy to and from the host at once.

        The measured rate is the sum over all GPUs and both directions.
        """
        rates = [
            record.gb_per_s
            for record in self.facts.bandwidth
            if record.direction == "both_ways"
            and record.gb_per_s >= _LEAST_RATE
            and "all" in (record.src, record.dst)
            and record.path != "peer"
        ]
        one_way = min(self.all_rate("host_to_device"), self.all_rate("device_to_host"))
        return min(one_way, rates[0] / 2 / len(self)) if rates and len(self) > 1 else one_way

    def latency_us(self, src: int, dst: int) -> float:
        """Return the µs to start a transfer. A staged copy between GPUs counts as two transfers."""
        if HOST in (src, dst):
            gpu = f"gpu:{self.devices[dst if src == HOST else src]}"
            times = [copy.time_us for copy in self._small_copies if {copy.src, copy.dst} == {"host", gpu}]
            times = times or [
                copy.time_us / 2  # a staged copy between GPUs is two transfers
                for copy in self._small_copies
                if copy.peer_access is False and gpu in (copy.src, copy.dst)
            ]
            hops = 1
        else:
            direct = self.peer_access(src, dst)
            ends = {f"gpu:{self.devices[src]}", f"gpu:{self.devices[dst]}"}
            times = [
                copy.time_us
                for copy in self._small_copies
                if {copy.src, copy.dst} == ends and copy.peer_access is direct
            ]
            hops = 1 if direct else 2
        return statistics.median(times) if times else self._assume("latency", hops * _HOP_US, "µs per copy")

    def host_memory(self) -> float:
        """Return the GB/s that the CPUs read plus write: twice the measured rate of copies, or assumed."""
        rates = [
            record.gb_per_s
            for record in self.facts.bandwidth
            if record.path == "host_memory" and record.gb_per_s >= _LEAST_RATE
        ]
        if rates:
            return 2 * max(rates)
        # Without the number of cores, two threads per core are assumed, or else 10 cores.
        cores = self.facts.host.cores or (self.facts.host.threads or 0) / 2 or 10
        return self._assume("host memory", min(_MOST_MEMORY, max(_LEAST_MEMORY, _MEMORY_PER_CORE * cores)), "GB/s")

    @cached_property
    def ring(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of neighbours of the best ring over all GPUs: the ring whose slowest link is fastest.

        Only links between neighbours matter, so a mesh with partial peer access (DGX-1) may have a direct ring.
        """
        count = len(self)
        if count < 2:
            return ()
        # Up to 8 GPUs, all rings (at most 5040) are evaluated. With more GPUs, the ring follows the GPUs' numbers.
        orders = permutations(range(1, count)) if count <= 8 else [tuple(range(1, count))]
        closed = (tuple(pairwise((0, *order, 0))) for order in orders)
        rates = {(a, b): self.rate_both(a, b) for a, b in permutations(range(count), 2)}
        return max(closed, key=lambda pairs: min(rates[pair] for pair in pairs))

    @property
    def ring_is_direct(self) -> bool:
        """Return whether all neighbours in the best ring copy directly."""
        return all(self.peer_access(a, b) for a, b in self.ring)

    @property
    def ring_is_nvlink(self) -> bool:
        """Return whether the best ring consists of NVLink only."""
        return self.ring_is_direct and all(self.nvlink(a, b) for a, b in self.ring)

    def ring_rate(self) -> float:
        """Return the rate per direction of the best ring's slowest link while every GPU sends and receives.

        It is infinite for one GPU.
        """
        return min((self.rate_both(a, b) for a, b in self.ring), default=float("inf"))

    @property
    def ring_staging_is_measured(self) -> bool:
        """Return whether staged copies in both directions at once were measured along the whole ring."""
        staged = ("peer", "both_ways", False)
        measured = {(src, dst) for path, src, dst, way, access in self._measured if (path, way, access) == staged}
        names = [(f"gpu:{self.devices[a]}", f"gpu:{self.devices[b]}") for a, b in self.ring]
        return all((a, b) in measured or (b, a) in measured for a, b in names)

    def nvlink(self, a: int, b: int) -> bool:
        """Return whether NVLink joins two GPUs: by the link's kind, or if both are SXM boards with peer access."""
        kind = self.kind(a, b)
        if kind != "unknown":
            return kind.startswith("NV")
        boards = [self._gpus.get(self.devices[gpu]) for gpu in (a, b)]
        return self.peer_access(a, b) and all(board is not None and "SXM" in board.name for board in boards)

    def _host_rate(self, path: str, gpu: int) -> float:
        name = f"gpu:{self.devices[gpu]}"
        ends = ("host", name) if path == "host_to_device" else (name, "host")
        rate = self._measured.get((path, *ends, "one_way", None))
        return rate if rate is not None else self._pcie(self._gpus.get(self.devices[gpu]))

    def _peer_rate(self, a: int, b: int, way: str) -> float:
        """Return the rate of copies from a to b; if `way` is `both_ways`, the sum of both directions."""
        direct = self.peer_access(a, b)
        src, dst = f"gpu:{self.devices[a]}", f"gpu:{self.devices[b]}"
        rate = self._measured.get(("peer", src, dst, way, direct))
        if rate is None and way == "both_ways":
            rate = self._measured.get(("peer", dst, src, way, direct))
        if rate is not None:
            return rate
        directions = 2.0 if way == "both_ways" else 1.0
        if not direct:
            # A staged copy uses the links of both GPUs at the same time.
            return directions * min(self._host_rate("device_to_host", a), self._host_rate("host_to_device", b))
        link = self._links.get(frozenset((self.devices[a], self.devices[b])))
        if link is not None and self.nvlink(a, b):
            # `NV4` has four lanes. If the kind is unknown, a single lane is assumed.
            lanes = link.lanes or int(link.kind.removeprefix("NV")) if link.kind.startswith("NV") else 1
            gpu = self._gpus.get(self.devices[a])
            known = [lane.gb_per_s for lane in gpu.nvlinks if lane.gb_per_s] if gpu is not None else []
            lane_rate = min(known) if known else _NVLINK_LANE
            return directions * self._assume(f"{src}-{dst}", lanes * lane_rate * _NVLINK_SHARE, "GB/s by its lanes")
        # A direct copy over PCIe also uses the links of both GPUs.
        return directions * min(self._host_rate("device_to_host", a), self._host_rate("host_to_device", b))

    def _pcie(self, gpu: Gpu | None) -> float:
        """Return the assumed one-way rate of a GPU's PCIe link."""
        link = gpu.pcie if gpu is not None else None
        generation = link and (link.maximum_generation or link.generation)
        width = link and (link.maximum_width or link.width)
        if not generation or not width or generation not in _PCIE_LANE:
            generation, width = _UNKNOWN_PCIE
        return self._assume(
            "host link", width * _PCIE_LANE[generation] * _PCIE_SHARE, f"GB/s, as PCIe {generation} x{width}"
        )

    def _assume(self, name: str, value: float, unit: str) -> float:
        """Return the value, and list it in `assumed`."""
        self.assumed[name] = f"{value:.3g} {unit}"
        return value
