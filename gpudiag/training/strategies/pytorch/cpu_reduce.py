"""Implement `cpu-reduce`: DistributedDataParallel with gradients that the CPUs sum in shared host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.prediction.cost import Cost, bucketed
from gpudiag.prediction.curves import Curve
from gpudiag.training.strategies.pytorch.ddp import BucketedStrategy, distributed_data_parallel

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.model.job import CommunicationOptions
    from gpudiag.prediction.situation import Situation
    from gpudiag.training.strategies.pytorch_strategy import StartAllReduce

_WIRES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: Bytes per chunk of the all-reduce, which copies and sums several chunks at the same time.
_CHUNK = 4 << 20


class CpuReduceHook:
    """A communication hook for DistributedDataParallel that averages gradients through shared host memory.

        hook = gpudiag.CpuReduceHook(device, wire="bf16")
        model.register_comm_hook(None, hook)
        ...
        hook.close()

    The hook is fast if GPUs have no peer access to each other. Each gradient is copied once to the host and once back,
    while a ring of n processes would make 2(n-1)/n copies each way. The processes must be on one node. Sums are in
    float32. NaN and infinities are preserved. If a process dies, the others raise an error at their next bucket.

    Args:
        device: the GPU of this process, or the CPU.
        wire: precision in which gradients are transported: `fp32`, `bf16` or `fp16`; None for the gradients' precision.
        group: the process group; None for the default group. All its processes must make the hook at the same point.
        **tuning: other arguments of `SharedHostAllReduce`.

    Raises:
        UsageError: the processes are not on one node, or the precision is unknown.
        HardwareMissingError: memory cannot be shared or pinned. Both errors are raised in every process.
    """

    def __init__(
        self,
        device: torch.device | int | str,
        *,
        wire: str | None = None,
        group: dist.ProcessGroup | None = None,
        **tuning: Any,
    ) -> None:
        import torch

        from gpudiag.training.strategies.shared_host.all_reduce import SharedHostAllReduce

        if wire is not None and wire not in _WIRES:
            raise UsageError(f"gradients cannot travel as {wire}", f"Choose one of {', '.join(_WIRES)}.")
        # DDP reads these attributes of a hook. Functions have these attributes, but instances of a class do not.
        self.__name__ = self.__qualname__ = "cpu_reduce_hook"
        self._communication = SharedHostAllReduce(
            group=group, device=torch.device(device), wire=_dtype(wire), mean=True, **tuning
        )

    def __call__(self, _state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket; raise WorkerFailedError if another process has died or makes no progress."""
        with gpudiag.range("exchange"):
            return self.reduce(bucket)

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket, without marking a range `exchange`."""
        return self._communication.start(bucket.buffer(), key=bucket.index())

    def check(self) -> None:
        """Raise WorkerFailedError if communication has failed."""
        self._communication.check()

    def close(self) -> None:
        """Finish all reductions and release the memory. Further calls do nothing."""
        self._communication.close()


# DDP compares a hook's annotations with types. Remove the annotations, because in this module they are strings.
CpuReduceHook.__call__.__annotations__.clear()


class CpuReduce(BucketedStrategy):
    """Copy each gradient to the host, sum it there, and copy the sum back. Links between GPUs are not used."""

    name = "cpu-reduce"
    summary = "DistributedDataParallel through shared host memory: the CPUs of the node sum each bucket, in chunks."
    list_order, preference_rank = 30, 30
    one_node = True
    least_devices = 2
    locks_memory = True
    through_host = True
    rounding_pays = True
    launched_ahead = True
    #: The default group only broadcasts the initial parameters, and buffers such as batch norm's.
    backend = None

    def __init__(self, device: torch.device, options: CommunicationOptions | None = None, devices: int = 1) -> None:
        super().__init__(device, options, devices)
        self._hook: CpuReduceHook | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Set up the shared memory, and wrap the model in DistributedDataParallel."""
        self.check_model(model)
        self._hook = CpuReduceHook(self.device, wire=self.options.compress)
        return super().wrap(model)

    def needs_hook(self) -> bool:
        """Return True, because the hook communicates."""
        return True

    def reduce_bucket(self, _group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket through the host."""
        assert self._hook is not None  # noqa: S101  # made by wrap
        return self._hook.reduce(bucket)

    def exchange(self, model: nn.Module) -> None:
        """Check that the buckets were reduced during backward; raise WorkerFailedError if a process has died."""
        super().exchange(model)
        assert self._hook is not None  # noqa: S101  # made by wrap
        self._hook.check()

    def release(self) -> None:
        """Release the model and the shared memory."""
        super().release()
        if self._hook is not None:
            self._hook.close()

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Return the name of the transport, which depends on the precision of gradients."""
        return f"{cls.name}-{candidate.compress}" if candidate.compress else cls.name

    @classmethod
    def all_reduce(cls, device: torch.device, candidate: Candidate) -> tuple[StartAllReduce, Callable[[], None]]:
        """Return functions that start and close the all-reduce of the hook."""
        from gpudiag.training.strategies.shared_host.all_reduce import SharedHostAllReduce

        shared = SharedHostAllReduce(device=device, wire=_dtype(candidate.compress))
        return lambda tensor, number: shared.start(tensor, key=number), shared.close

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of copies to shared host memory, sums by the CPUs, and copies back.

        `now` has the model, the number of devices and the machine's rates in GB/s (1e6 bytes per ms). Communication
        occupies no share of a device's compute (`holds`), because the devices only copy. `candidate.wire` is the number
        of communicated bytes per byte of gradients.
        """
        curve = now.curve(cls.transport(candidate, on_gpu=now.on_gpu, p2p=now.p2p))
        if curve is not None:
            # The measurement used the precision of transport, so the sizes are not scaled for precision again. DDP's
            # buckets have about 25 MB.
            reason = f"{_no_peers(now)}{curve.busbw(25e6):.3g} GB/s of bus bandwidth through shared host memory"
            return bucketed(now, candidate, curve, 1.0, reason, holds=0.0)
        if now.on_gpu:
            link_rate = now.paths.all_rate_both()
            reason = f"{_no_peers(now)}{link_rate:.3g} GB/s per GPU each way through the host, at once"
        else:
            # A copy reads and writes each byte, and all processes share the memory.
            link_rate = now.paths.host_memory() / 2 / max(1, now.devices)
            reason = f"{link_rate:.3g} GB/s of host memory per process"
        # GB/s per rank at which the CPUs sum gradients: they read each byte of every rank once, and write the sum once.
        sum_rate = now.paths.host_memory() / (1 + 1 / max(1, now.devices)) / max(1, now.devices)
        rate = min(link_rate, sum_rate)
        # Two copies, from and to the host (device -1).
        latency_ms = 2 * max((now.paths.latency_us(-1, gpu) for gpu in range(len(now.paths))), default=0.0) / 1e3
        # Time of an all-reduce in ms, by bytes. Two copies of a chunk, to the host and back, overlap with nothing.
        points = {
            size: latency_ms + 2 * min(size, _CHUNK) / (link_rate * 1e6) + size / (rate * 1e6)
            for size in (1 << 10, _CHUNK, 1 << 30)
        }
        if sum_rate < link_rate:
            reason = f"the CPUs add {sum_rate:.3g} GB/s per rank from host memory"
        return bucketed(now, candidate, Curve(points, now.devices), candidate.wire, reason, holds=0.0)

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return lines of code that use DistributedDataParallel with the hook."""
        wire = f', wire="{candidate.compress}"' if candidate.compress else ""
        return (
            "import gpudiag",
            distributed_data_parallel(candidate, "device_ids=[local_rank]"),
            f"hook = gpudiag.CpuReduceHook(device{wire})",
            "model.register_comm_hook(None, hook)",
            "...  # train; then:",
            "hook.close()",
        )


def _no_peers(now: Situation) -> str:
    return "there is no peer access, and " if now.on_gpu and not now.peer_access else ""


def _dtype(wire: str | None) -> torch.dtype | None:
    import torch

    dtype: torch.dtype | None = None if wire is None else getattr(torch, _WIRES[wire])
    return dtype
