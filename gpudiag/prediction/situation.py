"""Everything that a prediction looks at: the machine's paths and curves, the model, the devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from gpudiag.model.benchmarks.prediction import Compute, Gradients
from gpudiag.model.facts import Facts, nccl_transport
from gpudiag.prediction.curves import Curve, empty_all_reduce_ms, measured_curve
from gpudiag.prediction.overlap import ready_at
from gpudiag.prediction.paths import Paths

_NO_COMPUTE = Compute(forward_ms=0.0, backward_ms=0.0, update_ms=0.0, step_ms=0.0, source="unknown")


class Situation:
    """One model on so many devices of one machine.

    Args:
        facts: the machine.
        model: what is trained. Without its compute nothing hides behind it.
        devices: how many train: the first of the visible GPUs, or CPU processes where there is no GPU.
        p2p: False where peer access is switched off.
        curves: measured all-reduces that count before those of the facts, by transport.
    """

    def __init__(
        self,
        facts: Facts,
        model: Gradients,
        devices: int,
        *,
        p2p: bool = True,
        curves: dict[str, Curve] | None = None,
    ) -> None:
        self.facts = facts
        self.model = model
        self.devices = devices
        visible = [gpu.index for gpu in facts.gpus if gpu.visible]
        self.on_gpu = bool(visible)
        self.gpus = len(visible)
        self.p2p = p2p
        self.paths = Paths(facts, visible[:devices] if visible else range(devices), p2p=p2p)
        self.compute = model.compute or _NO_COMPUTE
        self._curves = curves or {}

    @cached_property
    def ready_ms(self) -> list[float]:
        """When each gradient is there, in ms from backward's start."""
        backward = self.compute.backward_ms
        if self.model.ready:
            return [share * backward for share in self.model.ready]
        return ready_at([1.0] * len(self.model.sizes), backward)

    @property
    def peer_access(self) -> bool:
        """Whether the devices reach each other directly: those of a ring their neighbours, and so all in the end."""
        return self.paths.ring_is_direct

    def ring_rate(self) -> float:
        """GB/s of bus bandwidth that a ring over the GPUs' links should reach, where no collective was measured."""
        turns = not self.peer_access and not self.paths.ring_staging_is_measured
        return self.paths.ring_rate() * (_STAGED_RING if turns else 1.0)

    def ring_curve(self) -> Curve:
        """An all-reduce around the best ring, where none was measured."""
        count = max(2, self.devices)
        empty = empty_all_reduce_ms(count, nvlink=self.paths.ring_is_nvlink)
        return Curve({0: empty, 1 << 30: empty + 2 * (count - 1) / count * (1 << 30) / (self.ring_rate() * 1e6)}, count)

    def rooted_ms(self, size: float, *, spread: bool) -> float:
        """To bring so many bytes to where they belong, over NCCL from all GPUs, and back to all of them.

        Over direct links each of the two passes every link once, one way, at the rate of an all-reduce. Through the
        host a GPU's link carries what it sends or what it receives, never both at full rate, and in a rooted exchange
        not every GPU does both: the first in the chain only sends, the last only receives. Summed over homes on all n
        GPUs that is (n - 1) / n of what an all-reduce's rate says; with one home, over rings in every order,
        (2n - 3) / (2n - 2).

        Args:
            size: bytes of all parameters.
            spread: their homes are on all GPUs alike, not on one.
        """
        count = self.devices
        curve = self.nccl_curve or self.ring_curve()
        rate = curve.busbw(size / count if spread else size)
        share = (count - 1) / count if spread else (2 * count - 3) / (2 * count - 2)
        return 2 * size / (rate * 1e6) * (1.0 if self.peer_access else share)

    def bucket_times(self, buckets: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
        """Bytes of each bucket and when it is complete, in ms from backward's start."""
        sizes, ready = self.model.sizes, self.ready_ms
        done = list(accumulate((max(ready[i] for i in bucket) for bucket in buckets), max))
        return [(sum(sizes[i] for i in bucket), when) for bucket, when in zip(buckets, done, strict=True)]

    def curve(self, transport: str) -> Curve | None:
        """How long an all-reduce over this transport takes on this machine, where it was measured."""
        given = self._curves.get(transport)
        return given if given is not None else measured_curve(self.facts, transport, self.devices)

    @property
    def nccl_curve(self) -> Curve | None:
        """The same over NCCL, with or without peer access as it is here."""
        return self.curve(nccl_transport(p2p=self.p2p))

    def on_device_ms(self, size: float) -> float:
        """To copy so many bytes within a GPU: what packing gradients into buckets, or rounding them, takes."""
        rates = [record.gb_per_s for record in self.facts.bandwidth if record.path == "device_to_device"]
        if rates:
            rate = min(rates)
        elif self.on_gpu:
            rate = min(_device_memory(gpu.compute_capability) for gpu in self.facts.gpus if gpu.visible)
        else:
            rate = self.paths.host_memory() / 2
        return size / (rate * 1e6)


#: Of the rate of the links, what a ring through host memory reaches: a GPU's kernel writes what the next one's reads,
#: and the two take turns.
_STAGED_RING = 0.55
#: GB/s of copies within a GPU where they were not measured, by the major number of its compute capability: about what
#: the smaller boards of each generation reach. Copied bytes count once.
_DEVICE_MEMORY = {5: 110.0, 6: 150.0, 7: 250.0, 8: 350.0, 9: 1300.0, 10: 2500.0, 12: 600.0}


def _device_memory(capability: tuple[int, int] | None) -> float:
    return _DEVICE_MEMORY.get(capability[0] if capability else 6, 350.0)
