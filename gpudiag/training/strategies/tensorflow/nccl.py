"""`nccl`: MirroredStrategy with NCCL all-reduce between GPUs."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class NcclMirrored(TensorflowStrategy):
    """Gradients are packed into one buffer and all-reduced over the GPUs' own links, where there are such."""

    name = "nccl"
    summary = "MirroredStrategy, one process; all gradients in one NCCL all-reduce."
    listed = 10
    default_on = "cuda"
    needs_gpu = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=tf.distribute.NcclAllReduce())


STRATEGY = NcclMirrored
