"""`one-device`: MirroredStrategy that sums gradients on the first device."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class OneDevice(TensorflowStrategy):
    """Each gradient goes to the first device, is summed there, and goes back to the others."""

    name = "one-device"
    summary = "MirroredStrategy, one process; gradients are summed on the first device and copied back."
    listed = 40

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        reduction = tf.distribute.ReductionToOneDevice(reduce_to_device=devices[0])
        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=reduction)


STRATEGY = OneDevice
