"""`unet3d`: a 3D U-Net for boundaries in electron microscopy, 93,659,931 parameters, 375 MB of gradients in fp32.

The network of the neurofire library on the CREMI data sets, as of the PyTorch workload: 12, 60, 300 and 1500 channels,
two 3x3x3 convolutions with ELU on each level, pooling by 1x3x3, nearest-neighbour upsampling, a sigmoid over three
outputs.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasWorkload, Samples, channel_axis, channels_first

#: Training volume, z, y, x in voxels.
SHAPE = (40, 432, 432)
#: A CPU device trains the same model on a smaller volume.
CPU_SHAPE = (4, 54, 54)
FEATURES = (12, 60, 300, 1500)
OUTPUTS = 3
#: Voxels along z, y and x that pooling makes one.
POOLING = (1, 3, 3)


def two_convolutions(x: Any, width: int) -> Any:
    """Two 3x3x3 convolutions that keep the shape, each with ELU."""
    for _ in range(2):
        x = layers.Conv3D(width, 3, padding="same", activation="elu")(x)
    return x


class UNet3dTraining(KerasWorkload):
    """Few large convolutions on one volume per step, much memory, and gradients of a middling size."""

    #: Volumes are large: 30 MB each with their targets.
    pool = 8

    def model(self) -> Any:
        """Down by pooling, up by repeating voxels, with the same level's way down beside each way up."""
        inputs = layers.Input((1, *self._shape) if channels_first() else (*self._shape, 1))
        x = inputs
        passed: list[Any] = []
        for level, width in enumerate(FEATURES):
            x = two_convolutions(x if level == 0 else layers.MaxPooling3D(POOLING)(x), width)
            passed.append(x)
        passed.pop()
        for width in reversed(FEATURES[:-1]):
            x = layers.Concatenate(axis=channel_axis())([layers.UpSampling3D(POOLING)(x), passed.pop()])
            x = two_convolutions(x, width)
        return keras.Model(inputs, layers.Conv3D(OUTPUTS, 3, padding="same", activation="sigmoid")(x))

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """uint8[count, z, y, x, 1], grey values, and uint8[count, z, y, x, 3], 1 where there is a boundary."""
        volumes = generator.integers(0, 256, (count, *self._shape, 1), dtype=np.uint8)
        return volumes, generator.integers(0, 2, (count, *self._shape, OUTPUTS), dtype=np.uint8)

    def prepare(self, inputs: Any) -> Any:
        """Grey values to floats from 0 to 1, in the model's layout."""
        scaled = tf.cast(inputs, keras.mixed_precision.dtype_policy().compute_dtype) / 255
        return tf.transpose(scaled, (0, 4, 1, 2, 3)) if channels_first() else scaled

    def loss(self, output: Any, target: Any) -> Any:
        """Sørensen's and Dice's coefficient of each channel, from -1 (equal) to 0 (disjoint), summed over channels."""
        p = tf.cast(output, tf.float32)
        p = tf.transpose(p, (0, 2, 3, 4, 1)) if channels_first() else p
        t = tf.cast(target, tf.float32)
        voxels = (0, 1, 2, 3)
        both = tf.reduce_sum(p * p, voxels) + tf.reduce_sum(t * t, voxels)
        return tf.reduce_sum(-2 * tf.reduce_sum(p * t, voxels) / tf.maximum(both, 1e-6))

    def optimizer(self) -> Any:
        """Adam."""
        return keras.optimizers.Adam(learning_rate=1e-4)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return SHAPE if self.on_gpu else CPU_SHAPE
