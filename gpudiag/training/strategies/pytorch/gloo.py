"""`gloo`: DistributedDataParallel with gloo all-reduce through host memory."""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.prediction.cost import Cost, bucketed
from gpudiag.prediction.curves import Curve
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.bucketed import BucketedStrategy

#: Host memory passes per byte and rank of gloo's all-reduce over sockets: into the kernel, out of it, added.
_PASSES = 6


class Gloo(BucketedStrategy):
    """Works everywhere. From GPUs, gloo copies each bucket to the host, reduces it there and copies it back."""

    name = "gloo"
    summary = "DistributedDataParallel over gloo: each gradient bucket is all-reduced between the hosts' CPUs."
    listed, special = 20, 20
    default_on = "cpu"
    through_host = True
    backend = "gloo"

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Another one from GPUs' memory than from the host's."""
        return "gloo-device" if on_gpu else "gloo"

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """All-reduce by gloo: from GPUs each bucket goes to the host, around the processes over sockets, and back."""
        curve = now.curve("gloo-device" if now.on_gpu else "gloo") or (now.curve("host-staged") if now.on_gpu else None)
        if curve is None:
            alone = now.curve("gloo")
            staging = 0.0
            if now.on_gpu:
                there, back = now.paths.all_rate("device_to_host"), now.paths.all_rate("host_to_device")
                staging = 1 / (there * 1e6) + 1 / (back * 1e6)
            per_byte = staging + _PASSES * now.devices / (now.paths.host_memory() * 1e6)
            sizes = (1 << 10, 1 << 28)
            points = {s: (alone.time_ms(s, now.devices) + staging * s if alone else 0.3 + per_byte * s) for s in sizes}
            curve = Curve(points, now.devices)
        reason = f"gloo carries {curve.busbw(25e6):.2g} GB/s of bus bandwidth over the host's sockets"
        return bucketed(now, candidate, curve, candidate.wire, reason, holds=0.0)


STRATEGY = Gloo
