"""`resnet50`: ResNet-50 v1.5 (stride in the 3x3 convolution), 25,557,032 parameters, as every other tool means it.

`keras.applications.ResNet50` is v1, and its convolutions have biases: 25,583,592 trained parameters.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload, channel_axis

#: Per stage: blocks, and channels of the 3x3 convolution; four times as many leave the block.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


def convolution(x: Any, width: int, side: int, *, stride: int = 1) -> Any:
    """A convolution without bias and its normalisation."""
    x = layers.Conv2D(width, side, strides=stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return layers.BatchNormalization(axis=channel_axis(), momentum=0.9, epsilon=1e-5)(x)


def bottleneck(x: Any, width: int, *, stride: int, projected: bool) -> Any:
    """1x1, 3x3, 1x1 convolutions, and a projection on the shortcut where the shape changes."""
    y = layers.ReLU()(convolution(x, width, 1))
    y = layers.ReLU()(convolution(y, width, 3, stride=stride))
    y = convolution(y, width * EXPANSION, 1)
    shortcut = convolution(x, width * EXPANSION, 1, stride=stride) if projected else x
    return layers.ReLU()(layers.Add()([y, shortcut]))


class ResNet50(ImageWorkload):
    """Enough compute per byte exchanged that a healthy machine hides the exchange."""

    def model(self) -> Any:
        """The stem, four stages of bottlenecks, and the classifier."""
        inputs = layers.Input(self.image_shape())
        x = layers.ReLU()(convolution(inputs, 64, 7, stride=2))
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        for stage, (count, width) in enumerate(STAGES):
            for index in range(count):
                x = bottleneck(x, width, stride=2 if stage > 0 and index == 0 else 1, projected=index == 0)
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)
