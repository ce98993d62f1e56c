"""`hierarchical-copy`: MirroredStrategy with copies along a tree of devices."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class HierarchicalCopy(TensorflowStrategy):
    """Gradients are copied to neighbours and summed, level by level, then back: laid out for the DGX-1's links."""

    name = "hierarchical-copy"
    summary = "MirroredStrategy, one process; gradients are copied and summed in a tree of devices."
    listed = 20

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())


STRATEGY = HierarchicalCopy
