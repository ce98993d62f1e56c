"""Predict the step times of TensorFlow 1's strategies, for comparison with published benchmarks.

Only `recommend --predict-only` uses these strategies. gpudiag never runs them. Links are modelled as for PyTorch's
strategies. Each tensor is sent separately, except by Horovod. The strategies differ as follows:

- `tf_cnn_benchmarks`' parameter servers send all parameters before forward, and receive gradients during backward. On
  GPUs, variables are spread over all GPUs.
- NCCL's all-reduces begin after backward, because an all-reduce waits for all work launched before.
- Without NCCL, gradients are summed on the host, and the sums are copied back. Each replica updates all its variables.
- Horovod copies ready gradients into buffers of 64 MB, and all-reduces the buffers during backward.
- Wrappers of Keras that divide a batch between GPUs keep parameters on GPU 0 or on the CPU. Nothing overlaps.
"""

from __future__ import annotations

from typing import ClassVar

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.prediction import transfers
from gpudiag.prediction.cost import ONE_DEVICE, Cost
from gpudiag.prediction.overlap import ddp_buckets
from gpudiag.prediction.paths import HOST
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.strategy import Strategy

FRAMEWORK = "tensorflow-1"

#: Time in ms to launch the update of one variable, or the all-reduce of one gradient. A node of TensorFlow 1's executor
#: and its kernel took 10 to 30 µs on hosts of 2017. docs/predictions.md shows the effect of other values.
_LAUNCH_MS = 0.020
#: Size of Horovod's buffers in MB (HOROVOD_FUSION_THRESHOLD), and time between two checks for ready gradients in ms
#: (HOROVOD_CYCLE_TIME). On average a gradient waits for half of this time.
_FUSED_MB, _CYCLE_MS = 64.0, 5.0


class _Tensorflow1(Strategy):
    """Base class. In `cost`, `now` has the model, the number of devices and the machine's rates in GB/s."""

    framework = FRAMEWORK
    needs_gpu = True
    least_devices = 2

    @classmethod
    def why_not(cls, facts: Facts, candidate: Candidate, devices: int) -> str | None:
        """Return why a candidate is not predicted; None if it is predicted. No benchmark used rounded gradients."""
        return "it does not round" if candidate.lossy else super().why_not(facts, candidate, devices)

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return no lines, because gpudiag does not run TensorFlow 1."""
        return ()


class _Alone(_Tensorflow1):
    name = INDEPENDENT
    summary = "No communication."
    communicates = False
    least_devices = 1

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return a cost of 0."""
        return Cost(exposed_ms=0.0, exchange_ms=0.0, reason="no communication: a lower bound for every other strategy")


class _Nccl(_Tensorflow1):
    name = "replicated-nccl"
    summary = "Replicas; gradients are all-reduced one by one over NCCL, when backward is over."
    list_order, preference_rank = 10, 10

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of an all-reduce and an update per variable. Nothing overlaps."""
        if now.devices < 2:
            return ONE_DEVICE
        curve = now.nccl_curve or now.ring_curve()
        all_reduces_ms = sum(curve.time_ms(size, now.devices) for size in now.model.sizes)
        launch_ms = _LAUNCH_MS * len(now.model.sizes)
        return Cost(
            exposed_ms=all_reduces_ms + launch_ms,
            exchange_ms=all_reduces_ms,
            reason=f"{len(now.model.sizes)} all-reduces take {all_reduces_ms:.1f} ms after backward",
        )


class _Horovod(_Tensorflow1):
    name = "horovod"
    summary = "One process per GPU; fused gradients are all-reduced while backward runs."
    list_order, preference_rank = 20, 15

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of all-reduces of 64 MB during backward, of copies into and from buffers, and of updates."""
        if now.devices < 2:
            return ONE_DEVICE
        curve = now.nccl_curve or now.ring_curve()
        buckets = now.bucket_times(ddp_buckets(now.model.sizes, _FUSED_MB))
        end_ms = all_reduces_ms = 0.0
        for size, ready_ms in buckets:  # bytes, and the time from the start of backward at which the buffer is complete
            duration_ms = curve.time_ms(size, now.devices)
            end_ms = max(end_ms, ready_ms + _CYCLE_MS / 2) + duration_ms
            all_reduces_ms += duration_ms
        bucket_copy_ms = 2 * now.on_device_ms(now.model.total_bytes) + _LAUNCH_MS * len(now.model.sizes)
        return Cost(
            exposed_ms=max(0.0, end_ms - now.compute.backward_ms) + bucket_copy_ms,
            exchange_ms=all_reduces_ms,
            reason=f"{len(buckets)} fused all-reduces take {all_reduces_ms:.1f} ms, beside backward",
        )


