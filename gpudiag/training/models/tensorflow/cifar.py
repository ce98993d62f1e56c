"""Define networks for CIFAR-10 in Keras, with the same numbers of parameters as the PyTorch workloads."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.imagenet import normalised_convolution
from gpudiag.training.models.tensorflow.workload import KerasCifarWorkload, channel_axis, channels_first

RESNET_WIDTHS = (16, 32, 64)
GROWTH = 12
DENSENET_FIRST = 16
DENSENET_STAGES = 3


def residual_block(x: Any, width: int, *, narrows: bool) -> Any:
    """Apply two 3x3 convolutions to `width` channels with a shortcut. With `narrows`, halve height and width."""
    y = layers.ReLU()(normalised_convolution(x, width, 3, stride=2 if narrows else 1))
    y = normalised_convolution(y, width, 3)
    if narrows:
        x = layers.MaxPooling2D(1, strides=2)(x)  # every other pixel
        zeros = layers.Rescaling(0.0)(x)  # as many channels as x, because `width` is twice that number
        x = layers.Concatenate(axis=channel_axis())([x, zeros])
    return layers.ReLU()(layers.Add()([y, x]))


class KerasResNetCifarTraining(KerasCifarWorkload):
    """ResNet with `depth` = 6n + 2 layers and small kernels, so that host launches dominate the step time."""

    def model(self) -> Any:
        """Build a convolution, three stages of n blocks, and a fully connected layer."""
        inputs = layers.Input(self.image_shape())
        x = layers.ReLU()(normalised_convolution(inputs, RESNET_WIDTHS[0], 3))
        for stage, width in enumerate(RESNET_WIDTHS):
            for index in range((self.depth - 2) // 6):
                x = residual_block(x, width, narrows=stage > 0 and index == 0)
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)


def normalised(x: Any) -> Any:
    """Apply batch normalisation and ReLU."""
    return layers.ReLU()(layers.BatchNormalization(axis=channel_axis(), momentum=0.9, epsilon=1e-5)(x))


def convolution(x: Any, width: int, side: int) -> Any:
    """Apply a convolution without bias that keeps the shape."""
    return layers.Conv2D(width, side, padding="same", use_bias=False, kernel_initializer="he_normal")(x)


class KerasDenseNetCifarTraining(KerasCifarWorkload):
    """DenseNet with `depth` = 3n + 4 layers, which is memory-bound: each layer reads all channels of its stage."""

    def model(self) -> Any:
        """Build a convolution, three stages of n dense layers with transitions, and a fully connected layer."""
        inputs = layers.Input(self.image_shape())
        x = convolution(inputs, DENSENET_FIRST, 3)
        width = DENSENET_FIRST
        for stage in range(DENSENET_STAGES):
            for _ in range((self.depth - 4) // 3):
                x = layers.Concatenate(axis=channel_axis())([x, convolution(normalised(x), GROWTH, 3)])
                width += GROWTH
            x = normalised(x)
            if stage < DENSENET_STAGES - 1:
                x = layers.AveragePooling2D(2)(convolution(x, width, 1))
        outputs = layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)


class KerasCnnCifar(KerasCifarWorkload):
    """Four convolutions with so little compute that launches and input take most of a step."""

    def model(self) -> Any:
        """Build two pairs of convolutions and two fully connected layers. The second of each pair has no padding."""
        return keras.Sequential(
            [
                layers.Input(self.image_shape()),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Dropout(0.25),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Dropout(0.25),
                layers.Flatten(),
                layers.Dense(512, activation="relu"),
                layers.Dropout(0.5),
                layers.Dense(self.classes),
            ]
        )

    def optimizer(self) -> Any:
        """Return RMSprop, as in Keras's example."""
        return keras.optimizers.RMSprop(learning_rate=1e-4)


class LocalResponseNormalisation(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Normalise over nine channels, in float32. TensorFlow supports this operation for channels-last inputs only."""

    def call(self, inputs: Any) -> Any:
        """Return the normalised inputs, with the same shape and type."""
        x = tf.transpose(inputs, (0, 2, 3, 1)) if channels_first() else inputs
        # Unlike PyTorch, TensorFlow does not divide `alpha` by the number of channels.
        x = tf.nn.local_response_normalization(
            tf.cast(x, tf.float32), depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75
        )
        x = tf.cast(x, inputs.dtype)
        return tf.transpose(x, (0, 3, 1, 2)) if channels_first() else x


class KerasAlexNetCifar(KerasCifarWorkload):
    """AlexNet for CIFAR-10 with few kernels and 7 MB of gradients. In tf_cnn_benchmarks this network scaled worst."""

    def model(self) -> Any:
        """Build 5 layers with weights. Feature maps shrink from 32x32 to 8x8 before the fully connected layers."""
        return keras.Sequential(
            [
                layers.Input(self.image_shape()),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, strides=2, padding="same"),
                LocalResponseNormalisation(),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                LocalResponseNormalisation(),
                layers.MaxPooling2D(3, strides=2, padding="same"),
                layers.Flatten(),
                layers.Dense(384, activation="relu"),
                layers.Dense(192, activation="relu"),
                layers.Dense(self.classes),
            ]
        )
