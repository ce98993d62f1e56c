"""`central-storage`: variables lie on the CPU and are read by every device."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class CentralStorage(TensorflowStrategy):
    """One copy of each variable, on the CPU; gradients are summed there.

    TensorFlow keeps it experimental. Keras 3 assigns variables of some layers (the moving averages of
    BatchNormalization) in a way that such variables refuse; building such a model's step raises ValueError.
    """

    name = "central-storage"
    summary = "CentralStorageStrategy: variables lie on the CPU, every device reads them there."
    listed = 50
    through_host = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=list(devices), parameter_device="/device:CPU:0"
        )


STRATEGY = CentralStorage
