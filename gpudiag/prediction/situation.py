"""Hold the inputs of a prediction: the machine's paths and curves, the model, the devices."""

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
    """A model on a number of devices of one machine.

    Args:
        facts: the machine.
        model: the trained model. If its compute time is unknown, no communication is hidden.
        devices: number of training devices: the first visible GPUs, or CPU processes if there is no GPU.
        p2p: False if peer access is disabled.
        curves: measured all-reduces by transport, which replace the curves of the facts.
    """

    def __init__(
        self, facts: Facts, model: Gradients, devices: int, *, p2p: bool = True, curves: dict[str, Curve] | None = None
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
        """Return the time at which each gradient is ready, in ms from the start of backward."""
        backward = self.compute.backward_ms
        if self.model.ready:
            return [share * backward for share in self.model.ready]
        return ready_at([1.0] * len(self.model.sizes), backward)

    @property
    def peer_access(self) -> bool:
        """Return whether each device in the best ring reaches its neighbours directly."""
        return self.paths.ring_is_direct

    def ring_rate(self) -> float:
        """Return the bus bandwidth in GB/s that an all-reduce around the best ring should reach."""
        assumed_staging = not self.peer_access and not self.paths.ring_staging_is_measured
        return self.paths.ring_rate() * (_STAGED_RING if assumed_staging else 1.0)

    def ring_curve(self) -> Curve:
        """Return the assumed curve of an all-reduce around the best ring."""
        count = max(2, self.devices)  # a ring has at least two devices
        empty = empty_all_reduce_ms(count, nvlink=self.paths.ring_is_nvlink)
        return Curve({0: empty, 1 << 30: empty + 2 * (count - 1) / count * (1 << 30) / (self.ring_rate() * 1e6)}, count)

    def rooted_ms(self, size: float, *, spread: bool) -> float:
        """Return the time in ms of reducing gradients to their owners over NCCL and broadcasting parameters back.

        The reduction and the broadcast each pass every link once, in one direction, at the rate of an all-reduce.
        Without direct links, both use the host, where a GPU's link cannot send and receive at full rate at once.
        The first GPU in a chain only sends, and the last only receives. Therefore the time is multiplied by (n-1)/n if
        all n GPUs are owners, and by (2n-3)/(2n-2) if one GPU is the owner.

        Args:
            size: bytes of all parameters.
            spread: True if all GPUs own equal shares, False if one GPU owns all parameters.
        """
        count = self.devices
        curve = self.nccl_curve or self.ring_curve()
        # The rate depends on the size of one owner's parameters.
        rate = curve.busbw(size / count if spread else size)
        share = (count - 1) / count if spread else (2 * count - 3) / (2 * count - 2)
        return 2 * size / (rate * 1e6) * (1.0 if self.peer_access else share)

    def bucket_times(self, buckets: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
        """Return (bytes, time at which this and all earlier buckets are complete, ms from the start of backward)."""
        sizes, ready_ms = self.model.sizes, self.ready_ms
        complete_ms = list(accumulate((max(ready_ms[i] for i in bucket) for bucket in buckets), max))
        return [(sum(sizes[i] for i in bucket), ms) for bucket, ms in zip(buckets, complete_ms, strict=True)]

    def curve(self, transport: str) -> Curve | None:
        """Return the measured curve of an all-reduce over this transport; None if it was not measured."""
        given = self._curves.get(transport)
        return given if given is not None else measured_curve(self.facts, transport, self.devices)

    @property
    def nccl_curve(self) -> Curve | None:
        """Return the measured curve over NCCL, with peer access if `p2p` is True; None if it was not measured."""
        return self.curve(nccl_transport(p2p=self.p2p))

    def on_device_ms(self, size: float) -> float:
        """Return the time in ms of copying `size` bytes within a device, for bucket copies and rounding."""
        rates = [record.gb_per_s for record in self.facts.bandwidth if record.path == "device_to_device"]
        if rates:
            rate = min(rates)
        elif self.on_gpu:
            rate = min(_device_memory(gpu.compute_capability) for gpu in self.facts.gpus if gpu.visible)
        else:
            rate = self.paths.host_memory() / 2  # each copied byte is read and written
        return size / (rate * 1e6)


#: Share of the links' rate that a ring through host memory reaches. The share is low, because a GPU's kernel and the
#: next GPU's kernel, which reads its output, run alternately.
_STAGED_RING = 0.55
#: Assumed GB/s of copies within a GPU, by the major number of its compute capability. The values are approximate rates
#: of the smaller boards of each generation. Each copied byte counts once, although it is read and written.
_DEVICE_MEMORY = {5: 110.0, 6: 150.0, 7: 250.0, 8: 350.0, 9: 1300.0, 10: 2500.0, 12: 600.0}


def _device_memory(capability: tuple[int, int] | None) -> float:
    return _DEVICE_MEMORY.get(capability[0] if capability else 6, 350.0)
