"""`one-device`: MirroredStrategy that sums gradients on the first device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    """Each gradient goes to the first device, is summed there, and goes back to the others."""
    reduction = tf.distribute.ReductionToOneDevice(reduce_to_device=devices[0])
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=reduction)
