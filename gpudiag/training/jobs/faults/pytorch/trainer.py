"""A plain DDP training loop with the places in which faults are put. It uses no mark of gpudiag's own."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.pytorch.clock import clock_for
from gpudiag.training.jobs.data.batches import Batch, batches
from gpudiag.training.jobs.faults.pytorch.exchange_hook import Exchange
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.models.registry import load_workload
from gpudiag.training.session.place import this_place


class DdpTrainer(Trainer):
    """One process of the job. All collectives of its own go through a gloo group, so that no NCCL stream sees them.

    Attributes:
        exchange: how gradients are exchanged.
        gradient_bytes: of the whole model.
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
        self._workload = load_workload(plan.workload, on_gpu=on_gpu)
        self._layout = torch.channels_last if plan.memory_format == "nhwc" else torch.contiguous_format
        bare = self._workload.model().to(device)
        self._images = plan.memory_format == "nhwc"
        if self._images:
            bare = bare.to(memory_format=self._layout)  # type: ignore[call-overload]  # not in torch's stubs
        self.exchange = Exchange()
        self._model = DistributedDataParallel(
            bare, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
        )
        self._model.register_comm_hook(None, self.exchange.bucket)
        self._optimizer = self._workload.optimizer(self._model.parameters())
        self._arithmetic = Arithmetic(plan.precision, device)
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in bare.parameters() if p.requires_grad)
        place = this_place()
        super().__init__(
            device=device,
            place=place,
            strategy=backend,
            model=bare,
            batches=batches(
                self._workload, "host", batch_size=plan.batch_size, workers=0, device=device, seed=place.rank
            ),
            clock=clock_for(device),
        )

    def train(self, batch: Batch) -> None:
        """One forward, backward and update."""
        inputs, target = batch
        x = self._workload.prepare(inputs.to(self.device, non_blocking=True))
        if self._images:
            x = x.contiguous(memory_format=self._layout)
        if self.extra is not None:
            self.extra()
        with self._model.no_sync() if self.exchange.way in {"alone", "meeting"} else nullcontext():
            with self._arithmetic.forward():
                loss = self._workload.loss(self._model(x), target.to(self.device, non_blocking=True))
            self._arithmetic.backward(loss)
        if self.exchange.way == "meeting":
            dist.barrier(group=self._control)
        self._arithmetic.step(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on each of them; waits for all."""
        values: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def close(self) -> None:
        """Leave the other processes."""
        dist.destroy_process_group()
