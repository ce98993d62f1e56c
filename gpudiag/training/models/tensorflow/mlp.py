"""`mlp`: 8000-4000-2000-500-300-1, all fully connected: 41,157,101 parameters, 165 MB of gradients in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasWorkload

if TYPE_CHECKING:
    import numpy as np

    from gpudiag.training.models.tensorflow.workload import Samples

WIDTHS = (8000, 4000, 2000, 500, 300, 1)


class Mlp(KerasWorkload):
    """A regression with ReLU between the layers: cheap to compute for its size, so that the exchange dominates."""

    def model(self) -> Any:
        """The layers in order."""
        hidden = [layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
        return keras.Sequential([layers.Input((WIDTHS[0],)), *hidden, layers.Dense(WIDTHS[-1])])

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """float32[count, 8000] and float32[count, 1]."""
        inputs = generator.standard_normal((count, WIDTHS[0]), dtype="float32")
        return inputs, generator.standard_normal((count, 1), dtype="float32")

    def loss(self, output: Any, target: Any) -> Any:
        """Mean squared error."""
        return tf.reduce_mean(tf.square(tf.cast(output, tf.float32) - target))
