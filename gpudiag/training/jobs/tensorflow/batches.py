"""Make batches of a workload under TensorFlow: on the devices, in host memory, or with a tf.data pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import tensorflow as tf

from gpudiag.model.job import DataSource
from gpudiag.training.models.tensorflow.workload import KerasWorkload

#: Number of distinct batches in host memory.
_HOST_BATCHES = 4


def distributed_batches(
    workload: KerasWorkload,
    source: DataSource,
    *,
    strategy: Any,
    devices: Sequence[str],
    batch_size: int,
    workers: int | None,
    seed: int,
) -> Iterable[Any]:
    """Return endless batches with `batch_size` samples for each device of this process.

    Source `device` is one batch that stays on each device. `host` is a few batches in host memory, one of which is
    copied in each step. `loader` is a tf.data pipeline that collates single samples. For `host` and `loader`,
    TensorFlow copies a batch to its device during the previous step.

    Args:
        workload: makes the samples.
        source: `device`, `host` or `loader`.
        strategy: the `tf.distribute.Strategy`.
        devices: short names of this process's devices.
        batch_size: samples per device and step.
        workers: number of concurrently collated batches; None to let tf.data choose.
        seed: seed of the samples.
    """
    if source == "device":
        batch = workload.samples(batch_size, np.random.default_rng(seed))
        return repeat(_on_each_device(strategy, devices, batch))
    data = pipeline(workload, source, batch_size=batch_size, workers=workers, seed=seed)
    batches: Iterable[Any] = strategy.distribute_datasets_from_function(lambda _: data)
    return batches


def pipeline(workload: KerasWorkload, source: DataSource, *, batch_size: int, workers: int | None, seed: int) -> Any:
    """Make the `tf.data.Dataset` for source `host` or `loader`. See `distributed_batches` for the arguments."""
    generator = np.random.default_rng(seed)
    if source == "host":
        host_batches = [workload.samples(batch_size, generator) for _ in range(_HOST_BATCHES)]
        inputs, targets = (np.stack(arrays) for arrays in zip(*host_batches, strict=True))
        return tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat().prefetch(tf.data.AUTOTUNE)
    samples = tf.data.Dataset.from_tensor_slices(workload.samples(workload.pool, generator)).repeat()
    concurrent = tf.data.AUTOTUNE if workers is None else max(1, workers)
    batches = samples.batch(batch_size, drop_remainder=True, num_parallel_calls=concurrent)
    return batches.prefetch(tf.data.AUTOTUNE)


def _on_each_device(strategy: Any, devices: Sequence[str], batch: tuple[Any, Any]) -> Any:
    """Copy the batch to every device, and return the copies as a distributed value of the strategy."""
    # Replicas are numbered over all processes. `first` is the number of this process's first replica. If
    # `first` is unknown, the remainder still gives the device, because all processes have equally many devices.
    first = strategy.extended._first_replica_id if hasattr(strategy.extended, "_first_replica_id") else 0  # noqa: SLF001

    def batch_of_replica(context: Any) -> tuple[Any, Any]:
        with tf.device(devices[(context.replica_id_in_sync_group - first) % len(devices)]):
            return tf.identity(batch[0]), tf.identity(batch[1])

    return strategy.experimental_distribute_values_from_function(batch_of_replica)
