"""Implement strategies with one process per device: `nccl` and `gloo` (DistributedDataParallel), and `independent`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import gpudiag
from gpudiag.model.facts import nccl_transport
from gpudiag.model.job import INDEPENDENT
from gpudiag.prediction.cost import NCCL_HOLDS, Cost, bucketed
from gpudiag.prediction.curves import Curve
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
    from torch.nn.parallel import DistributedDataParallel

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.model.job import CommunicationOptions
    from gpudiag.prediction.situation import Situation

#: Environment variable that tools such as Nsight Systems set in the programs that they profile.
_NVTX_LISTENER = "NVTX_INJECTION64_PATH"
#: Bytes that gloo's all-reduce over sockets reads and writes in host memory on each rank, per byte of the message: for
#: copies into and out of sockets, and for additions.
_GLOO_PASSES = 6


def distributed_data_parallel(candidate: Candidate, *arguments: str) -> str:
    """Return the line of code that wraps a user's model in DDP. `arguments` are further arguments as source text."""
    if candidate.bucket_mb is not None:
        arguments = (*arguments, f"bucket_cap_mb={candidate.bucket_mb:g}")
    return f"model = torch.nn.parallel.DistributedDataParallel({', '.join(('model', *arguments))})"


class BucketedStrategy(PytorchStrategy):
    """DistributedDataParallel, which all-reduces gradients in buckets while backward still runs.

    Only a communication hook can mark the communication of a bucket as a range. A hook costs a Python call and a
    division kernel per bucket. So a hook is registered only to compress gradients, for a recording, or if a tool
    listens to NVTX. By default the hook is PyTorch's `allreduce_hook`, which is equivalent to DDP without a hook.
    """

    takes: ClassVar[tuple[str, ...]] = ("bucket_mb", "compress", "accumulate")

    def __init__(self, device: torch.device, options: CommunicationOptions | None = None, devices: int = 1) -> None:
        super().__init__(device, options, devices)
        self._wrapped: DistributedDataParallel | None = None
        self._hooked = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model in DistributedDataParallel, which broadcasts the parameters of rank 0."""
        from torch.nn.parallel import DistributedDataParallel

        self.check_model(model)
        devices: Any = [self.device] if self.device.type == "cuda" else None
        size: Any = self.options.bucket_mb
        self._wrapped = DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=size)
        if self.needs_hook() or _NVTX_LISTENER in os.environ:
            self._attach()
        return self._wrapped

    def accumulating(self) -> AbstractContextManager[object]:
        """Return DDP's `no_sync`."""
        assert self._wrapped is not None  # noqa: S101 # called after wrap
        return self._wrapped.no_sync()

    def exchange(self, model: nn.Module) -> None:
        """Register the hook in the first recorded step. Communicate nothing: buckets were reduced during backward."""
        import torch

        self.check_gradients(model)
        if not self._hooked and torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001  # no public way to ask
            self._attach()

    def needs_hook(self) -> bool:
        """Return whether communication needs a hook even if nothing records ranges."""
        return self.options.compress is not None

    def reduce_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket over the ranks, compressed if requested."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        compress = self.options.compress
        hook: Any = getattr(default_hooks, f"{compress}_compress_hook" if compress else "allreduce_hook")
        averaged: torch.futures.Future[torch.Tensor] = hook(group, bucket)
        return averaged

    def release(self) -> None:
        """Release the reference to the wrapped model, so that the model can be deleted."""
        self._wrapped = None

    def _attach(self) -> None:
        assert self._wrapped is not None  # noqa: S101  # called after wrap
        self._hooked = True
        # DDP compares a hook's annotations with types, but in this module annotations are text. A lambda has none.
        self._wrapped.register_comm_hook(None, lambda group, bucket: self._communicate_bucket(group, bucket))  # noqa: PLW0108

    def _communicate_bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket in a range `exchange`, and note the bucket's bytes. DDP calls this as its hook."""
        if bucket.index() == 0:
            self.exchanged_bytes.clear()
        buffer = bucket.buffer()
        self.exchanged_bytes.append(buffer.numel() * buffer.element_size())
        with gpudiag.range("exchange"):
            return self.reduce_bucket(group, bucket)

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return lines of plain PyTorch, with PyTorch's compression hook if gradients are compressed."""
        compression = (
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
            f"model.register_comm_hook(None, default_hooks.{candidate.compress}_compress_hook)",
        )
        return (
            f'torch.distributed.init_process_group("{cls.backend}")',
            distributed_data_parallel(candidate, *(["device_ids=[local_rank]"] if cls.needs_gpu else [])),
            *(compression if candidate.lossy else ()),
        )


