"""Measure bandwidth and latency of copies between every two GPUs, without peer access (through the host) and with it.

Copies run in one direction, issued by the sender (write) or by the receiver (read), and in both directions at once.
Paths without peer access are measured first, before peer access is enabled. The program prints one JSON object,
gpudiag/probe-copy-peer/1.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import _latency
from _clocks import Sensors, warm_up
from _cuda import MIB, CudaError, Gpu, buffer_bytes, call, open_gpus
from _flows import Flow, Gate, GateGaveUpError, Transfer, measure, run_on_gpu
from _pattern import fresh_seed
from _protocol import Probe

SCHEMA = "gpudiag/probe-copy-peer/1"
_DEVICE_BYTES, _STAGED_BYTES = 512 * MIB, 64 * MIB

#: Share of the free device memory for one buffer. Up to four programs with two buffers each are loaded at once.
_SHARE = 0.05


@dataclass(frozen=True)
class Side:
    """One GPU, the addresses of its buffers, and the seed of the data in `source`."""

    gpu: Gpu
    source: int
    target: int
    seed: int


def prepare(gpu: Gpu, size: int) -> Side:
    """Allocate one GPU's buffers, and fill the buffer from which copies read."""
    side = Side(gpu, gpu.allocate(size), gpu.allocate(size), fresh_seed())
    if not gpu.kernels_missing:
        gpu.fill_pattern(side.source, size, side.seed)
    return side


def flow(src: Side, dst: Side, initiator: Side) -> Flow:
    """Return the flow from one GPU to another. `initiator` is `src` or `dst`, and issues the copies on its stream.

    cuMemcpyPeerAsync copies directly if `initiator`'s context has peer access to the other GPU, else through the host.
    """
    stream = initiator.gpu.stream
    return Flow(
        gpu=initiator.gpu,
        stream=stream,
        copy=lambda n: call("cuMemcpyPeerAsync", dst.target, dst.gpu.context, src.source, src.gpu.context, n, stream),
        poison=lambda n: dst.gpu.poison(dst.target, n),
        count_wrong=lambda n: dst.gpu.count_wrong(dst.target, n, src.seed),
    )


@dataclass(frozen=True)
class Path:
    """A path to measure. `initiator` names the GPU of each flow that issues the copies: "src" or "dst".

    `direction` is "one_way" or "both_ways".
    """

    src: Side
    dst: Side
    direction: str
    initiator: str
    peer_access: bool

    @property
    def label(self) -> str:
        """Describe the path."""
        arrow = "→" if self.direction == "one_way" else "↔"
        how = "read" if self.initiator == "dst" else "write"
        access = f"direct, {how}" if self.peer_access else "peer access off"
        return f"GPU {self.src.gpu.ordinal} {arrow} GPU {self.dst.gpu.ordinal}, {access}"

    def flows(self) -> list[Flow]:
        """Return one flow, or two in opposite directions."""
        pairs = [(self.src, self.dst)] + ([(self.dst, self.src)] if self.direction == "both_ways" else [])
        return [flow(src, dst, src if self.initiator == "src" else dst) for src, dst in pairs]


def plan(sides: list[Side], allowed: set[tuple[int, int]], *, quick: bool) -> list[Path]:
    """Return every path to measure, first those without peer access. In pairs (a, b) in `allowed`, a can access b."""
    ordered = list(itertools.permutations(sides, 2))
    unordered = list(itertools.combinations(sides, 2))
    off = [Path(a, b, "one_way", "src", False) for a, b in (unordered if quick else ordered)]
    if not quick:
        off += [Path(a, b, "both_ways", "src", False) for a, b in unordered]
    on = [Path(a, b, "one_way", "dst", True) for a, b in ordered]
    if not quick:
        on += [Path(a, b, "one_way", "src", True) for a, b in ordered]
        on += [Path(a, b, "both_ways", "dst", True) for a, b in unordered]
        on += [Path(a, b, "both_ways", "src", True) for a, b in unordered]

    def reachable(path: Path) -> bool:
        """Return whether each GPU that issues copies may access the other GPU."""
        a, b = path.src.gpu.ordinal, path.dst.gpu.ordinal
        here, there = ((a, b), (b, a)) if path.initiator == "src" else ((b, a), (a, b))
        return here in allowed and (path.direction == "one_way" or there in allowed)

    return off + [path for path in on if reachable(path)]


