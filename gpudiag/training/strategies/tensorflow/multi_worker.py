"""`multi-worker`: MultiWorkerMirroredStrategy, one process per device."""

from __future__ import annotations

from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class MultiWorker(TensorflowStrategy):
    """The processes find each other through `TF_CONFIG`, which the launcher sets.

    Must be made before anything else of TensorFlow runs in the process.
    """

    name = "multi-worker"
    summary = "MultiWorkerMirroredStrategy, one process per device; NCCL between GPUs, gRPC between CPUs."
    listed = 70
    one_process = False

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        implementation = tf.distribute.experimental.CommunicationImplementation
        on_gpu = devices[0].startswith("GPU:")
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation.NCCL if on_gpu else implementation.RING
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


STRATEGY = MultiWorker
