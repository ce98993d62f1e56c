"""Training with a parameter server: rounds of steps that a coordinator hands to workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import tensorflow as tf

import gpudiag
from gpudiag.training.jobs.tensorflow.step import step_on_each_device
from gpudiag.training.models.tensorflow.workload import KerasWorkload


class Rounds:
    """One step here is a round: as many batches as there are workers, handed to whichever worker is free.

    Workers take their batches themselves, so that the loop over a round has none to fetch.

    Args:
        workload: prepares inputs and makes the loss.
        model: in the strategy's scope.
        optimizer: the same, built.
        strategy: a `tf.distribute.ParameterServerStrategy`.
        pipeline: makes the `tf.data.Dataset` of one worker.
        workers: how many there are.
        compiled: forward and backward are compiled by XLA.
    """

    def __init__(
        self,
        workload: KerasWorkload,
        model: Any,
        optimizer: Any,
        strategy: Any,
        pipeline: Callable[[], Any],
        *,
        workers: int,
        compiled: bool,
    ) -> None:
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._workers = workers
        on_one_device = step_on_each_device(workload, model, optimizer, strategy, compiled=compiled)

        @tf.function  # type: ignore[untyped-decorator]
        def step(batches: Any) -> Any:
            return strategy.run(on_one_device, args=next(batches))

        self._step = step
        self._batches = iter(
            self._coordinator.create_per_worker_dataset(
                lambda: strategy.distribute_datasets_from_function(lambda _: pipeline())
            )
        )

    def batches(self) -> Iterable[None]:
        """What the training loop iterates over."""
        return repeat(None)

    def __call__(self, _: None) -> None:
        """One round, to its end."""
        # The workers are other threads. Without a mark this one would seem to do nothing, as where input is late.
        with gpudiag.range("workers"):
            for _worker in range(self._workers):
                self._coordinator.schedule(self._step, args=(self._batches,))
            self._coordinator.join()
