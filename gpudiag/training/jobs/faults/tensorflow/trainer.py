"""A plain training loop under tf.distribute with the places in which faults are put."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.tensorflow.runtime import RUNTIME
from gpudiag.training.jobs.faults.tensorflow.together import Together
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.tensorflow.batches import distributed_batches
from gpudiag.training.jobs.tensorflow.hardware import use_devices
from gpudiag.training.jobs.tensorflow.precision import scaling, set_precision
from gpudiag.training.jobs.tensorflow.step import exchanged_by, make_step
from gpudiag.training.models.registry import load_keras_workload
from gpudiag.training.strategies.registry import tensorflow_strategy

#: One process per device, so that one of them can be late.
_STRATEGY = "multi-worker"


class DistributedTrainer(Trainer):
    """One process of the job.

    Attributes:
        after: what is done with the loss of each step; None for nothing.
    """

    def __init__(self, plan: SelftestPlan) -> None:
        if plan.device == "cpu":
            _keep_to_own_cores()
        devices = use_devices(plan.device, 1)
        strategy = tensorflow_strategy(_STRATEGY).make(devices)
        place = RUNTIME.place(devices)
        self._together = Together(place)
        set_precision(plan.precision)
        keras.config.set_image_data_format("channels_first" if plan.memory_format == "nchw" else "channels_last")
        keras.utils.set_random_seed(0)
        workload = load_keras_workload(plan.workload, on_gpu=plan.device == "cuda")
        with strategy.scope():
            model = workload.model()
            optimizer = scaling(workload.optimizer(), plan.precision)
            optimizer.build(model.trainable_variables)
        self._make_step = partial(make_step, workload, model, optimizer, strategy, compiled=False)
        self._optimizer = optimizer
        self._usual = self._step = self._make_step()
        self.after: Callable[[Any], None] | None = None
        source = distributed_batches(
            workload,
            "host",
            strategy=strategy,
            devices=devices,
            batch_size=plan.batch_size,
            workers=None,
            seed=place.rank,
        )
        super().__init__(
            device=devices[0],
            place=place,
            strategy=_STRATEGY,
            model=model,
            batches=source,
            clock=RUNTIME.clock(devices),
        )

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, through the launcher's store."""
        return self._together.gather(value)

    def marked(self, number: int) -> AbstractContextManager[object]:
        """TensorFlow's own step mark."""
        mark: AbstractContextManager[object] = tf.profiler.experimental.Trace("train", step_num=number, _r=1)
        return mark

    def train(self, batch: Any) -> None:
        """One forward, backward and update."""
        if self.extra is not None:
            self.extra()
        loss = self._step(batch)
        if self.after is not None:
            self.after(loss)

    def communication_barely(self) -> Callable[[bool], None]:
        """A switch: on, gradients are exchanged as usual; off, the processes only wait for each other."""
        with exchanged_by(self._optimizer, _wait_for_each_other):
            barely = self._step = self._make_step()
            self.step()  # builds the graph

        def switch(on: bool) -> None:
            self._step = self._usual if on else barely

        switch(True)
        return switch


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
