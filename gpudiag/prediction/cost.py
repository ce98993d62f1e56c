"""Compute the cost of gradient buckets that are communicated during backward, as DistributedDataParallel does."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.prediction.curves import Curve
from gpudiag.prediction.overlap import ddp_buckets
from gpudiag.prediction.situation import Situation

#: Share of a GPU's SMs that NCCL's kernels occupy while they run: one SM per channel, 16 to 24 of about 130.
NCCL_HOLDS = 0.15
#: µs of host work per bucket for its communication hook, its kernel launch and its futures.
_PER_BUCKET_US = 60.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a strategy's communication in a step.

    Attributes:
        exposed_ms: increase of the step time if the step is not launch-bound.
        exchange_ms: duration of the communication alone.
        reason: explanation for the user.
        host_ms: increase of the step time if the step is launch-bound.
    """

    exposed_ms: float
    exchange_ms: float
    reason: str
    host_ms: float = 0.0


ONE_DEVICE = Cost(exposed_ms=0.0, exchange_ms=0.0, reason="one device communicates nothing")


def bucketed(now: Situation, candidate: Candidate, curve: Curve, wire: float, reason: str, *, holds: float) -> Cost:
    """Return the cost of all-reducing buckets one after another, each as soon as its gradients are complete.

    Args:
        now: the machine and the model.
        candidate: the strategy with its options.
        curve: duration of an all-reduce.
        wire: bytes on the wire per byte of gradients (0.5 for fp32 sent as bf16).
        reason: explanation of the curve.
        holds: share of a device's compute that communication occupies while it runs.
    """
    if now.devices < 2:
        return ONE_DEVICE
    total_bytes = now.model.total_bytes

    def reduction_ms(size: float) -> float:
        return curve.time_ms(size * wire, now.devices) + _PER_BUCKET_US / 1e3

    buckets = now.bucket_times(ddp_buckets(now.model.sizes, candidate.bucket_mb))
    communication_ms = sum(reduction_ms(size) for size, _ in buckets)
    # Gradients are copied into the buckets and out of them, and rounded if they are sent compressed.
    bucket_copy_ms = 2 * now.on_device_ms(total_bytes)
    if candidate.lossy:
        bucket_copy_ms += now.on_device_ms(1.5 * total_bytes)  # to half the size and back: 0.75 copies each
    # Communication kernels slow concurrent backward kernels, so buckets are complete later.
    slowdown_ms = holds * min(communication_ms, now.compute.backward_ms)
    backward_ms = now.compute.backward_ms + slowdown_ms
    stretch = backward_ms / now.compute.backward_ms if now.compute.backward_ms else 1.0
    end_ms = 0.0
    for size, ready_ms in buckets:
        end_ms = max(end_ms, ready_ms * stretch) + reduction_ms(size)
    after_backward_ms = max(0.0, end_ms - backward_ms)
    hidden_ms = max(0.0, communication_ms - after_backward_ms)
    explanation = f"{total_bytes * wire / 1e6:.0f} MB in {len(buckets)} buckets take {communication_ms:.1f} ms"
    if now.compute.backward_ms:
        explanation += f", {hidden_ms:.1f} of them behind backward"
    return Cost(
        exposed_ms=after_backward_ms + slowdown_ms + bucket_copy_ms,
        exchange_ms=communication_ms,
        reason=f"{reason}: {explanation}",
    )
