"""Define networks of fully connected layers in Keras: `mlp`, and `trivial`, which can replace a workload's model."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasImageWorkload, KerasWorkload, Samples

MLP_WIDTHS = (8000, 4000, 2000, 500, 300, 1)


class KerasMlp(KerasWorkload):
    """Regression with ReLU between the layers, and with so little compute for its size that communication dominates."""

    def model(self) -> Any:
        """Build the layers in order."""
        hidden = [layers.Dense(width, activation="relu") for width in MLP_WIDTHS[1:-1]]
        return keras.Sequential([layers.Input((MLP_WIDTHS[0],)), *hidden, layers.Dense(MLP_WIDTHS[-1])])

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make inputs float32[count, 8000] and targets float32[count, 1]."""
        inputs = generator.standard_normal((count, MLP_WIDTHS[0]), dtype="float32")
        return inputs, generator.standard_normal((count, 1), dtype="float32")

    def loss(self, output: Any, target: Any) -> Any:
        """Return the mean squared error."""
        return tf.reduce_mean(tf.square(tf.cast(output, tf.float32) - target))


def weighted_sum(shape: tuple[int, ...]) -> Any:
    """Build a model that maps float[n, *shape] to float[n, 1], a weighted sum of each sample's values."""
    return keras.Sequential([layers.Input(shape), layers.Reshape((math.prod(shape),)), layers.Dense(1)])


class KerasTrivial(KerasWorkload):
    """Loss and optimizer of the trivial model."""

    def loss(self, output: Any, target: Any) -> Any:  # noqa: ARG002  # targets are only copied
        """Return the mean of the output. Training with this loss never overflows."""
        return tf.reduce_mean(tf.cast(output, tf.float32))

    def optimizer(self) -> Any:
        """Return plain SGD."""
        return keras.optimizers.SGD(learning_rate=1e-6)


class KerasTrivialImages(KerasTrivial, KerasImageWorkload):
    """The trivial model on images of the usual size."""

    def model(self) -> Any:
        """Build a model with one weight per pixel and colour."""
        return weighted_sum(self.image_shape())


class KerasInputOnly(KerasTrivial):
    """The trivial model on the samples of another workload. The samples are copied and prepared as usual."""

    def __init__(self, workload: KerasWorkload) -> None:
        super().__init__(on_gpu=workload.on_gpu)
        self.pool = workload.pool
        self._workload = workload

    def model(self) -> Any:
        """Build a model with one weight per value of a prepared sample."""
        inputs, _ = self.samples(1, np.random.default_rng(0))
        return weighted_sum(tuple(int(size) for size in self.prepare(tf.constant(inputs)).shape[1:]))

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make the other workload's samples."""
        return self._workload.samples(count, generator)

    def prepare(self, inputs: Any) -> Any:
        """Prepare samples as the other workload does, and cast them to the compute type."""
        return tf.cast(self._workload.prepare(inputs), keras.mixed_precision.dtype_policy().compute_dtype)
