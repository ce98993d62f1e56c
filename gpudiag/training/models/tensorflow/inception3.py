"""`inception3`: Keras's own Inception-v3: 23,851,784 parameters in its count, 23,817,352 of them trained.

The others are running means and variances. The PyTorch workload trains 17,216 more: its normalisations have scales.
"""

from __future__ import annotations

from typing import Any

import keras

from gpudiag.training.models.tensorflow.workload import ImageWorkload


class Inception3(ImageWorkload):
    """Many kernels of all shapes, and much compute per byte exchanged."""

    side = 299

    def model(self) -> Any:
        """48 layers deep."""
        return keras.applications.InceptionV3(weights=None, classifier_activation=None, input_shape=self.image_shape())
