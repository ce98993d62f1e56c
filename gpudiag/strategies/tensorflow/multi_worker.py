"""`multi-worker`: MultiWorkerMirroredStrategy, one process per device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    """The processes find each other through `TF_CONFIG`, which the launcher sets.

    Must be made before anything else of TensorFlow runs in the process.
    """
    implementation = tf.distribute.experimental.CommunicationImplementation
    on_gpu = devices[0].startswith("GPU:")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.NCCL if on_gpu else implementation.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
