"""`cnn-cifar`: the convolutional network of Keras's CIFAR-10 example, 1,250,858 parameters."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from gpudiag.training.models.tensorflow.workload import ImageWorkload


class CnnCifar(ImageWorkload):
    """So little to compute that its step is hardly more than launching it and feeding it."""

    side = 32
    classes = 10

    def model(self) -> Any:
        """Four convolutions, of which the second of each pair pads nothing, and two fully connected layers."""
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
        """RMSprop, as the example trains it."""
        return keras.optimizers.RMSprop(learning_rate=1e-4)