def enable_peer_access(probe: Probe, sides: list[Side], allowed: set[tuple[int, int]]) -> None:
    """Enable peer access of all allowed pairs. Remove pairs from `allowed` for which CUDA refuses."""
    for a, b in itertools.permutations(sides, 2):
        pair = (a.gpu.ordinal, b.gpu.ordinal)
        if pair not in allowed:
            continue
        a.gpu.use()
        try:
            call("cuCtxEnablePeerAccess", b.gpu.context, 0)
        except CudaError as error:
            if "ALREADY_ENABLED" not in str(error):
                allowed.discard(pair)
                probe.errors.append({"what": f"peer access of GPU {pair[0]} to GPU {pair[1]}", "why": str(error)})


def allowed_pairs(probe: Probe, gpus: list[Gpu]) -> set[tuple[int, int]]:
    """Return the pairs (a, b) for which CUDA lets GPU a access GPU b's memory."""
    allowed = set()
    for a, b in itertools.permutations(gpus, 2):
        with probe.attempt(f"peer access of GPU {a.ordinal} to GPU {b.ordinal}"):
            if call("cuDeviceCanAccessPeer", a.handle, b.handle):
                allowed.add((a.ordinal, b.ordinal))
            elif a.ordinal < b.ordinal:  # report each pair once
                probe.skip(
                    f"direct copies between GPU {a.ordinal} and GPU {b.ordinal}",
                    "CUDA reports no peer access between them",
                )
    return allowed


class PeerBench:
    """All pairs of GPUs, with buffers on each GPU.

    Args:
        probe: records pairs without peer access.
        sides: the GPUs and their buffers.
        size: bytes of each buffer.
        quick: measure only one direction (direct copies: issued by the receiver), with few repeats.
    """

    def __init__(self, probe: Probe, sides: list[Side], size: int, *, quick: bool) -> None:
        self.sides, self.size, self.quick = sides, size, quick
        self.allowed = allowed_pairs(probe, [side.gpu for side in sides])

    def measure(self, probe: Probe, gate: Gate, seconds: float) -> dict[str, Any]:
        """Measure everything in about `seconds`, and return the result. Peer access is on afterwards."""
        todo = plan(self.sides, self.allowed, quick=self.quick)
        latency: list[dict[str, Any]] = []
        bandwidth: list[dict[str, Any]] = []
        target_s = max(0.002, min(0.006, seconds / max(1, len(todo)) / 7))  # each path takes about seven runs
        repeats = {"least": 3, "most": 5} if self.quick else {"least": 4, "most": 8}
        # Staged copies may block the host. A gate without its kernel has no time limit, so staged copies use none.
        enabled, gated = False, gate.kernels
        for done, path in enumerate(todo):
            if path.peer_access and not enabled:
                latency += self._small_copies(probe, gate, peer_access=False)
                with probe.phase("enabling peer access"):
                    enable_peer_access(probe, self.sides, self.allowed)
                enabled = gated = True  # direct copies do not block the host
            probe.progress(path.label, done, len(todo))
            with probe.attempt(path.label), probe.phase(f"measuring {'direct' if path.peer_access else 'staged'}"):
                limits = {"most_bytes": self.size if path.peer_access else min(self.size, _STAGED_BYTES)}
                if not path.peer_access:
                    # The driver splits a staged copy into many parts, and its queue holds a limited number of parts.
                    limits["most_copies"] = 4
                try:
                    transfer = measure_path(gate, path, gated=gated, target_s=target_s, **limits, **repeats)
                except GateGaveUpError:
                    # Every such attempt takes the gate's whole time limit, so later paths do not use the gate.
                    gated = False
                    transfer = measure_path(gate, path, gated=False, target_s=target_s, **limits, **repeats)
                bandwidth.append(
                    transfer.describe(
                        src=path.src.gpu.ordinal,
                        dst=path.dst.gpu.ordinal,
                        direction=path.direction,
                        initiator=path.initiator,
                        peer_access=path.peer_access,
                    )
                )
        latency += self._small_copies(probe, gate, peer_access=enabled)
        if enabled and not self.quick:
            with probe.phase("measuring latencies"):
                latency += loads(probe, gate, self.sides, self.allowed)
        return {
            "gpus": [side.gpu.describe() for side in self.sides],
            "peer_access": sorted(list(pair) for pair in self.allowed),
            "bandwidth": bandwidth,
            "latency": latency,
        }

    def _small_copies(self, probe: Probe, gate: Gate, *, peer_access: bool) -> list[dict[str, Any]]:
        if self.quick:
            return []
        with probe.phase("measuring latencies"):
            return small_copies(probe, gate, self.sides, self.allowed, peer_access=peer_access)


