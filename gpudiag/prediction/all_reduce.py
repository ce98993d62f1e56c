"""DistributedDataParallel and its like: buckets are all-reduced while backward still runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpudiag.prediction.buckets import ddp_buckets
from gpudiag.prediction.curves import Curve

if TYPE_CHECKING:
    from gpudiag.model.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Share of a GPU's multiprocessors that NCCL's kernels hold while they run: 16 to 24 of about 130, one per channel.
_NCCL_HOLDS = 0.15
#: Host memory passes per byte and rank of gloo's all-reduce over sockets: into the kernel, out of it, added.
_GLOO_PASSES = 6
#: Bytes per chunk in which an exchange through the host is pipelined.
_CHUNK = 4 << 20
#: µs of work per bucket on the host that launches: the hook, the launch, the futures.
_PER_BUCKET_US = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What an exchange adds to the step, what it takes by itself, and why.

    `host_ms` is what its host adds to the step in any case, where the host is what the step waits for.
    """

    exposed_ms: float
    exchange_ms: float
    reason: str
    host_ms: float = 0.0


def nccl(now: Situation, candidate: Candidate) -> Cost:
    """All-reduce between the GPUs, over whatever links there are between them."""
    transport = "nccl" if now.p2p else "nccl-no-p2p"
    curve = now.curve(transport)
    wire = 0.5 if candidate.lossy else 1.0
    if curve is not None:
        busbw = curve.busbw(25e6)
        reason = f"{busbw:.3g} GB/s of bus bandwidth at 25 MB"
    else:
        rate = now.ring_rate()
        curve = _ring(now, rate)
        reason = f"{rate:.3g} GB/s around the slowest link of the ring"
    if not now.peer_access:
        reason = f"there is no peer access, and {reason}, through the host"
    return _bucketed(now, candidate, curve, wire, reason, holds=_NCCL_HOLDS)


def gloo(now: Situation, candidate: Candidate) -> Cost:
    """All-reduce by gloo: from GPUs each bucket goes to the host, around the processes over sockets, and back."""
    curve = now.curve("gloo-device" if now.on_gpu else "gloo") or (now.curve("host-staged") if now.on_gpu else None)
    if curve is None:
        alone = now.curve("gloo")
        staging = 0.0
        if now.on_gpu:
            there, back = now.paths.all_rate("device_to_host"), now.paths.all_rate("host_to_device")
            staging = 1 / (there * 1e6) + 1 / (back * 1e6)
        per_byte = staging + _GLOO_PASSES * now.devices / (now.paths.host_memory() * 1e6)
        sizes = (1 << 10, 1 << 28)
        points = {s: (alone.time_ms(s, now.devices) + staging * s if alone else 0.3 + per_byte * s) for s in sizes}
        curve = Curve(points, now.devices)
    reason = f"gloo carries {curve.busbw(25e6):.2g} GB/s of bus bandwidth over the host's sockets"
    return _bucketed(now, candidate, curve, 0.5 if candidate.lossy else 1.0, reason, holds=0.0)


def cpu_reduce(now: Situation, candidate: Candidate) -> Cost:
    """Gradients go to host memory that all processes share, the CPUs add them, the sums come back."""
    wire = 0.5 if candidate.lossy else 1.0
    curve = now.curve(f"cpu-reduce-{candidate.compress}") if candidate.compress else now.curve("cpu-reduce")
    if curve is not None:
        # Of a wire that was measured itself the sizes are those of the gradients, as they were.
        reason = f"{_no_peers(now)}{curve.busbw(25e6):.3g} GB/s of bus bandwidth through shared host memory"
        return _bucketed(now, candidate, curve, 1.0, reason, holds=0.0)
    if now.on_gpu:
        link = now.paths.all_rate_both()
        reason = f"{_no_peers(now)}{link:.3g} GB/s per GPU each way through the host, at once"
    else:
        link = now.paths.host_memory() / 2 / max(1, now.devices)
        reason = f"{link:.3g} GB/s of host memory per process"
    # Every byte of each rank is read once and every sum written once.
    adding = now.paths.host_memory() / (1 + 1 / max(1, now.devices)) / max(1, now.devices)
    slowest = min(link, adding)
    hops = 2 * max((now.paths.latency_us(-1, gpu) for gpu in range(len(now.paths))), default=0.0) / 1e3
    # The first chunk is there and back before the first sum is.
    points = {
        size: hops + 2 * min(size, _CHUNK) / (link * 1e6) + size / (slowest * 1e6)
        for size in (1 << 10, _CHUNK, 1 << 30)
    }
    if adding < link:
        reason = f"the CPUs add {adding:.3g} GB/s per rank from host memory"
    return _bucketed(now, candidate, Curve(points, now.devices), wire, reason, holds=0.0)


def _no_peers(now: Situation) -> str:
    return "there is no peer access, and " if now.on_gpu and not now.peer_access else ""


def _ring(now: Situation, rate: float) -> Curve:
    count = max(2, now.devices)
    hops = (
        2
        * (count - 1)
        * max((now.paths.latency_us(a, (a + 1) % len(now.paths)) for a in range(len(now.paths))), default=0.0)
        / 1e3
        if len(now.paths) > 1
        else 0.0
    )
    per_byte = 2 * (count - 1) / count / (rate * 1e6)
    return Curve({1 << 10: hops, 1 << 30: hops + per_byte * (1 << 30)}, count)


def _bucketed(now: Situation, candidate: Candidate, curve: Curve, wire: float, reason: str, *, holds: float) -> Cost:
    """Buckets one after another, each from when it is complete."""
    if now.devices < 2:
        return Cost(0.0, 0.0, "one device exchanges nothing")
    total = now.model.total_bytes

    def time(size: float) -> float:
        return curve.time_ms(size * wire, now.devices) + _PER_BUCKET_US / 1e3

    pieces = now.bucket_times(ddp_buckets(now.model.sizes, candidate.bucket_mb))
    exchange = sum(time(size) for size, _ in pieces)
    backward = now.compute.backward_ms
    # Gradients are copied into the buckets and out of them, and rounded on the way where they are sent shorter.
    packing = 2 * now.on_device_ms(total) + (now.on_device_ms(1.5 * total) if candidate.lossy else 0.0)
    slower = holds * min(exchange, backward)
    backward += slower
    stretch = backward / now.compute.backward_ms if now.compute.backward_ms else 1.0
    end = 0.0
    for size, ready in pieces:
        end = max(end, ready * stretch) + time(size)
    exposed = max(0.0, end - backward) + slower + packing
    hidden = max(0.0, exchange - max(0.0, end - backward))
    words = f"{total * wire / 1e6:.0f} MB in {len(pieces)} buckets take {exchange:.1f} ms"
    if now.compute.backward_ms:
        words += f", {hidden:.1f} of them behind backward"
    return Cost(exposed, exchange, f"{reason}: {words}")
