"""`alexnet-cifar`: tf_cnn_benchmarks' AlexNet for CIFAR-10, 1,756,426 parameters."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload, channels_first


class LocalResponseNormalisation(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Over nine channels. TensorFlow knows it for channels last only; it is computed in float32."""

    def call(self, inputs: Any) -> Any:
        """The same shape and type."""
        x = tf.transpose(inputs, (0, 2, 3, 1)) if channels_first() else inputs
        x = tf.nn.local_response_normalization(
            tf.cast(x, tf.float32), depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75
        )
        x = tf.cast(x, inputs.dtype)
        return tf.transpose(x, (0, 3, 1, 2)) if channels_first() else x


class AlexNetCifar(ImageWorkload):
    """7 MB of gradients for few kernels: of tf_cnn_benchmarks' networks for CIFAR-10 the one that scaled worst."""

    side = 32
    classes = 10

    def model(self) -> Any:
        """5 layers with weights; images of 32 x 32 become 8 x 8 before the fully connected ones."""
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
