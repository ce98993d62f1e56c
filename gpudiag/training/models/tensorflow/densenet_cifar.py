"""`densenet40-cifar`, `densenet100-cifar`: DenseNets of growth rate 12 (G. Huang et al., 2017), no bottlenecks.

1,019,722 and 6,979,642 parameters, as of the PyTorch workloads of these names.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload, channel_axis

GROWTH = 12
FIRST = 16
STAGES = 3


def normalised(x: Any) -> Any:
    """Normalisation and ReLU."""
    return layers.ReLU()(layers.BatchNormalization(axis=channel_axis(), momentum=0.9, epsilon=1e-5)(x))


def convolution(x: Any, width: int, side: int) -> Any:
    """A convolution without bias that keeps the shape."""
    return layers.Conv2D(width, side, padding="same", use_bias=False, kernel_initializer="he_normal")(x)


class DenseNetCifarTraining(ImageWorkload):
    """Memory-bound: each layer reads all channels of its stage to make twelve more.

    Args:
        depth: 3n + 4 layers, those with weights.
        on_gpu: sized for GPUs; otherwise for CPU devices.
    """

    side = 32
    classes = 10

    def __init__(self, depth: int, *, on_gpu: bool) -> None:
        super().__init__(on_gpu=on_gpu)
        self._layers = (depth - 4) // 3

    def model(self) -> Any:
        """A convolution, three stages of n dense layers with transitions between them, and a fully connected layer."""
        inputs = layers.Input(self.image_shape())
        x = convolution(inputs, FIRST, 3)
        width = FIRST
        for stage in range(STAGES):
            for _ in range(self._layers):
                x = layers.Concatenate(axis=channel_axis())([x, convolution(normalised(x), GROWTH, 3)])
                width += GROWTH
            x = normalised(x)
            if stage < STAGES - 1:
                x = layers.AveragePooling2D(2)(convolution(x, width, 1))
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)