def main() -> None:
    """Measure every pair."""
    probe = Probe(SCHEMA, __doc__.splitlines()[0])
    options = probe.options()
    gpus = open_gpus(probe)
    if len(gpus) < 2:
        probe.unavailable("copies between GPUs need two of them")
    bench: PeerBench | None = None
    with probe.attempt("allocating buffers"), probe.phase("buffers"):
        size = buffer_bytes(gpus, _DEVICE_BYTES, _SHARE)
        with ThreadPoolExecutor(len(gpus)) as pool:
            sides = list(pool.map(lambda gpu: prepare(gpu, size), gpus))
        gate = Gate(gpus)
        bench = PeerBench(probe, sides, size, quick=options.quick)
    sensors = Sensors(gpus)
    probe.ready()
    if bench is None:
        probe.finish(gpus=[gpu.describe() for gpu in gpus])
    probe.progress("warming up", 0, 1)
    warm_up(gpus, sensors, [(side.source, side.target) for side in sides], size)
    probe.finish(**bench.measure(probe, gate, options.seconds))


def measure_path(gate: Gate, path: Path, *, gated: bool, **options: Any) -> Transfer:
    """Measure one path's bandwidth, with or without the gate."""
    return measure(lambda *arguments: run_on_gpu(gate, *arguments, gated=gated), path.flows(), gated=gated, **options)


def small_copies(
    probe: Probe, gate: Gate, sides: list[Side], allowed: set[tuple[int, int]], *, peer_access: bool
) -> list[dict[str, Any]]:
    """Return a record of the latency of a copy of 16 bytes between every two GPUs, issued by the sender.

    If peer access is on (`peer_access`), omit the pairs that are not in `allowed`.
    """
    latencies = []
    for a, b in itertools.permutations(sides, 2):
        pair = (a.gpu.ordinal, b.gpu.ordinal)
        if peer_access and pair not in allowed:
            continue
        with probe.attempt(f"latency of a small copy, GPU {pair[0]} to GPU {pair[1]}"):
            # The driver's queue has room for fewer copies through the host; see `PeerBench.measure`.
            figure = _latency.small_copy(gate, flow(a, b, a), 64 if peer_access else 16)
            latencies.append(
                {"kind": "small_copy", "src": pair[0], "dst": pair[1], "peer_access": peer_access, **figure}
            )
    return latencies


def loads(probe: Probe, gate: Gate, sides: list[Side], allowed: set[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return a record of the latency of dependent loads from another GPU's memory, for each pair in `allowed`."""
    for side in sides:
        with probe.attempt(f"table for dependent loads on GPU {side.gpu.ordinal}"):
            table = _latency.chase_table(side.gpu.ordinal)
            side.gpu.use()
            call("cuMemcpyHtoD", side.target, table.ctypes.data, table.nbytes)
    latencies = []
    for a, b in itertools.permutations(sides, 2):
        pair = (a.gpu.ordinal, b.gpu.ordinal)
        if pair not in allowed:
            continue
        with probe.attempt(f"latency of a dependent load, GPU {pair[0]} from GPU {pair[1]}"):
            figure = _latency.dependent_load(gate, a.gpu, b.target)
            latencies.append({"kind": "dependent_load", "src": pair[0], "dst": pair[1], "peer_access": True, **figure})
    return latencies


if __name__ == "__main__":
    main()
