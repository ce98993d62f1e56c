"""Define `unet3d`: a 3D U-Net that finds boundaries in electron microscopy, with 93,659,931 parameters.

The network equals that of the PyTorch workload, from the neurofire library for the CREMI data sets. Its levels have 12,
60, 300 and 1500 channels, and two 3x3x3 convolutions with ELU each. Pooling is by 1x3x3. Upsampling repeats the nearest
voxel. A sigmoid follows each of the three outputs.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasWorkload, Samples, channel_axis, channels_first

#: Size of a training volume in voxels along z, y, x.
SHAPE = (40, 432, 432)
#: Size of a training volume on a CPU. The model is the same as on GPUs.
CPU_SHAPE = (4, 54, 54)
FEATURES = (12, 60, 300, 1500)
OUTPUTS = 3
#: Voxels along z, y and x that are pooled into one.
POOLING = (1, 3, 3)


def two_convolutions(x: Any, width: int) -> Any:
    """Apply two 3x3x3 convolutions that keep the shape, each with ELU."""
    for _ in range(2):
        x = layers.Conv3D(width, 3, padding="same", activation="elu")(x)
    return x


class KerasUNet3dTraining(KerasWorkload):
    """3D U-Net with few large convolutions on one volume per step. It needs much memory."""

    #: Number of distinct samples in memory, which is small, because a volume with its target has 30 MB.
    pool = 8

    def model(self) -> Any:
        """Build a U-Net with skip connections, which pools on the way down and repeats voxels on the way up."""
        inputs = layers.Input((1, *self._shape) if channels_first() else (*self._shape, 1))
        x = inputs
        skips: list[Any] = []
        for level, width in enumerate(FEATURES):
            x = two_convolutions(x if level == 0 else layers.MaxPooling3D(POOLING)(x), width)
            skips.append(x)
        skips.pop()  # the deepest level has no skip connection
        for width in reversed(FEATURES[:-1]):
            x = layers.Concatenate(axis=channel_axis())([layers.UpSampling3D(POOLING)(x), skips.pop()])
            x = two_convolutions(x, width)
        return keras.Model(inputs, layers.Conv3D(OUTPUTS, 3, padding="same", activation="sigmoid")(x))

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make grey values, uint8[count, z, y, x, 1], and boundaries, uint8[count, z, y, x, 3]."""
        volumes = generator.integers(0, 256, (count, *self._shape, 1), dtype=np.uint8)
        return volumes, generator.integers(0, 2, (count, *self._shape, OUTPUTS), dtype=np.uint8)

    def prepare(self, inputs: Any) -> Any:
        """Scale grey values to floats from 0 to 1, in the model's layout."""
        scaled = tf.cast(inputs, keras.mixed_precision.dtype_policy().compute_dtype) / 255
        return tf.transpose(scaled, (0, 4, 1, 2, 3)) if channels_first() else scaled

    def loss(self, output: Any, target: Any) -> Any:
        """Return the sum over channels of the negative Sørensen-Dice coefficient (-1: equal, 0: disjoint or empty)."""
        p = tf.cast(output, tf.float32)  # the target has its channels last, as `samples` makes it
        p = tf.transpose(p, (0, 2, 3, 4, 1)) if channels_first() else p
        t = tf.cast(target, tf.float32)
        voxels = (0, 1, 2, 3)
        both = tf.reduce_sum(p * p, voxels) + tf.reduce_sum(t * t, voxels)
        return tf.reduce_sum(-2 * tf.reduce_sum(p * t, voxels) / tf.maximum(both, 1e-6))

    def optimizer(self) -> Any:
        """Return Adam."""
        return keras.optimizers.Adam(learning_rate=1e-4)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return SHAPE if self.on_gpu else CPU_SHAPE
