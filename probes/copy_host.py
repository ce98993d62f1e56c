"""Measure copies between host and GPUs, and within each GPU: bandwidth, latency, PCIe link under load.

Copies with the host use pinned and pageable memory, one direction and both at once, each GPU alone and all GPUs at
once. The program prints one JSON object, gpudiag/probe-copy-host/1. GPUs are named by CUDA ordinal; `gpus` has their
PCI ids.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import _latency
import _numa
import numpy as np
from _clocks import Sensors, warm_up
from _cuda import MIB, Gpu, buffer_bytes, call, open_gpus
from _flows import Flow, Gate, measure, measure_gated, run_on_host
from _pattern import HostPattern, fresh_seed
from _protocol import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "gpudiag/probe-copy-host/1"
#: Sizes of the buffers. With --quick there is less pinned memory, because allocating it takes longest.
_DEVICE_BYTES, _PINNED_BYTES, _QUICK_PINNED_BYTES, _PAGEABLE_BYTES = 512 * MIB, 512 * MIB, 128 * MIB, 64 * MIB
#: Seconds of a run with several GPUs. The run is long, because flows alternate on shared uplinks and memory.
_ALL_AT_ONCE_S = 0.04
#: Share of the free device memory for one buffer. Up to four programs with two buffers each are loaded at once.
_SHARE = 0.05
#: {name of a measurement: (direction in the result, ways of copying that run at once)}.
_DIRECTIONS = {
    "host_to_device": ("one_way", ("h2d",)),
    "device_to_host": ("one_way", ("d2h",)),
    "host_to_device both ways": ("both_ways", ("h2d", "d2h")),
}


@dataclass(frozen=True)
class HostSide:
    """One GPU's buffers, and the data's seeds.

    Copies read the device's buffer at address `source` and the first buffers of `pinned` and `pageable` memory on the
    host. Copies write to the device's buffer at `target` and to the second buffers.
    """

    gpu: Gpu
    source: int
    target: int
    device_bytes: int
    pinned: tuple[np.ndarray, np.ndarray]
    pageable: tuple[np.ndarray, np.ndarray]
    host_seed: int
    device_seed: int


def prepare(gpu: Gpu, pattern: HostPattern, device_bytes: int, pinned_bytes: int, pageable_bytes: int) -> HostSide:
    """Allocate one GPU's buffers of these sizes, and fill the buffers from which copies read."""
    with _numa.thread_on(gpu.numa_node):
        pageable = (np.zeros(pageable_bytes // 8, dtype=np.uint64), np.zeros(pageable_bytes // 8, dtype=np.uint64))
        pattern.poison(pageable[1])
    side = HostSide(
        gpu=gpu,
        source=gpu.allocate(device_bytes),
        target=gpu.allocate(device_bytes),
        device_bytes=device_bytes,
        pinned=(gpu.allocate_pinned(pinned_bytes), gpu.allocate_pinned(pinned_bytes)),
        pageable=pageable,
        host_seed=fresh_seed(),
        device_seed=fresh_seed(),
    )
    pattern.fill(side.pinned[0], side.host_seed)
    pattern.fill(side.pageable[0], side.host_seed)
    if not gpu.kernels_missing:
        gpu.fill_pattern(side.source, device_bytes, side.device_seed)
    return side


def host_flow(side: HostSide, way: str, memory: str, pattern: HostPattern, *, spread: bool = False) -> Flow:
    """Return the flow `way` ("h2d" or "d2h") between one GPU and its host buffers. Each way has its own stream.

    With `spread`, copies to the host alternate between both pinned buffers, because the memory to which all GPUs copy
    must be much larger than the host's cache. Then copies to the host overwrite the buffer from which copies to the GPU
    read. On a host with 300 MiB of cache, four GPUs seemed 10 % faster with 512 MiB of targets than with 1 GiB (179 and
    163 GB/s).
    """
    gpu = side.gpu
    source, target = side.pinned if memory == "pinned" else side.pageable
    if way == "h2d":
        address = source.ctypes.data
        return Flow(
            gpu=gpu,
            stream=gpu.stream,
            copy=lambda n: call("cuMemcpyHtoDAsync", side.target, address, n, gpu.stream),
            poison=lambda n: gpu.poison(side.target, n),
            count_wrong=lambda n: gpu.count_wrong(side.target, n, side.host_seed),
        )
    targets = (source, target) if spread else (target,)
    addresses = itertools.cycle([buffer.ctypes.data for buffer in targets])
    return Flow(
        gpu=gpu,
        stream=gpu.back_stream,
        copy=lambda n: call("cuMemcpyDtoHAsync", next(addresses), side.source, n, gpu.back_stream),
        poison=lambda n: pattern.poison_each(buffer[: n // 8] for buffer in targets),
        count_wrong=lambda n: sum(pattern.count_wrong(buffer[: n // 8], side.device_seed) for buffer in targets),
    )


def device_flow(side: HostSide) -> Flow:
    """Return the flow of copies within one GPU, from its source to its target."""
    gpu = side.gpu
    return Flow(
        gpu=gpu,
        stream=gpu.stream,
        copy=lambda n: call("cuMemcpyDtoDAsync", side.target, side.source, n, gpu.stream),
        poison=lambda n: gpu.poison(side.target, n),
        count_wrong=lambda n: gpu.count_wrong(side.target, n, side.device_seed),
    )


def read_links(sides: list[HostSide], sensors: Sensors) -> list[dict[str, int] | None]:
    """Return `generation` and `width` of each GPU's PCIe link during copies, because an idle link reduces both.

    The highest of three readings counts, because the link may still be speeding up. Without readings, return None.
    """
    best: list[dict[str, int] | None] = [None] * len(sides)
    for i, side in enumerate(sides):
        gpu = side.gpu
        gpu.use()
        size = side.pinned[0].nbytes
        for _ in range(4):
            call("cuMemcpyHtoDAsync", side.target, side.pinned[0].ctypes.data, min(size, side.device_bytes), gpu.stream)
        for _ in range(3):
            link = sensors.pcie_link(gpu)
            if link is not None:
                before = best[i] or {"generation": 0, "width": 0}
                best[i] = {
                    "generation": max(before["generation"], link[0]),
                    "width": max(before["width"], link[1]),
                }
        gpu.wait()
    return best


def paths(sides: list[HostSide], *, quick: bool) -> Iterator[tuple[str, str, str, list[HostSide]]]:
    """Yield (memory, key of `_DIRECTIONS`, label, GPUs) of every measurement with the host.

    With `quick`, only pinned memory is measured.
    """
    for memory in ("pinned",) if quick else ("pinned", "pageable"):
        groups = [[side] for side in sides] + ([sides] if len(sides) > 1 else [])
        for group in groups:
            alone = len(group) == 1
            subject = f"GPU {group[0].gpu.ordinal}" if alone else "all GPUs"
            # Copies of all GPUs to the host come last, because they overwrite the sources of other copies.
            for name in _DIRECTIONS if alone else sorted(_DIRECTIONS, key=lambda name: name == "device_to_host"):
                yield memory, name, f"{name.replace('_', ' ')}, {memory}, {subject}", group


class HostBench:
    """The GPUs with the buffers of this probe.

    Args:
        gpus: the GPUs.
        quick: pinned memory only, no latencies, fewer repeats.

    Raises:
        ProbeError: there is not enough memory for the buffers.
    """

    def __init__(self, gpus: list[Gpu], *, quick: bool) -> None:
        self.gpus, self.quick = gpus, quick
        self.device_bytes = buffer_bytes(gpus, _DEVICE_BYTES, _SHARE)
        # Two pinned and two pageable buffers per GPU and the pattern take at most a quarter of the available memory. If
        # the available memory is unknown, assume little.
        room = _numa.available_bytes() // 4 or 16 * len(gpus) * MIB
        most = _QUICK_PINNED_BYTES if quick else _PINNED_BYTES
        wanted = min(most, self.device_bytes, room // (4 * len(gpus) + 1))
        self.pinned_bytes = max(8 * MIB, wanted) // MIB * MIB
        self.pageable_bytes = MIB if quick else min(_PAGEABLE_BYTES, self.pinned_bytes)
        self.pattern = HostPattern(self.pinned_bytes)
        with ThreadPoolExecutor(len(gpus)) as pool:
            self.sides = list(pool.map(self._prepare, gpus))

    def _prepare(self, gpu: Gpu) -> HostSide:
        return prepare(gpu, self.pattern, self.device_bytes, self.pinned_bytes, self.pageable_bytes)

    def buffers(self) -> list[tuple[int, int]]:
        """Return the source and target address on each GPU, of `device_bytes` each."""
        return [(side.source, side.target) for side in self.sides]

    def measure(
        self, probe: Probe, gate: Gate, sensors: Sensors, clocks: list[dict[str, int]], seconds: float
    ) -> dict[str, Any]:
        """Measure everything in about `seconds`, and return the result. `clocks` has the clocks of warmed-up GPUs."""
        links = read_links(self.sides, sensors)
        bandwidth: list[dict[str, Any]] = []
        latency: list[dict[str, Any]] = []
        todo = list(paths(self.sides, quick=self.quick))
        count = len(todo) + len(self.sides)
        # Each path takes about seven runs: the repeats, a trial, and a verification. One more share is for the rest.
        target_s = max(0.002, min(0.015, seconds / (len(todo) + 1) / 7))
        repeats = {"least": 3, "most": 5} if self.quick else {"least": 4, "most": 8}
        for done, (memory, name, label, group) in enumerate(todo):
            probe.progress(label, done, count)
            with probe.attempt(label), probe.phase(f"measuring {memory}"):
                path_target_s = target_s
                if len(group) > 1 and memory == "pinned":
                    path_target_s = max(target_s, _ALL_AT_ONCE_S / 2 if self.quick else _ALL_AT_ONCE_S)
                bandwidth.append(self._path(gate, memory, name, group, target_s=path_target_s, repeats=repeats))
        for done, side in enumerate(self.sides):
            label = f"GPU {side.gpu.ordinal}, on-device copy and latencies"
            probe.progress(label, len(todo) + done, count)
            fields = {"path": "device_to_device", "memory": "device", "direction": "one_way"}
            with probe.attempt(f"on-device copy, GPU {side.gpu.ordinal}"), probe.phase("measuring on-device copies"):
                limits = {"most_bytes": self.device_bytes, "target_s": min(target_s, 0.01)}
                transfer = measure_gated(gate, [device_flow(side)], **limits, **repeats)
                bandwidth.append(transfer.describe(**fields, gpus=[side.gpu.ordinal]))
            if not self.quick:
                with probe.phase("measuring latencies"):
                    latency.extend(latencies(probe, gate, side, self.pattern))
        return {
            "gpus": [
                {**gpu.describe(), "pcie_under_load": link, "clocks_under_load": clock}
                for gpu, link, clock in zip(self.gpus, links, clocks or [{}] * len(self.gpus), strict=True)
            ],
            "bandwidth": bandwidth,
            "latency": latency,
        }

    def _path(
        self, gate: Gate, memory: str, name: str, group: list[HostSide], *, target_s: float, repeats: dict[str, int]
    ) -> dict[str, Any]:
        """Measure one path that `paths` yields, and return the fields of its result.

        `target_s` is the approximate duration of a run in s. `repeats` has `least` and `most` of `_flows.measure`.
        """
        direction, ways = _DIRECTIONS[name]
        spread = memory == "pinned" and len(group) > 1 and ways == ("d2h",)
        flows = [host_flow(side, way, memory, self.pattern, spread=spread) for side in group for way in ways]
        if memory == "pinned":
            transfer = measure_gated(gate, flows, most_bytes=self.pinned_bytes, target_s=target_s, **repeats)
        else:
            limits = {"most_bytes": self.pageable_bytes, "target_s": target_s, "most_copies": 4, "least": 3, "most": 5}
            transfer = measure(run_on_host, flows, gated=False, **limits)
        gpus = [side.gpu.ordinal for side in group for _ in ways]
        return transfer.describe(path=name.split(maxsplit=1)[0], memory=memory, direction=direction, gpus=gpus)


def main() -> None:
    """Measure every GPU."""
    probe = Probe(SCHEMA, __doc__.splitlines()[0])
    options = probe.options()
    gpus = open_gpus(probe)
    sensors = Sensors(gpus)
    if sensors.reason:
        probe.skip("PCIe link under load", sensors.reason)
    bench: HostBench | None = None
    with probe.attempt("allocating buffers"), probe.phase("buffers"):
        bench = HostBench(gpus, quick=options.quick)
        gate = Gate(gpus)
    probe.ready()
    if bench is None:
        probe.finish(gpus=[gpu.describe() for gpu in gpus])
    probe.progress("warming up", 0, 1)
    with probe.phase("warming up"):
        clocks = warm_up(gpus, sensors, bench.buffers(), bench.device_bytes)
    probe.finish(**bench.measure(probe, gate, sensors, clocks, options.seconds))


def latencies(probe: Probe, gate: Gate, side: HostSide, pattern: HostPattern) -> Iterator[dict[str, Any]]:
    """Yield a record of each latency: small copies to and from the host, dependent loads of host and GPU memory.

    The loads walk a table, which overwrites the buffers that copies write to.
    """
    gpu = side.gpu
    for way, src, dst in (("h2d", "host", "gpu"), ("d2h", "gpu", "host")):
        with probe.attempt(f"latency of a small copy, {src} to {dst} {gpu.ordinal}"):
            figure = _latency.small_copy(gate, host_flow(side, way, "pinned", pattern), 64)
            yield {"kind": "small_copy", "src": src, "dst": dst, "gpu": gpu.ordinal, **figure}
    table = _latency.chase_table(gpu.ordinal)
    for memory in ("host", "gpu"):
        with probe.attempt(f"latency of a dependent load, GPU {gpu.ordinal} from {memory}"):
            address = side.pinned[1].ctypes.data
            side.pinned[1][: table.size] = table
            if memory == "gpu":
                gpu.use()
                call("cuMemcpyHtoD", side.target, address, table.nbytes)
                address = side.target
            figure = _latency.dependent_load(gate, gpu, address)
            yield {"kind": "dependent_load", "src": "gpu", "dst": memory, "gpu": gpu.ordinal, **figure}


if __name__ == "__main__":
    main()
