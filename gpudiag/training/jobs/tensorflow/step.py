"""One training step under a strategy, as one `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import gpudiag
from gpudiag.training.models.tensorflow.workload import KerasWorkload

#: What Keras's optimizer calls first; there is no public way to it.
_COMMUNICATION = "_all_reduce_sum_gradients"


def make_step(
    workload: KerasWorkload, model: Any, optimizer: Any, strategy: Any, *, compiled: bool
) -> Callable[[Any], Any]:
    """A function that trains on one batch per device and gives each device's loss, on the device: one graph.

    Arguments are those of `step_on_each_device`.
    """
    on_one_device = step_on_each_device(workload, model, optimizer, strategy, compiled=compiled)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        return strategy.run(on_one_device, args=batch)

    made: Callable[[Any], Any] = step
    return made


def step_on_each_device(
    workload: KerasWorkload, model: Any, optimizer: Any, strategy: Any, *, compiled: bool
) -> Callable[[Any, Any], Any]:
    """What each device does with its inputs and targets, for `strategy.run` within a graph.

    The ranges below are opened while the graph is built, and so name the ops in it; see
    `gpudiag.training.session.ranges`.

    Args:
        workload: prepares inputs and makes the loss.
        model: in the strategy's scope.
        optimizer: the same, built.
        strategy: the `tf.distribute.Strategy`.
        compiled: forward and backward are compiled by XLA. The exchange and the update are not, so that every strategy
            can do it its own way.
    """
    _name_communication(optimizer)
    # Gradients are summed over devices: each device's share of the mean over all samples.
    share = 1.0 / strategy.num_replicas_in_sync
    scale = getattr(optimizer, "scale_loss", lambda loss: loss)

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


def _name_communication(optimizer: Any) -> None:
    """Put the exchange of gradients, which Keras's optimizer does first when it is applied, into a range of its own."""
    exchange = getattr(_inner(optimizer), _COMMUNICATION, None)
    if exchange is None:  # another version of Keras: the range is missing, and nothing else
        return

    def named(pairs: Any) -> Any:
        with gpudiag.range("exchange"):
            return exchange(pairs)

    setattr(_inner(optimizer), _COMMUNICATION, named)


@contextmanager
def exchanged_by(optimizer: Any, exchange: Callable[[Any], Any]) -> Iterator[None]:
    """Steps whose graph is built within exchange pairs of gradient and variable by this function instead.

    Raises:
        AttributeError: this version of Keras does it in another way.
    """
    usual = getattr(_inner(optimizer), _COMMUNICATION)
    setattr(_inner(optimizer), _COMMUNICATION, exchange)
    try:
        yield
    finally:
        setattr(_inner(optimizer), _COMMUNICATION, usual)


def _inner(optimizer: Any) -> Any:
    """The optimizer that exchanges: the one within, where losses are scaled."""
    return getattr(optimizer, "inner_optimizer", optimizer)
