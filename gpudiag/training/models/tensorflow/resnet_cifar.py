"""`resnet20-cifar` and its deeper kin: K. He et al., "Deep Residual Learning for Image Recognition", section 4.2.

Parameters: 269,722 with 20 layers, 464,154 with 32, 658,586 with 44, 853,018 with 56 and 1,727,962 with 110, as of the
PyTorch workloads of these names. tf_cnn_benchmarks logs 271,164 (466,492; 661,820; 857,148; 1,736,124) for the same
networks: it counts the running mean and variance of each normalised channel too, an eleventh class, and its step
counter.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.resnet50 import convolution
from gpudiag.training.models.tensorflow.workload import ImageWorkload, channel_axis

WIDTHS = (16, 32, 64)


def block(x: Any, width: int, *, narrows: bool) -> Any:
    """Two 3x3 convolutions and a shortcut without parameters: every other pixel, the new channels zero."""
    y = layers.ReLU()(convolution(x, width, 3, stride=2 if narrows else 1))
    y = convolution(y, width, 3)
    if narrows:
        x = layers.MaxPooling2D(1, strides=2)(x)
        zeros = layers.Rescaling(0.0)(x)  # half as many channels as are wanted are there already
        x = layers.Concatenate(axis=channel_axis())([x, zeros])
    return layers.ReLU()(layers.Add()([y, x]))


class ResNetCifarTraining(ImageWorkload):
    """Small kernels and little data: what it shows is mostly how fast the host can launch.

    Args:
        depth: 6n + 2 layers, those with weights.
        on_gpu: sized for GPUs; otherwise for CPU devices.
    """

    side = 32
    classes = 10

    def __init__(self, depth: int, *, on_gpu: bool) -> None:
        super().__init__(on_gpu=on_gpu)
        self._blocks = (depth - 2) // 6

    def model(self) -> Any:
        """A convolution, three stages of n blocks, and a fully connected layer."""
        inputs = layers.Input(self.image_shape())
        x = layers.ReLU()(convolution(inputs, WIDTHS[0], 3))
        for stage, width in enumerate(WIDTHS):
            for index in range(self._blocks):
                x = block(x, width, narrows=stage > 0 and index == 0)
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)
