"""Define networks for ImageNet in Keras: `alexnet`, `vgg16`, `resnet50` and `inception3`.

Except `inception3`, the networks have as many parameters as the PyTorch workloads. For `inception3` Keras counts
23,851,784 parameters. Of these, 23,817,352 are trained, and the others are running means and variances. The PyTorch
model additionally trains 17,216 scales. ResNet-50 v1.5 is built here, because `keras.applications.ResNet50` is v1 with
biases in its convolutions (25,583,592 trained parameters).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasImageWorkload, channel_axis

HIDDEN = 4096
#: (number of blocks, channels of their 3x3 convolutions) of each ResNet stage. A block's output has EXPANSION times as
#: many channels.
RESNET_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class KerasAlexNet(KerasImageWorkload):
    """AlexNet, with the least compute per byte of gradients (244 MB in fp32) of the classical networks."""

    def model(self) -> Any:
        """Build the network with 8 layers that have weights."""
        return keras.Sequential(
            [
                layers.Input(self.image_shape()),
                layers.ZeroPadding2D(2),
                layers.Conv2D(64, 11, strides=4, activation="relu"),
                layers.MaxPooling2D(3, strides=2),
                layers.Conv2D(192, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, strides=2),
                layers.Conv2D(384, 3, padding="same", activation="relu"),
                layers.Conv2D(256, 3, padding="same", activation="relu"),
                layers.Conv2D(256, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(3, strides=2),
                layers.Flatten(),
                layers.Dropout(0.5),
                layers.Dense(HIDDEN, activation="relu"),
                layers.Dropout(0.5),
                layers.Dense(HIDDEN, activation="relu"),
                layers.Dense(self.classes),
            ]
        )


class KerasVgg16(KerasImageWorkload):
    """VGG-16, which needs much bandwidth, because it has many bytes of gradients for its step time."""

    #: Pixels along each side on a CPU. The last feature map is enlarged to 7x7, so the layers are the same.
    cpu_side = 64

    def model(self) -> Any:
        """Build the network with 16 layers that have weights."""
        if self.on_gpu:
            return keras.applications.VGG16(weights=None, classifier_activation=None, input_shape=self.image_shape())
        inputs = layers.Input(self.image_shape())
        features = keras.applications.VGG16(weights=None, include_top=False, input_shape=self.image_shape())(inputs)
        x = layers.Flatten()(layers.Resizing(7, 7)(features))
        x = layers.Dense(HIDDEN, activation="relu")(x)
        x = layers.Dense(HIDDEN, activation="relu")(x)
        return keras.Model(inputs, layers.Dense(self.classes)(x))


def normalised_convolution(x: Any, width: int, side: int, *, stride: int = 1) -> Any:
    """Apply a `side` x `side` convolution to `width` channels without bias, and batch normalisation."""
    x = layers.Conv2D(width, side, strides=stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return layers.BatchNormalization(axis=channel_axis(), momentum=0.9, epsilon=1e-5)(x)


def bottleneck(x: Any, width: int, *, stride: int, projected: bool) -> Any:
    """Apply 1x1, 3x3 and 1x1 convolutions with a shortcut. If `projected`, the shortcut is a 1x1 convolution.

    The result has `width` * EXPANSION channels. The 3x3 convolution has the stride.
    """
    y = layers.ReLU()(normalised_convolution(x, width, 1))
    y = layers.ReLU()(normalised_convolution(y, width, 3, stride=stride))
    y = normalised_convolution(y, width * EXPANSION, 1)
    shortcut = normalised_convolution(x, width * EXPANSION, 1, stride=stride) if projected else x
    return layers.ReLU()(layers.Add()([y, shortcut]))


class KerasResNet50(KerasImageWorkload):
    """ResNet-50 v1.5, with so much compute per byte of gradients that a healthy machine hides the communication."""

    def model(self) -> Any:
        """Build the stem, four stages of bottlenecks, and the classifier."""
        inputs = layers.Input(self.image_shape())
        x = layers.ReLU()(normalised_convolution(inputs, 64, 7, stride=2))
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        for stage, (count, width) in enumerate(RESNET_STAGES):
            for index in range(count):
                x = bottleneck(x, width, stride=2 if stage > 0 and index == 0 else 1, projected=index == 0)
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)


class KerasInception3(KerasImageWorkload):
    """Inception-v3, which has many kernels of all shapes, and much compute per byte of gradients."""

    side = 299

    def model(self) -> Any:
        """Build the network, 48 layers deep."""
        return keras.applications.InceptionV3(weights=None, classifier_activation=None, input_shape=self.image_shape())
