"""Implement a DDP training loop with points at which faults act. The loop adds no marks to traces."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its `__all__`
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.pytorch.runtime import clock_for
from gpudiag.training.jobs.data.batches import Batch, batches
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.precision import Arithmetic, use_device
from gpudiag.training.models.registry import load_workload
from gpudiag.training.session.position import current_position
from gpudiag.training.strategies.pytorch_strategy import gather_objects


class CommunicationHook:
    """DDP's communication hook, with four modes.

    Mode `plain` is PyTorch's all-reduce of each bucket of gradients. Mode `slow` additionally all-reduces `extra` bytes
    per byte of gradients, as on a slower link. In mode `alone` the trainer steps under `no_sync()`, so ranks do not
    communicate. Mode `meeting` is like `alone`, but ranks wait for each other after backward.

    On a CPU the extra bytes of all buckets are sent with the last bucket, after backward. Otherwise gloo's threads
    would compete with backward for the core, differently on each rank, so the fault would also slow down compute.
    """

    def __init__(self) -> None:
        self.mode: Literal["plain", "slow", "alone", "meeting"] = "plain"
        self.extra = 0.0
        self._other = torch.empty(0)
        self._elements = 0  # number of elements of gradients for which no extra bytes have been sent yet

    @property
    def happens(self) -> bool:
        """True if ranks communicate gradients."""
        return self.mode not in {"alone", "meeting"}

    def bucket(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over the ranks; in mode `slow`, also all-reduce extra bytes."""
        buffer = bucket.buffer()
        if self.mode == "plain":
            return allreduce_hook(group, bucket)
        self._elements += buffer.numel()
        if not (buffer.is_cuda or bucket.is_last()):
            return allreduce_hook(group, bucket)
        size, self._elements = max(1, int(self._elements * self.extra)), 0
        if self._other.numel() < size or self._other.dtype != buffer.dtype:
            self._other = torch.zeros(size, dtype=buffer.dtype, device=buffer.device)
        other = dist.all_reduce(self._other[:size], group=group, async_op=True)
        plain = allreduce_hook(group, bucket)
        if buffer.is_cuda:
            return plain  # both run on the same stream, so `other` ends first
        both = torch.futures.collect_all([other.get_future(), plain])
        return both.then(lambda done: done.value()[1].value())  # the result of `plain`

    def release(self) -> None:
        """Free the memory of the extra bytes."""
        self._other = torch.empty(0)


class DdpTrainer(Trainer):
    """The training loop of one process. `gather` uses a gloo group, so that its collectives use no NCCL stream.

    Attributes:
        communication: the hook that communicates gradients.
        gradient_bytes: number of bytes of all gradients.
        workload: the trained workload.
        ddp, optimizer, arithmetic: the workload's model within DDP, its optimizer, and the precision of training.
        without_communication: mode of `communication` in which communication costs nothing: `alone` on GPUs, `meeting`
            on CPUs. There ranks still wait for stragglers, because processes on shared cores are never equally fast,
            and the diagnosis reports these waits separately.
        before_update: function that is called between backward and the update, or None.
        after: function that is called when the update has been launched, or None.
        other_step: function that trains on a batch in place of the DDP step, or None.
    """

    time_all_first: ClassVar[bool] = True

    def __init__(self, plan: SelftestPlan) -> None:
        on_gpu = plan.device == "cuda"
        device = use_device(plan.device)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, device_id=device if on_gpu else None)
        self._control = dist.new_group(backend="gloo")
        torch.manual_seed(0)
        self.workload = load_workload(plan.workload, on_gpu=on_gpu)
        self.batch_size = plan.batch_size
        self._layout = torch.channels_last if plan.memory_format == "nhwc" else torch.contiguous_format
        bare = self.workload.model().to(device)
        self._images = plan.memory_format == "nhwc"
        if self._images:
            bare = bare.to(memory_format=self._layout)  # type: ignore[call-overload]  # not in torch's stubs
        self.communication = CommunicationHook()
        self.without_communication: Literal["alone", "meeting"] = "alone" if on_gpu else "meeting"
        self.ddp = DistributedDataParallel(bare, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True)
        # DDP compares a hook's annotations with types. In this module annotations are text, so a lambda without
        # annotations is the hook.
        self.ddp.register_comm_hook(None, lambda group, bucket: self.communication.bucket(group, bucket))  # noqa: PLW0108
        self.optimizer = self.workload.optimizer(self.ddp.parameters())
        self.arithmetic = Arithmetic(plan.precision, device)
        self.before_update: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None
        self.other_step: Callable[[Batch], None] | None = None
        self.holds = on_gpu
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in bare.parameters() if p.requires_grad)
        place = current_position()
        super().__init__(
            device=device,
            place=place,
            strategy=backend,
            model=bare,
            batches=batches(
                self.workload, "host", batch_size=plan.batch_size, workers=0, device=device, seed=place.rank
            ),
            clock=clock_for(device),
        )

    def train(self, batch: Batch) -> None:
        """Run forward, backward and update."""
        if self.other_step is not None:
            self.other_step(batch)
        else:
            inputs, target = self.on_device(batch)
            if self.extra is not None:
                self.extra()
            self.backward(self.ddp, inputs, target, communicating=self.communication.happens)
            self.update(self.optimizer)
        if self.after is not None:
            self.after()

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch on the device, converted to the model's input."""
        inputs, target = batch
        x = self.workload.prepare(inputs.to(self.device, non_blocking=True))
        if self._images:
            x = x.contiguous(memory_format=self._layout)
        return x, target.to(self.device, non_blocking=True)

    def backward(self, model: nn.Module, inputs: Tensor, target: Tensor, *, communicating: bool = True) -> None:
        """Run forward and backward of a batch on the device. A DDP model communicates only if `communicating`."""
        context = model.no_sync() if isinstance(model, DistributedDataParallel) and not communicating else nullcontext()
        with context:
            with self.arithmetic.forward():
                loss = self.workload.loss(model(inputs), target)
            self.arithmetic.backward(loss)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters and drop the gradients."""
        if self.communication.mode == "meeting":
            dist.barrier(group=self._control)
        if self.before_update is not None:
            self.before_update()
        self.arithmetic.step(optimizer)
        optimizer.zero_grad(set_to_none=True)

    def hold(self, milliseconds: float) -> None:
        """Launch a kernel that counts clock cycles for at least this time. No GPU's clock exceeds 2 GHz."""
        sleep: Any = torch.cuda._sleep  # noqa: SLF001 # PyTorch has no public equivalent
        sleep(int(2e6 * milliseconds))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        return gather_objects(value, self._control)

    def close(self) -> None:
        """Delete the model, and then destroy the process group. `PytorchStrategy.close` explains the order."""
        del self.ddp
        gc.collect()
        dist.destroy_process_group()
