"""`trivial`: one weight per input value, 150,529 parameters on 224x224 images; and the same in any workload's place."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload, KerasWorkload, Samples


def weighted_sum(shape: tuple[int, ...]) -> Any:
    """Each sample's values, weighted and summed: float[n, *shape] to float[n, 1]."""
    return keras.Sequential([layers.Input(shape), layers.Reshape((math.prod(shape),)), layers.Dense(1)])


class Trivial(KerasWorkload):
    """What both uses of the trivial model share."""

    def loss(self, output: Any, target: Any) -> Any:  # noqa: ARG002  # targets are copied, and that is all
        """Mean of the output: its gradient is as good as any, and no number of steps makes it overflow."""
        return tf.reduce_mean(tf.cast(output, tf.float32))

    def optimizer(self) -> Any:
        """Plain SGD."""
        return keras.optimizers.SGD(learning_rate=1e-6)


class TrivialImages(Trivial, ImageWorkload):
    """Images of the usual size, and hardly any computing: what remains of a step is its input."""

    def model(self) -> Any:
        """One weight per pixel and colour."""
        return weighted_sum(self.image_shape())


class InputOnly(Trivial):
    """Another workload's samples, copied and prepared as ever, and the trivial model in place of its own.

    Args:
        whole: the workload whose input is to be tested.
    """

    def __init__(self, whole: KerasWorkload) -> None:
        super().__init__(on_gpu=whole.on_gpu)
        self.pool = whole.pool
        self._whole = whole

    def model(self) -> Any:
        """One weight per value of a sample."""
        inputs, _ = self.samples(1, np.random.default_rng(0))
        return weighted_sum(tuple(int(size) for size in self.prepare(tf.constant(inputs)).shape[1:]))

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """The other workload's."""
        return self._whole.samples(count, generator)

    def prepare(self, inputs: Any) -> Any:
        """The other workload's, as numbers that can be weighted."""
        return tf.cast(self._whole.prepare(inputs), keras.mixed_precision.dtype_policy().compute_dtype)
