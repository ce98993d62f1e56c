"""`densenet40-cifar`, `densenet100-cifar`: DenseNets of growth rate 12 (G. Huang et al., 2017), no bottlenecks.

1,019,722 and 6,979,642 parameters, as of the PyTorch workloads of these names.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.workloads.tensorflow.workload import ImageWorkload, channel_axis

GROWTH = 12
FIRST = 16
STAGES = 3


def normalised(x: Any) -> Any:
    """Normalisation and ReLU."""
    return layers.ReLU()(layers.BatchNormalization(axis=channel_axis(), momentum=0.9, epsilon=1e-5)(x))


def convolution(x: Any, width: int, side: int) -> Any:
    """A convolution without bias that keeps the shape."""
    return layers.Conv2D(width, side, padding="same", use_bias=False, kernel_initializer="he_normal")(x)


class DenseNet40Cifar(ImageWorkload):
    """Memory-bound: each layer reads all channels of its stage to make twelve more."""

    side = 32
    classes = 10
    #: Dense layers per stage; the network is 3 * layers + 4 deep.
    layers = 12

    def model(self) -> Any:
        """3 * layers + 4 layers."""
        inputs = layers.Input(self.image_shape())
        x = convolution(inputs, FIRST, 3)
        width = FIRST
        for stage in range(STAGES):
            for _ in range(self.layers):
                x = layers.Concatenate(axis=channel_axis())([x, convolution(normalised(x), GROWTH, 3)])
                width += GROWTH
            x = normalised(x)
            if stage < STAGES - 1:
                x = layers.AveragePooling2D(2)(convolution(x, width, 1))
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)


class DenseNet100Cifar(DenseNet40Cifar):
    """The same with 100 layers."""

    layers = 32
