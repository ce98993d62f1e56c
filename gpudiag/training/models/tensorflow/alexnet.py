"""`alexnet`: the one-column AlexNet of A. Krizhevsky, "One weird trick for parallelizing CNNs" (2014): 61,100,840."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload

HIDDEN = 4096


class AlexNet(ImageWorkload):
    """Little compute for 244 MB of gradients in fp32: the worst case of the classical networks."""

    def model(self) -> Any:
        """8 layers with weights."""
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
