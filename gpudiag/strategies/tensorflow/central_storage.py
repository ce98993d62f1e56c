"""`central-storage`: variables lie on the CPU and are read by every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    """One copy of each variable, on the CPU; gradients are summed there.

    TensorFlow keeps it experimental. Keras 3 assigns variables of some layers (the moving averages of
    BatchNormalization) in a way that such variables refuse; building such a model's step raises ValueError.
    """
    return tf.distribute.experimental.CentralStorageStrategy(
        compute_devices=list(devices), parameter_device="/device:CPU:0"
    )