class _Central(_Tensorflow1):
    """Let every GPU fetch variables from their home before forward, and send gradients there.

    Attributes:
        home: memory that contains the variables: `host`, `gpus` (distributed by size), or `gpu` (all on the first GPU).
        overlapped: True if gradients are sent during backward.
        replica_update: True if each replica updates all its variables on its GPU.
    """

    home: ClassVar[str] = "host"
    overlapped: ClassVar[bool] = True
    replica_update: ClassVar[bool] = False

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of fetching parameters, of sending gradients, and of the update; see the attributes."""
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        backwards = now.model.sizes  # in the order in which backward computes the gradients
        sizes = backwards[::-1]  # in the order in which forward needs the parameters
        if cls.home == "gpus":
            owners = transfers.owners_by_size(sizes, count)
        else:
            owners = [HOST if cls.home == "host" else 0] * len(sizes)
        # `run` returns the end of each copy; `exposed_after` returns the ms from the end of compute to the last end.
        fetch_ms = transfers.exposed_after(transfers.run(transfers.fetch(now.paths, sizes, owners)), 0.0)
        ready = now.ready_ms if cls.overlapped else [0.0] * len(sizes)
        deliveries = transfers.run(transfers.deliver(now.paths, backwards, owners[::-1], ready))
        exposed_send_ms = transfers.exposed_after(deliveries, now.compute.backward_ms if cls.overlapped else 0.0)
        if cls.replica_update:
            update_ms = _LAUNCH_MS * len(sizes)
        elif cls.home == "host":
            # The CPU reads n gradients and writes their sum, then reads the sum and the variable and writes the
            # variable. If gradients are sent during backward, this work is hidden.
            host_ms = (count + 4) * now.model.total_bytes / (now.paths.host_memory() * 1e6)
            update_ms = 0.0 if cls.overlapped else host_ms
        else:
            update_ms = _LAUNCH_MS * len(sizes) / (count if cls.home == "gpus" else 1)
        # Duration of sending alone, as if all gradients were ready at once.
        send_ms = transfers.exposed_after(
            transfers.run(transfers.deliver(now.paths, backwards, owners[::-1], [0.0] * len(sizes))), 0.0
        )
        where = {"host": "the host", "gpus": f"{count} GPUs", "gpu": "GPU 0"}[cls.home]
        return Cost(
            exposed_ms=fetch_ms + exposed_send_ms + update_ms,
            exchange_ms=fetch_ms + send_ms + update_ms,
            reason=f"parameters come from {where} in {fetch_ms:.1f} ms, gradients go there in {send_ms:.1f} ms, "
            f"{exposed_send_ms:.1f} of them after backward",
        )


class _OnHost(_Central):
    name = "parameter-server-cpu"
    summary = "Variables on the CPU: fetched before forward, gradients sent while backward runs."
    list_order, preference_rank = 30, 20


class _OnGpus(_Central):
    name = "parameter-server-gpu"
    summary = "Variables spread over the GPUs: fetched before forward, gradients sent while backward runs."
    list_order, preference_rank = 40, 30
    home = "gpus"


class _Copies(_Central):
    name = "replicated"
    summary = "Replicas without NCCL: gradients are summed on the host and copied back to each."
    list_order, preference_rank = 50, 40
    replica_update = True


class _SlicedOnHost(_Central):
    name = "sliced-cpu"
    summary = "Keras: a batch sliced over the GPUs, variables on the CPU; nothing overlaps."
    list_order, preference_rank = 60, 50
    overlapped = False


class _SlicedOnGpu(_Central):
    name = "sliced-gpu"
    summary = "Keras: a batch sliced over the GPUs, variables on the first; nothing overlaps."
    list_order, preference_rank = 70, 60
    home, overlapped = "gpu", False
