"""`nccl`: MirroredStrategy with NCCL all-reduce between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    """Gradients are packed into one buffer and all-reduced over the GPUs' own links, where there are such."""
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=tf.distribute.NcclAllReduce())
