"""A plain DDP training loop with the places in which faults are put. It uses no mark of gpudiag's own."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpudiag.worker.timing import clock_for
from gpudiag.workloads.batches import batches
from gpudiag.workloads.faults.exchange import Exchange
from gpudiag.workloads.faults.loader import Loader
from gpudiag.workloads.precision import Arithmetic
from gpudiag.workloads.registry import load_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.selftest import SelftestPlan
    from gpudiag.workloads.batches import Batch

#: Steps after which the first guess of the step time is made.
_FIRST_STEPS = 5


class Trainer:
    """One process of the job. All collectives of its own go through a gloo group, so that no NCCL stream sees them.

    Attributes:
        bare: the model inside DDP.
        loader: the batches.
        extra: work that the step does once its batch is on the device; None for none.
        exchange: how gradients are exchanged.
        clean_ms: the step time without a fault, the same on all ranks; 0 before `warm_up`.
    """

    def __init__(self, plan: SelftestPlan) -> None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        on_gpu = plan.device == "cuda"
        self.device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=self.device if on_gpu else None)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._control = dist.new_group(backend="gloo")
        torch.manual_seed(0)
        self._workload = load_workload(plan.workload, on_gpu=on_gpu)
        self._layout = torch.channels_last if plan.memory_format == "nhwc" else torch.contiguous_format
        self.bare = self._workload.model().to(self.device)
        self._images = plan.memory_format == "nhwc"
        if self._images:
            self.bare = self.bare.to(memory_format=self._layout)  # type: ignore[call-overload]  # not in torch's stubs
        self.exchange = Exchange()
        self._model = DistributedDataParallel(
            self.bare, device_ids=[self.device] if on_gpu else None, gradient_as_bucket_view=True
        )
        self._model.register_comm_hook(None, self.exchange.bucket)
        self._optimizer = self._workload.optimizer(self._model.parameters())
        self._arithmetic = Arithmetic(plan.precision, self.device)
        source = batches(
            self._workload, "host", batch_size=plan.batch_size, workers=0, device=self.device, seed=self.rank
        )
        self.loader = Loader(source)
        self._batches = iter(self.loader)
        self.extra: Callable[[], None] | None = None
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self.bare.parameters() if p.requires_grad)
        self.clock = clock_for(self.device)
        self.clean_ms = 0.0

    def step(self) -> None:
        """Fetch a batch and train on it."""
        self.train(next(self._batches))

    def train(self, batch: Batch) -> None:
        """One forward, backward and update."""
        inputs, target = batch
        x = self._workload.prepare(inputs.to(self.device, non_blocking=True))
        if self._images:
            x = x.contiguous(memory_format=self._layout)
        if self.extra is not None:
            self.extra()
        with self._model.no_sync() if self.exchange.way == "alone" else nullcontext():
            with self._arithmetic.forward():
                loss = self._workload.loss(self._model(x), target.to(self.device, non_blocking=True))
            self._arithmetic.backward(loss)
        self._arithmetic.step(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)

    def warm_up(self, seconds: float) -> None:
        """Train for about this long, and set `clean_ms` by the second half of it."""
        began = time.perf_counter()
        self.timed(_FIRST_STEPS, run_in=0)
        # What is left of the time, at the pace of the last steps; the first held compilation and autotuning.
        pace_ms = self.agree(statistics.median(self.timed(_FIRST_STEPS, run_in=0)))
        left_s = self.agree(max(0.0, seconds - (time.perf_counter() - began)))
        series = self.timed(max(2 * _FIRST_STEPS, int(1e3 * left_s / pace_ms)), run_in=0)
        self.clean_ms = self.agree(statistics.median(series[len(series) // 2 :]))

    def timed(self, steps: int, *, run_in: int) -> list[float]:
        """Train this many steps after `run_in` others, which let the host run ahead again; their times in ms."""
        for _ in range(run_in):
            self.step()
        self.clock.restart()
        for _ in range(steps):
            self.step()
            self.clock.mark()
        return self.clock.read()

    def agree(self, value: float) -> float:
        """The mean of all ranks' values, on each of them."""
        return statistics.fmean(self.gather(value))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on each of them; waits for all."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def close(self) -> None:
        """Leave the other processes."""
        dist.destroy_process_group()
