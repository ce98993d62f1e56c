"""`cpu-reduce`: MirroredStrategy that sums gradients on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    """Each gradient goes to host memory, is summed there, and goes back to every device."""
    reduction = tf.distribute.ReductionToOneDevice(reduce_to_device="/cpu:0")
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=reduction)
