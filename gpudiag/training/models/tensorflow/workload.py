"""What a workload is under TensorFlow: a Keras model, its samples, its loss, its optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Samples = tuple[NDArray[Any], NDArray[Any]]


class KerasWorkload(ABC):
    """One model to train, on samples made up once: a pool in memory from which batches are put together.

    Args:
        on_gpu: sized for GPUs; otherwise for CPU devices.
    """

    #: Distinct samples in the pool.
    pool = 512

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    @abstractmethod
    def model(self) -> Any:
        """A `keras.Model`, freshly initialised; made in the scope of a strategy."""

    @abstractmethod
    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """`count` inputs and their targets along the first dimension, as they would come from disk: channels last."""

    def prepare(self, inputs: Any) -> Any:
        """Make a batch of inputs, on its device, what the model takes: scaling of bytes, and the like."""
        return inputs

    def loss(self, output: Any, target: Any) -> Any:
        """The scalar to minimise; cross-entropy over classes unless a workload says otherwise."""
        per_sample = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=tf.cast(output, tf.float32))
        return tf.reduce_mean(per_sample)

    def optimizer(self) -> Any:
        """The optimizer; momentum SGD unless a workload says otherwise."""
        return keras.optimizers.SGD(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)


class ImageWorkload(KerasWorkload):
    """RGB images as bytes, and a class for each."""

    side = 224
    #: On a CPU; None for the same.
    cpu_side: int | None = None
    classes = 1000

    def image_shape(self) -> tuple[int, int, int]:
        """Of one image, as the model takes it."""
        return (3, self._side, self._side) if channels_first() else (self._side, self._side, 3)

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """uint8[count, side, side, 3] and int32[count]."""
        images = generator.integers(0, 256, (count, self._side, self._side, 3), dtype=np.uint8)
        return images, generator.integers(0, self.classes, count, dtype=np.int32)

    def prepare(self, inputs: Any) -> Any:
        """Bytes to floats of about zero mean and unit variance, in the model's layout."""
        scaled = (tf.cast(inputs, keras.mixed_precision.dtype_policy().compute_dtype) - 127.5) / 73.9
        return tf.transpose(scaled, (0, 3, 1, 2)) if channels_first() else scaled

    @property
    def _side(self) -> int:
        return self.side if self.on_gpu or self.cpu_side is None else self.cpu_side


def channels_first() -> bool:
    """Is the layout `nchw`? Keras keeps it for all models of the process."""
    return bool(keras.config.image_data_format() == "channels_first")


def channel_axis() -> int:
    """Where the channels are in a batch."""
    return 1 if channels_first() else -1
