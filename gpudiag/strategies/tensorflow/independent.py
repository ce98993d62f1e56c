"""`independent`: no exchange at all, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoExchange(tf.distribute.CrossDeviceOps):  # type: ignore[misc]  # TensorFlow is untyped
    """Each device keeps its own gradients, so that the copies of a variable go ways of their own.

    What else the strategy would bring together (losses that are reduced, metrics) stays apart as well.
    """

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:  # noqa: ARG002
        """Every device's own value."""
        return per_replica_value

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:  # noqa: ARG002
        """Every device's own values."""
        return [value for value, _ in value_destination_pairs]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """As any other strategy: first values of variables are the same everywhere."""
        return tf.distribute.ReductionToOneDevice().broadcast_implementation(tensor, destinations)


def make(devices: Sequence[str]) -> Any:
    """MirroredStrategy without the exchange: all else, the one process included, is as in the strategies to compare."""
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=NoExchange())