class Nccl(BucketedStrategy):
    """All-reduce gradients between GPUs with NCCL, over direct links if there are any."""

    name = "nccl"
    summary = "DistributedDataParallel over NCCL: each gradient bucket is all-reduced between the GPUs."
    list_order, preference_rank = 10, 10
    default_on = "cuda"
    needs_gpu = True
    rounding_pays = True
    launched_ahead = True
    takes = (*BucketedStrategy.takes, "nccl_algo")
    backend = "nccl"

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Return the name of NCCL's transport, with or without peer access. Compression only shortens the messages."""
        return nccl_transport(p2p=p2p)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of all-reduces over links between GPUs. `now` has the model and the machine's rates.

        `candidate.wire` is the number of communicated bytes per byte of gradients. Communication occupies the share
        `holds` of a device's compute while it runs.
        """
        curve = now.nccl_curve
        if curve is not None:
            reason = f"{curve.busbw(25e6):.3g} GB/s of bus bandwidth at 25 MB"
        else:
            curve = now.ring_curve()
            links = " of NVLink" if now.paths.ring_is_nvlink else ""
            reason = f"{now.ring_rate():.3g} GB/s around the slowest link of the ring{links}"
        if not now.peer_access:
            reason = f"there is no peer access, and {reason}, through the host"
        return bucketed(now, candidate, curve, candidate.wire, reason, holds=NCCL_HOLDS)


class Gloo(BucketedStrategy):
    """All-reduce gradients with gloo. For GPUs, gloo copies each bucket to the host, reduces it and copies it back."""

    name = "gloo"
    summary = "DistributedDataParallel over gloo: each gradient bucket is all-reduced between the hosts' CPUs."
    list_order, preference_rank = 20, 20
    default_on = "cpu"
    through_host = True
    backend = "gloo"

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str:
        """Return the name of gloo's all-reduce of GPU memory or of host memory."""
        return "gloo-device" if on_gpu else "gloo"

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of all-reduces over sockets, with copies from and to GPUs. See `Nccl.cost`.

        Prefer a measured curve: of gloo on GPU memory, or else of gloo on host memory with copies from and to the GPUs.
        Without these curves, compute the times in ms of a small and a large all-reduce from rates in GB/s.
        """
        curve = now.curve("gloo-device" if now.on_gpu else "gloo") or (now.curve("host-staged") if now.on_gpu else None)
        if curve is None:
            on_host = now.curve("gloo")
            copy_ms_per_byte = 0.0
            if now.on_gpu:
                to_host, to_device = now.paths.all_rate("device_to_host"), now.paths.all_rate("host_to_device")
                copy_ms_per_byte = 1 / (to_host * 1e6) + 1 / (to_device * 1e6)
            # Without any measurement, assume a latency of 0.3 ms and the rates of host memory and of links.
            per_byte = copy_ms_per_byte + _GLOO_PASSES * now.devices / (now.paths.host_memory() * 1e6)
            points = {
                size: on_host.time_ms(size, now.devices) + copy_ms_per_byte * size if on_host else 0.3 + per_byte * size
                for size in (1 << 10, 1 << 28)
            }
            curve = Curve(points, now.devices)
        reason = f"gloo carries {curve.busbw(25e6):.2g} GB/s of bus bandwidth over the host's sockets"
        return bucketed(now, candidate, curve, candidate.wire, reason, holds=0.0)


class Independent(PytorchStrategy):
    """Let each process train alone. The steps of other strategies are longer by the cost of their communication.

    The processes join a process group, although they send nothing over the group. Because of the group, the processes
    enter each phase of a measurement together, and their traces contain their ranks.
    """

    name = INDEPENDENT
    summary = "No communication: each process trains its own model; its step time is a lower bound for the others."
    list_order, preference_rank = 80, 80
    communicates = False

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return a cost of 0."""
        return Cost(
            exposed_ms=0.0,
            exchange_ms=0.0,
            reason="no communication: a lower bound for every other strategy, but the processes train different models",
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return a comment, because this strategy needs no code."""
        return ("# no communication: the processes train different models",)
