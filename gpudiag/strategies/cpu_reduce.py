"""`cpu-reduce`: DistributedDataParallel with gradients summed by the CPUs, in host memory that all processes share."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.job import ExchangeOptions
from gpudiag.strategies.ddp import BucketedStrategy
from gpudiag.strategies.shared_host.all_reduce import SharedHostAllReduce

WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CpuReduceHook:
    """A communication hook for DistributedDataParallel that averages gradients through shared host memory.

        hook = CpuReduceHook(device, wire="bf16")
        model.register_comm_hook(None, hook)
        ...
        hook.close()

    It wins where GPUs have no peer access to each other: each gradient travels once to the host and once back, where
    a ring moves it 2(n-1)/n times each way. The processes must be on one node. Sums are formed in float32. NaN and
    infinities travel as they are. If a process dies, the others get an error in the next bucket instead of waiting.

    Args:
        device: the GPU of this process, or the CPU.
        wire: `fp32`, `bf16` or `fp16`: the precision in which gradients travel; their own when None.
        group: the processes; the default group when None. All must make the hook at the same point.
        **tuning: anything else that `SharedHostAllReduce` takes.

    Raises:
        UsageError: the processes are not on one node, or there is no such wire.
        HardwareMissingError: memory cannot be shared or pinned. Both are raised in every process.
    """

    def __init__(
        self,
        device: torch.device | int | str,
        *,
        wire: str | None = None,
        group: dist.ProcessGroup | None = None,
        **tuning: Any,
    ) -> None:
        if wire is not None and wire not in WIRES:
            raise UsageError(f"gradients cannot travel as {wire}", f"Choose one of {', '.join(WIRES)}.")
        # DDP asks hooks for their names, as functions have them.
        self.__name__ = self.__qualname__ = "cpu_reduce_hook"
        self._exchange = SharedHostAllReduce(
            group=group,
            device=torch.device(device),
            wire=None if wire is None else WIRES[wire],
            mean=True,
            **tuning,
        )

    def __call__(self, _state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket. Raises WorkerFailedError when another process has died or does not get on."""
        with gpudiag.range("exchange"):
            return self.reduce(bucket)

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The same without a range around it."""
        return self._exchange.start(bucket.buffer(), key=bucket.index())

    def check(self) -> None:
        """Raise WorkerFailedError if the exchange has been given up."""
        self._exchange.check()

    def close(self) -> None:
        """Finish and let go of the memory. May be called again."""
        self._exchange.close()


class CpuReduce(BucketedStrategy):
    """Each gradient goes to the host once and comes back once; the GPUs' own links are not used."""

    #: For the parameters at the start, and for buffers such as batch norm's.
    backend = None

    def __init__(self, device: torch.device, options: ExchangeOptions | None = None, devices: int = 1) -> None:
        super().__init__(device, options, devices)
        self._hook: CpuReduceHook | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """As DDP, after the memory has been shared."""
        self.check_model(model)
        self._hook = CpuReduceHook(self.device, wire=self.options.compress)
        return super().wrap(model)

    def needs_hook(self) -> bool:
        """Always: the hook is the exchange."""
        return True

    def reduce_bucket(self, _group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket through the host."""
        assert self._hook is not None  # noqa: S101  # made by wrap
        return self._hook.reduce(bucket)

    def exchange(self, model: nn.Module) -> None:
        """The buckets have travelled during backward. Raises WorkerFailedError if a process has died."""
        super().exchange(model)
        assert self._hook is not None  # noqa: S101  # made by wrap
        self._hook.check()

    def release(self) -> None:
        """Let go of the memory."""
        if self._hook is not None:
            self._hook.close()


STRATEGY = CpuReduce
