"""Define the interface of Keras workloads under TensorFlow: model, samples, loss and optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Samples = tuple[NDArray[Any], NDArray[Any]]


class KerasWorkload(ABC):
    """Training of a model on random samples, sized for GPUs (`on_gpu`) or for CPU devices."""

    #: Number of distinct samples in memory, from which batches are collated.
    pool = 512

    def __init__(self, *, on_gpu: bool, depth: int = 0) -> None:
        self.on_gpu = on_gpu
        #: Number of layers if the model exists in several depths, else 0.
        self.depth = depth

    @abstractmethod
    def model(self) -> Any:
        """Build and initialise the `keras.Model`. This method is called in the scope of a `tf.distribute.Strategy`."""

    @abstractmethod
    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make `count` inputs and targets, stacked along the first dimension, channels last, as stored on disk."""

    def prepare(self, inputs: Any) -> Any:
        """Convert a batch of inputs on the device to the model's input, for example by scaling bytes."""
        return inputs

    def loss(self, output: Any, target: Any) -> Any:
        """Return the scalar to minimise, by default cross-entropy over classes."""
        per_sample = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=tf.cast(output, tf.float32))
        return tf.reduce_mean(per_sample)

    def optimizer(self) -> Any:
        """Return the optimizer, by default momentum SGD."""
        return keras.optimizers.SGD(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)


class KerasImageWorkload(KerasWorkload):
    """Training on RGB images with one byte per value. Each image has a class."""

    #: Number of pixels along each side.
    side = 224
    #: Number of pixels along each side on a CPU; None for `side`.
    cpu_side: int | None = None
    classes = 1000

    def image_shape(self) -> tuple[int, int, int]:
        """Return the shape of one image in the model's layout."""
        return (3, self._side, self._side) if channels_first() else (self._side, self._side, 3)

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make images uint8[count, side, side, 3] and classes int32[count]."""
        images = generator.integers(0, 256, (count, self._side, self._side, 3), dtype=np.uint8)
        return images, generator.integers(0, self.classes, count, dtype=np.int32)

    def prepare(self, inputs: Any) -> Any:
        """Scale bytes to floats with a mean of about 0 and a variance of about 1, in the model's layout."""
        scaled = (tf.cast(inputs, keras.mixed_precision.dtype_policy().compute_dtype) - 127.5) / 73.9
        return tf.transpose(scaled, (0, 3, 1, 2)) if channels_first() else scaled

    @property
    def _side(self) -> int:
        return self.side if self.on_gpu or self.cpu_side is None else self.cpu_side


class KerasCifarWorkload(KerasImageWorkload):
    """Training on images of CIFAR-10's shape: 32x32 pixels in ten classes."""

    side = 32
    classes = 10


def channels_first() -> bool:
    """Return whether the memory format is `nchw`. Keras has one memory format for all models of the process."""
    return bool(keras.config.image_data_format() == "channels_first")


def channel_axis() -> int:
    """Return the axis of the channels in a batch."""
    return 1 if channels_first() else -1
