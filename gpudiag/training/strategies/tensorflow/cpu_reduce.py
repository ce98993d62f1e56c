"""`cpu-reduce`: MirroredStrategy that sums gradients on the CPU."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class CpuReduceMirrored(TensorflowStrategy):
    """Each gradient goes to host memory, is summed there, and goes back to every device."""

    name = "cpu-reduce"
    summary = "MirroredStrategy, one process; gradients are summed on the CPU and copied back."
    listed = 30
    default_on = "cpu"
    through_host = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        reduction = tf.distribute.ReductionToOneDevice(reduce_to_device="/cpu:0")
        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=reduction)


STRATEGY = CpuReduceMirrored
