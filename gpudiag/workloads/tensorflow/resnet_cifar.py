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

from gpudiag.workloads.tensorflow.resnet50 import convolution
from gpudiag.workloads.tensorflow.workload import ImageWorkload, channel_axis

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


class ResNet20Cifar(ImageWorkload):
    """Small kernels and little data: what it shows is mostly how fast the host can launch."""

    side = 32
    classes = 10
    #: Blocks per stage; the network is 6 * blocks + 2 deep.
    blocks = 3

    def model(self) -> Any:
        """6 * blocks + 2 layers: a convolution, three stages of blocks, and a fully connected layer."""
        inputs = layers.Input(self.image_shape())
        x = layers.ReLU()(convolution(inputs, WIDTHS[0], 3))
        for stage, width in enumerate(WIDTHS):
            for index in range(self.blocks):
                x = block(x, width, narrows=stage > 0 and index == 0)
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)


class ResNet32Cifar(ResNet20Cifar):
    """The same with 32 layers."""

    blocks = 5


class ResNet44Cifar(ResNet20Cifar):
    """The same with 44 layers."""

    blocks = 7


class ResNet56Cifar(ResNet20Cifar):
    """The same with 56 layers."""

    blocks = 9


class ResNet110Cifar(ResNet20Cifar):
    """The same with 110 layers."""

    blocks = 18
