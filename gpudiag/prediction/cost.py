"""What an exchange costs, and how buckets hide behind backward, as DistributedDataParallel and its like send them."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.prediction.buckets import ddp_buckets
from gpudiag.prediction.curves import Curve
from gpudiag.prediction.situation import Situation

#: Share of a GPU's multiprocessors that NCCL's kernels hold while they run: 16 to 24 of about 130, one per channel.
NCCL_HOLDS = 0.15
#: µs of work per bucket on the host that launches: the hook, the launch, the futures.
_PER_BUCKET_US = 60.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What an exchange adds to the step, what it takes by itself, and why.

    `host_ms` is what its host adds to the step in any case, where the host is what the step waits for.
    """

    exposed_ms: float
    exchange_ms: float
    reason: str
    host_ms: float = 0.0


ONE_DEVICE = Cost(exposed_ms=0.0, exchange_ms=0.0, reason="one device exchanges nothing")


def bucketed(now: Situation, candidate: Candidate, curve: Curve, wire: float, reason: str, *, holds: float) -> Cost:
    """Buckets one after another, each from when it is complete.

    Args:
        now: the machine and the model.
        candidate: the strategy with its options.
        curve: how long an all-reduce takes.
        wire: bytes on the wire per byte of gradients (0.5 for fp32 sent as bf16).
        reason: why the curve is what it is, in words.
        holds: share of a device's compute that an exchange takes away while it runs.
    """
    if now.devices < 2:
        return ONE_DEVICE
    total = now.model.total_bytes

    def time(size: float) -> float:
        return curve.time_ms(size * wire, now.devices) + _PER_BUCKET_US / 1e3

    pieces = now.bucket_times(ddp_buckets(now.model.sizes, candidate.bucket_mb))
    exchange = sum(time(size) for size, _ in pieces)
    backward = now.compute.backward_ms
    # Gradients are copied into the buckets and out of them, and rounded on the way where they are sent shorter.
    bucket_copy = 2 * now.on_device_ms(total) + (now.on_device_ms(1.5 * total) if candidate.lossy else 0.0)
    slower = holds * min(exchange, backward)
    backward += slower
    stretch = backward / now.compute.backward_ms if now.compute.backward_ms else 1.0
    end = 0.0
    for size, ready in pieces:
        end = max(end, ready * stretch) + time(size)
    exposed = max(0.0, end - backward) + slower + bucket_copy
    hidden = max(0.0, exchange - max(0.0, end - backward))
    words = f"{total * wire / 1e6:.0f} MB in {len(pieces)} buckets take {exchange:.1f} ms"
    if now.compute.backward_ms:
        words += f", {hidden:.1f} of them behind backward"
    return Cost(exposed_ms=exposed, exchange_ms=exchange, reason=f"{reason}: {words}")
