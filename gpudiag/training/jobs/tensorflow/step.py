"""Make training steps under a `tf.distribute.Strategy`: a `tf.function`, or rounds of steps with a parameter server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import tensorflow as tf

import gpudiag
from gpudiag.training.models.tensorflow.workload import KerasWorkload

#: Private method that Keras's optimizer calls at the beginning of an update to communicate gradients.
_COMMUNICATION = "_all_reduce_sum_gradients"


def make_step(
    workload: KerasWorkload, model: Any, optimizer: Any, strategy: Any, *, compiled: bool
) -> Callable[[Any], Any]:
    """Make a graph function that trains a batch on each device and returns the losses. See `step_on_each_device`."""
    on_one_device = step_on_each_device(workload, model, optimizer, strategy, compiled=compiled)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        return strategy.run(on_one_device, args=batch)

    function: Callable[[Any], Any] = step
    return function


def step_on_each_device(
    workload: KerasWorkload, model: Any, optimizer: Any, strategy: Any, *, compiled: bool
) -> Callable[[Any, Any], Any]:
    """Make the function that `strategy.run` calls on each device with inputs and targets, within a graph.

    The function opens ranges while the graph is built, so the ops of the graph are named after the ranges.

    Args:
        workload: prepares inputs and computes the loss.
        model: a model made in the strategy's scope.
        optimizer: an optimizer made and built in the strategy's scope.
        strategy: the `tf.distribute.Strategy`.
        compiled: let XLA compile forward and backward, but not communication and update, which depend on the strategy.
    """
    _name_communication(optimizer)
    # Gradients are summed over devices. Therefore each device divides its mean loss by the number of devices.
    share = 1.0 / strategy.num_replicas_in_sync
    scale = getattr(optimizer, "scale_loss", lambda loss: loss)  # only optimizers with loss scaling have `scale_loss`

    def gradients_of(inputs: Any, target: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape, gpudiag.range("forward"):
            loss = workload.loss(model(workload.prepare(inputs), training=True), target) * share
            scaled = scale(loss)
        with gpudiag.range("backward"):
            return tape.gradient(scaled, model.trainable_variables), loss

    if compiled:
        gradients_of = tf.function(gradients_of, jit_compile=True)

    def on_one_device(inputs: Any, target: Any) -> Any:
        gradients, loss = gradients_of(inputs, target)
        with gpudiag.range("optimizer"):
            optimizer.apply(gradients, model.trainable_variables)
        return loss

    return on_one_device


class Rounds:
    """Train with a parameter server. In each round a coordinator schedules as many batches as there are workers.

    Workers fetch their batches themselves. `pipeline` makes the `tf.data.Dataset` of a worker, and `workers` is the
    number of workers. See `step_on_each_device` for the other arguments.
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
        """Return an endless iterable for the training loop. The values are None, because workers fetch batches."""
        return repeat(None)

    def __call__(self, _: None) -> None:
        """Train one round, and wait for its end."""
        # The workers are other threads. Without this range, the calling thread would seem to wait for input.
        with gpudiag.range("workers"):
            for _worker in range(self._workers):
                self._coordinator.schedule(self._step, args=(self._batches,))
            self._coordinator.join()


def _name_communication(optimizer: Any) -> None:
    """Mark the gradient communication of Keras's optimizer as a range."""
    communicate = getattr(_inner(optimizer), _COMMUNICATION, None)
    if communicate is None:  # other versions of Keras may lack this method; then there is no range
        return

    def named(pairs: Any) -> Any:
        with gpudiag.range("exchange"):
            return communicate(pairs)

    setattr(_inner(optimizer), _COMMUNICATION, named)


@contextmanager
def communicating_by(optimizer: Any, communicate: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the gradient communication in steps whose graph is built within the block.

    `communicate` maps the optimizer's (gradient, variable) pairs to pairs with the communicated gradients.

    Raises:
        AttributeError: this version of Keras has no method for gradient communication.
    """
    usual = getattr(_inner(optimizer), _COMMUNICATION)
    setattr(_inner(optimizer), _COMMUNICATION, communicate)
    try:
        yield
    finally:
        setattr(_inner(optimizer), _COMMUNICATION, usual)


def _inner(optimizer: Any) -> Any:
    """Return the optimizer that communicates gradients. With loss scaling, this is the inner optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)
