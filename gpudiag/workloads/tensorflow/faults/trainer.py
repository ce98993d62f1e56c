"""A plain training loop under tf.distribute with the places in which faults are put."""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from gpudiag.strategies.tensorflow.registry import make_strategy
from gpudiag.worker.tensorflow.runtime import RUNTIME
from gpudiag.workloads.tensorflow.batches import distributed_batches
from gpudiag.workloads.tensorflow.faults.together import Together
from gpudiag.workloads.tensorflow.hardware import use_devices
from gpudiag.workloads.tensorflow.precision import scaling, set_precision
from gpudiag.workloads.tensorflow.registry import load_workload
from gpudiag.workloads.tensorflow.step import exchanged_by, make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpudiag.model.selftest import SelftestPlan

#: One process per device, so that one of them can be late.
STRATEGY = "multi-worker"

#: Steps after which the first guess of the step time is made.
_FIRST_STEPS = 5


class Loader:
    """Batches `late_s` seconds late each. A plain iterator: it leaves no mark in a trace."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.late_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if self.late_s:
                time.sleep(self.late_s)
            yield batch


class Trainer:
    """One process of the job.

    Attributes:
        loader: the batches.
        extra: work that the step does before it trains; None for none.
        after: what is done with the loss of each step; None for nothing.
        clean_ms: the step time without a fault, the same in all processes; 0 before `warm_up`.
    """

    def __init__(self, plan: SelftestPlan) -> None:
        if plan.device == "cpu":
            _keep_to_own_cores()
        devices = use_devices(plan.device, 1)
        strategy = make_strategy(STRATEGY, devices)
        self.device = devices[0]
        self.place = RUNTIME.place(devices)
        self.together = Together(self.place)
        set_precision(plan.precision)
        keras.config.set_image_data_format("channels_first" if plan.memory_format == "nchw" else "channels_last")
        keras.utils.set_random_seed(0)
        workload = load_workload(plan.workload, on_gpu=plan.device == "cuda")
        with strategy.scope():
            self.model = workload.model()
            optimizer = scaling(workload.optimizer(), plan.precision)
            optimizer.build(self.model.trainable_variables)
        self._make_step = partial(make_step, workload, self.model, optimizer, strategy, compiled=False)
        self._optimizer = optimizer
        self._usual = self._step = self._make_step()
        self.loader = Loader(
            distributed_batches(
                workload,
                "host",
                strategy=strategy,
                devices=devices,
                batch_size=plan.batch_size,
                workers=None,
                seed=self.place.rank,
            )
        )
        self._batches = iter(self.loader)
        self.extra: Callable[[], None] | None = None
        self.after: Callable[[Any], None] | None = None
        self.clock = RUNTIME.clock(devices)
        self.clean_ms = 0.0

    def step(self) -> None:
        """Fetch a batch and train on it."""
        self.train(next(self._batches))

    def train(self, batch: Any) -> None:
        """One forward, backward and update."""
        if self.extra is not None:
            self.extra()
        loss = self._step(batch)
        if self.after is not None:
            self.after(loss)

    def exchange_barely(self) -> Callable[[bool], None]:
        """A switch: on, gradients are exchanged as usual; off, the processes only wait for each other."""
        with exchanged_by(self._optimizer, _wait_for_each_other):
            barely = self._step = self._make_step()
            self.step()  # builds the graph

        def switch(on: bool) -> None:
            self._step = self._usual if on else barely

        switch(True)
        return switch

    def warm_up(self, seconds: float) -> None:
        """Train for about this long, and set `clean_ms` by the second half of it."""
        began = time.perf_counter()
        self.timed(_FIRST_STEPS, run_in=0)  # builds the graph
        pace_ms = self.together.agree(statistics.median(self.timed(_FIRST_STEPS, run_in=0)))
        left_s = self.together.agree(max(0.0, seconds - (time.perf_counter() - began)))
        series = self.timed(max(2 * _FIRST_STEPS, int(1e3 * left_s / pace_ms)), run_in=0)
        self.clean_ms = self.together.agree(statistics.median(series[len(series) // 2 :]))

    def timed(self, steps: int, *, run_in: int) -> list[float]:
        """Train this many steps after `run_in` others, which let the host run ahead again; their times in ms."""
        for _ in range(run_in):
            self.step()
        self.clock.restart()
        for _ in range(steps):
            self.step()
            self.clock.mark()
        return self.clock.read()


def _wait_for_each_other(pairs: Any) -> list[tuple[Any, Any]]:
    """One number is reduced over all devices, once all gradients are there; then each has its own."""
    pairs = list(pairs)
    with tf.control_dependencies([gradient for gradient, _ in pairs]):
        reduced = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros(()))
    with tf.control_dependencies([reduced]):
        return [(tf.identity(gradient), variable) for gradient, variable in pairs]


def _keep_to_own_cores() -> None:
    """Give each process of this machine its share of the cores, before TensorFlow makes its threads.

    Processes that share cores run faster while another is late, so that being late costs less than it takes; which no
    trace can tell.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    rank, count = (
        int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )
    share = len(cores) // count
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])
