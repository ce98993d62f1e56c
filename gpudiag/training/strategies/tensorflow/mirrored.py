"""Implement strategies of `tf.distribute` with mirrored variables: five in one process, and `multi-worker`."""

from __future__ import annotations

from typing import Any

from gpudiag.model.job import INDEPENDENT
from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy


class Mirrored(TensorflowStrategy):
    """Use `MirroredStrategy` in one process. Subclasses choose how gradients are reduced across devices."""

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `MirroredStrategy` for this process's devices."""
        import tensorflow as tf

        return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=cls.cross_device_ops(devices))

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.CrossDeviceOps` that reduces gradients."""
        raise NotImplementedError  # an abstract method would have no effect, because the class is never instantiated


class NcclMirrored(Mirrored):
    """Copy all gradients into one buffer, and all-reduce the buffer with NCCL."""

    name = "nccl"
    summary = "MirroredStrategy, one process; all gradients in one NCCL all-reduce."
    list_order = 10
    default_on = "cuda"
    needs_gpu = True

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make the NCCL all-reduce."""
        import tensorflow as tf

        return tf.distribute.NcclAllReduce()


class HierarchicalCopy(Mirrored):
    """Sum gradients in a tree of devices, and copy the sums back. The tree was designed for the DGX-1."""

    name = "hierarchical-copy"
    summary = "MirroredStrategy, one process; gradients are copied and summed in a tree of devices."
    list_order = 20

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make the reduction in a tree of devices."""
        import tensorflow as tf

        return tf.distribute.HierarchicalCopyAllReduce()


class CpuReduceMirrored(Mirrored):
    """Copy each gradient to host memory, sum it there, and copy the sum back to every device."""

    name = "cpu-reduce"
    summary = "MirroredStrategy, one process; gradients are summed on the CPU and copied back."
    list_order = 30
    default_on = "cpu"
    through_host = True

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make the reduction on the CPU."""
        import tensorflow as tf

        return tf.distribute.ReductionToOneDevice(reduce_to_device="/cpu:0")


class OneDevice(Mirrored):
    """Copy each gradient to the first device, sum it there, and copy the sum back to the other devices."""

    name = "one-device"
    summary = "MirroredStrategy, one process; gradients are summed on the first device and copied back."
    list_order = 40

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make the reduction on the first device."""
        import tensorflow as tf

        return tf.distribute.ReductionToOneDevice(reduce_to_device=devices[0])


class IndependentMirrored(Mirrored):
    """Use `MirroredStrategy` without communication, to measure the cost of communication in other strategies."""

    name = INDEPENDENT
    summary = "No communication: each device trains its own model, in one process; a lower bound for the others."
    list_order = 80
    communicates = False

    @classmethod
    def cross_device_ops(cls, devices: tuple[str, ...]) -> Any:
        """Make operations that reduce nothing."""
        import tensorflow as tf

        class NoCommunication(tf.distribute.CrossDeviceOps):  # type: ignore[misc]  # TensorFlow is untyped
            """Leave gradients, losses and metrics as they are on each device, so that variables diverge."""

            def reduce_implementation(self, _operation: Any, per_replica_value: Any, *_: Any) -> Any:
                """Return the values of all devices unchanged."""
                return per_replica_value

            def batch_reduce_implementation(self, _operation: Any, value_destination_pairs: Any, *_: Any) -> list[Any]:
                """Return the values of all devices unchanged, for each pair."""
                return [value for value, _ in value_destination_pairs]

            def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
                """Broadcast the initial values of variables."""
                return tf.distribute.ReductionToOneDevice().broadcast_implementation(tensor, destinations)

        return NoCommunication()


class MultiWorker(TensorflowStrategy):
    """Use `MultiWorkerMirroredStrategy`. The launcher sets `TF_CONFIG` with the addresses of all processes.

    `make` must be called before the process runs any TensorFlow op.
    """

    name = "multi-worker"
    summary = "MultiWorkerMirroredStrategy, one process per device; NCCL between GPUs, gRPC between CPUs."
    list_order = 70
    one_process = False

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the strategy, with NCCL on GPUs and gRPC rings on CPUs."""
        import tensorflow as tf

        implementation = tf.distribute.experimental.CommunicationImplementation
        on_gpu = devices[0].startswith("GPU:")
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation.NCCL if on_gpu else implementation.RING
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
