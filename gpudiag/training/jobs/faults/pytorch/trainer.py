"""A plain DDP training loop with the places in which faults are put. It uses no mark of gpudiag's own."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.pytorch.runtime import clock_for
from gpudiag.training.jobs.data.batches import Batch, batches
from gpudiag.training.jobs.faults.pytorch.communication_hook import CommunicationHook
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.models.registry import load_workload
from gpudiag.training.session.position import current_position


class DdpTrainer(Trainer):
    """One process of the job. All collectives of its own go through a gloo group, so that no NCCL stream sees them.

    Attributes:
        exchange: how gradients are exchanged.
        gradient_bytes: of the whole model.
        workload: what is trained, `ddp` the wrapped model, `optimizer` its own, `arithmetic` its number formats.
        before_update: what is done between backward and the update; None for nothing.
        after: what is done when the update has been launched; None for nothing.
        other_step: another way to train on a batch; None for DDP's.
    """

    time_all_first: ClassVar[bool] = True

    def __init__(self, plan: SelftestPlan) -> None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        on_gpu = plan.device == "cuda"
        device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True
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
        self.exchange = CommunicationHook()
        self.ddp = DistributedDataParallel(bare, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True)
        self.ddp.register_comm_hook(None, self.exchange.bucket)
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
        """One forward, backward and update."""
        if self.other_step is not None:
            self.other_step(batch)
        else:
            inputs, target = self.on_device(batch)
            if self.extra is not None:
                self.extra()
            self.backward(self.ddp, inputs, target, exchanging=self.exchange.happens)
            self.update(self.optimizer)
        if self.after is not None:
            self.after()

    def on_device(self, batch: Batch) -> Batch:
        """A batch, copied to the device and made what the model takes."""
        inputs, target = batch
        x = self.workload.prepare(inputs.to(self.device, non_blocking=True))
        if self._images:
            x = x.contiguous(memory_format=self._layout)
        return x, target.to(self.device, non_blocking=True)

    def backward(self, model: nn.Module, inputs: Tensor, target: Tensor, *, exchanging: bool = True) -> None:
        """Forward and backward of a batch on the device; DDP's models are kept from exchanging unless `exchanging`."""
        alone = model.no_sync() if isinstance(model, DistributedDataParallel) and not exchanging else nullcontext()
        with alone:
            with self.arithmetic.forward():
                loss = self.workload.loss(model(inputs), target)
            self.arithmetic.backward(loss)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the parameters and forget the gradients."""
        if self.exchange.way == "meeting":
            dist.barrier(group=self._control)
        if self.before_update is not None:
            self.before_update()
        self.arithmetic.step(optimizer)
        optimizer.zero_grad(set_to_none=True)

    def hold(self, milliseconds: float) -> None:
        """A kernel that does nothing for at least this long, as no GPU's clock is above 2 GHz."""
        sleep: Any = torch.cuda._sleep  # noqa: SLF001  # PyTorch's own tests have no other
        sleep(int(2e6 * milliseconds))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on each of them; waits for all."""
        values: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def close(self) -> None:
        """Leave the other processes. The model goes first: see `PytorchStrategy.close`."""
        del self.ddp
        gc.collect()
        dist.destroy_process_group()
