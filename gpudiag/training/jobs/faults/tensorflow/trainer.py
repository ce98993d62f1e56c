"""Implement a training loop under `tf.distribute` with points at which faults act."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gpudiag.errors import WorkerFailedError
from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.tensorflow.cluster import cluster_store
from gpudiag.training.frameworks.tensorflow.runtime import RUNTIME
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.tensorflow.batches import distributed_batches
from gpudiag.training.jobs.tensorflow.setup import scaling, set_precision, use_devices
from gpudiag.training.jobs.tensorflow.step import communicating_by, make_step
from gpudiag.training.models.registry import load_keras_workload
from gpudiag.training.session.position import ClusterPosition
from gpudiag.training.strategies.registry import tensorflow_strategy

#: A strategy with one process per device, so that a fault can slow down a single device.
_STRATEGY = "multi-worker"
#: Timeout of `gather` in seconds. No process calls `gather` this much later than another process.
_TIMEOUT_S = 120.0
#: Number that separates the keys of `StoreGather` from the keys of sessions. No session has this number.
_SESSION = 1_000_000


class StoreGather:
    """Gather values through the launcher's key-value store. All processes must make their calls in the same order."""

    def __init__(self, place: ClusterPosition) -> None:
        self._rank, self._size = place.rank, place.world_size
        self._store = cluster_store(place, _SESSION)
        self._count = 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of ranks. Values must be representable as JSON.

        Raise WorkerFailedError if a process has not called this method in time.
        """
        if self._store is None:
            return [value]
        number, self._count = self._count, self._count + 1
        keys = [f"{number}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(value))
        until = time.monotonic() + _TIMEOUT_S
        pause_s = 0.0005
        while not self._store.check(keys):
            if time.monotonic() > until:
                raise WorkerFailedError(f"rank {self._rank} waited in vain for its peers")
            time.sleep(pause_s)
            pause_s = min(0.01, 1.5 * pause_s)
        return [json.loads(self._store.get(key)) for key in keys]


class DistributedTrainer(Trainer):
    """The training loop of one process.

    Attributes:
        after: function that is called with the loss after each step, or None.
    """

    def __init__(self, plan: SelftestPlan) -> None:
        if plan.device == "cpu":
            _pin_to_own_cores()
        devices = use_devices(plan.device, 1)
        strategy = tensorflow_strategy(_STRATEGY).make(devices)
        place = RUNTIME.position(devices)
        self._store = StoreGather(place)
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
        self._plain_step = self._step = self._make_step()
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
        """Return the values of all processes, in the order of ranks, through the launcher's key-value store."""
        return self._store.gather(value)

    def marked(self, number: int) -> AbstractContextManager[object]:
        """Return TensorFlow's step mark."""
        mark: AbstractContextManager[object] = tf.profiler.experimental.Trace("train", step_num=number, _r=1)
        return mark

    def train(self, batch: Any) -> None:
        """Run forward, backward and update."""
        if self.extra is not None:
            self.extra()
        loss = self._step(batch)
        if self.after is not None:
            self.after(loss)

    def communication_switch(self) -> Callable[[bool], None]:
        """Return a function that switches gradient communication on or off. If off, processes only wait for peers."""
        with communicating_by(self._optimizer, _wait_for_each_other):
            waiting = self._step = self._make_step()
            self.step()  # this builds the graph

        def switch(on: bool) -> None:
            self._step = self._plain_step if on else waiting

        switch(True)
        return switch


def _wait_for_each_other(pairs: Any) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs unchanged, after an all-reduce of one number over all devices."""
    pairs = list(pairs)
    with tf.control_dependencies([gradient for gradient, _ in pairs]):
        reduced = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros(()))
    with tf.control_dependencies([reduced]):
        # Only a new op, such as `identity`, waits for the all-reduce.
        return [(tf.identity(gradient), variable) for gradient, variable in pairs]


def _pin_to_own_cores() -> None:
    """Pin this process to its share of the cores before TensorFlow starts threads, unless the share is below one core.

    If processes shared cores, a process would run faster while another process is late. Then a straggler would cost
    less than its delay, and no trace would show why.
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
