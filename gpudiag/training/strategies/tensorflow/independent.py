"""`independent`: no exchange at all, in one process."""

from __future__ import annotations

from typing import Any

from gpudiag.model.job import INDEPENDENT
from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class IndependentMirrored(TensorflowStrategy):
    """MirroredStrategy without the exchange: all else, the one process included, is as in the strategies to compare."""

    name = INDEPENDENT
    summary = "No exchange: each device trains its own model, in one process; the floor for the others."
    listed = 80
    communications = False

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        class NoCommunication(tf.distribute.CrossDeviceOps):  # type: ignore[misc]  # TensorFlow is untyped
            """Each device keeps its own gradients, so that the copies of a variable go ways of their own.

            What else the strategy would bring together (losses that are reduced, metrics) stays apart as well.
            """

            def reduce_implementation(self, _operation: Any, per_replica_value: Any, *_: Any) -> Any:
                """Every device's own value."""
                return per_replica_value

            def batch_reduce_implementation(self, _operation: Any, value_destination_pairs: Any, *_: Any) -> list[Any]:
                """Every device's own values."""
                return [value for value, _ in value_destination_pairs]

            def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
                """As any other strategy: first values of variables are the same everywhere."""
                return tf.distribute.ReductionToOneDevice().broadcast_implementation(tensor, destinations)

        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=NoCommunication())


STRATEGY = IndependentMirrored
