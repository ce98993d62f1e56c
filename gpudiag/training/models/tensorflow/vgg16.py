"""`vgg16`: Keras's own VGG-16, 138,357,544 parameters, 553 MB of gradients in fp32."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload


class Vgg16(ImageWorkload):
    """Bandwidth-heavy: many bytes to exchange for the time that its step takes.

    On a CPU the same layers see images of 64x64, whose last feature map is enlarged to the same 7x7.
    """

    cpu_side = 64

    def model(self) -> Any:
        """16 layers with weights."""
        if self.on_gpu:
            return keras.applications.VGG16(weights=None, classifier_activation=None, input_shape=self.image_shape())
        inputs = layers.Input(self.image_shape())
        features = keras.applications.VGG16(weights=None, include_top=False, input_shape=self.image_shape())(inputs)
        x = layers.Flatten()(layers.Resizing(7, 7)(features))
        x = layers.Dense(4096, activation="relu")(x)
        x = layers.Dense(4096, activation="relu")(x)
        return keras.Model(inputs, layers.Dense(self.classes)(x))
