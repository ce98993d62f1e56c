"""Implement the runtime of a session for TensorFlow: devices, step times, software versions."""

from __future__ import annotations

import itertools
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import ModelRecord
from gpudiag.training.frameworks.tensorflow.cluster import cluster_store, position_in_cluster
from gpudiag.training.frameworks.tensorflow.profiler import TensorflowWindow
from gpudiag.training.session import record
from gpudiag.training.session.clock import StepClock, UnprofiledSeries, host_clock
from gpudiag.training.session.position import ClusterPosition, cpu_name, driver_version

if TYPE_CHECKING:
    from gpudiag.training.session.step_counts import TraceKind

#: Counter of this process's sessions. All processes open their sessions in the same order, so the numbers agree.
_sessions = itertools.count()


class SynchronizedClock(StepClock):
    """Measure a series of steps on the host's clock. The devices are idle before and after the series.

    TensorFlow cannot record events on a device. The function that runs a step returns when the step's kernels are
    launched, so a mark measures host time only. Every series begins and ends with a synchronization, so its total time
    and the mean step time include all device work. If the host runs ahead, the first steps seem short, and the last
    step seems long.
    """

    def __init__(self, drain: Callable[[], None]) -> None:
        super().__init__(time.perf_counter_ns, lambda begin, end: (end - begin) / 1e6, lambda: None)
        self._drain = drain
        self._drained = True

    def mark(self) -> None:
        """End a step and begin the next."""
        self._drained = False
        super().mark()

    def restart(self) -> None:
        """Begin a step on idle devices."""
        self._drain()
        super().restart()
        self._drained = True

    def finish(self) -> None:
        """Wait until the devices are idle, and end the last step then."""
        if self._drained:
            return
        self._drain()
        self._marks[-1] = self._instant()
        self._drained = True

    def series(self) -> UnprofiledSeries:
        """Wait for the devices. Return the times of the steps since the last call, and clear them."""
        self.finish()
        return super().series()


def synchronize(devices: Sequence[str]) -> None:
    """Wait until these devices of this process, given by their short names, are idle.

    In a job of several processes `tf.test.experimental.sync_devices` fails, because it waits for the devices of all
    processes.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context  # no public function waits for the queue

    for device in devices:
        with tf.device(device):
            tf.raw_ops.SyncDevice()
    context.async_wait()


def training_devices(wanted: Any, model: Any) -> tuple[str, ...]:
    """Return the short names (`GPU:0`, `CPU:1`) of this process's devices.

    The first of these that exist: the requested devices; the devices on which the model's strategy or the current
    strategy puts replicas; the first GPU; the CPU.

    Args:
        wanted: the requested device's name, a sequence of names, or None.
        model: a Keras model, or None.
    """
    import tensorflow as tf

    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        return tuple(short_name(str(name)) for name in names)
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None and tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        return tuple(short_name(name) for name in strategy.extended.worker_devices)
    return ("GPU:0",) if tf.config.list_logical_devices("GPU") else ("CPU:0",)


def short_name(name: str) -> str:
    """Return `GPU:1` for `/job:localhost/replica:0/task:0/device:GPU:1`, `/gpu:1` or `GPU:1`.

    >>> short_name("/job:worker/replica:0/task:1/device:GPU:0")
    'GPU:0'
    >>> short_name("/cpu:1")
    'CPU:1'
    """
    kind, _, ordinal = name.rpartition("/")[2].removeprefix("device:").partition(":")
    return f"{kind.upper()}:{ordinal or 0}"


def hardware_name(device: str, cpu: str) -> str:
    """Return the model name of the GPU with the short name `device`, "" if unknown; for other devices return `cpu`."""
    import tensorflow as tf

    kind, _, ordinal = device.partition(":")
    physical: Sequence[Any] = tf.config.list_physical_devices("GPU") if kind == "GPU" else ()
    if int(ordinal) >= len(physical):
        return cpu
    details = tf.config.experimental.get_device_details(physical[int(ordinal)])
    return str(details.get("device_name", ""))


class TensorflowRuntime:
    """The runtime of TensorFlow. One process may drive several devices. Each device is a separate rank in the records,
    and one trace contains all devices of the process."""

    framework = "tensorflow"
    label = staticmethod(str)
    devices = staticmethod(training_devices)
    trace_name = staticmethod(record.tensorflow_trace_name)
    marked_loaders = staticmethod(nullcontext)  # tf.data itself marks its work in the trace

    def position(self, devices: Sequence[Any]) -> ClusterPosition:
        """Return the position from the launcher's variables, else from `TF_CONFIG`."""
        return position_in_cluster(max(1, len(devices)))  # before the first step `devices` is empty

    def on_gpu(self, device: Any) -> bool:
        """Return whether this device is a GPU."""
        return str(device).startswith("GPU:")

    def device_name(self, device: Any) -> str:
        """Return the model name of the GPU or CPU."""
        return hardware_name(str(device), cpu_name())

    def software(self) -> dict[str, str]:
        """Return the versions of python, tensorflow, keras; with GPUs also driver, and the build's cuda and cudnn."""
        import tensorflow as tf

        versions = {"python": platform.python_version(), "tensorflow": str(tf.__version__)}
        keras = sys.modules.get("keras")
        if keras is not None:
            versions["keras"] = str(keras.__version__)
        if tf.config.list_physical_devices("GPU"):
            build = tf.sysconfig.get_build_info()
            versions |= {
                name: str(build[f"{name}_version"]) for name in ("cuda", "cudnn") if f"{name}_version" in build
            }
            driver = driver_version()
            if driver:
                versions["driver"] = driver
        return versions

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """Return the host's clock. On GPUs the clock synchronizes before and after each series of steps."""
        return SynchronizedClock(partial(synchronize, devices)) if self.on_gpu(devices[0]) else host_clock()

    def store(self, position: ClusterPosition) -> Any:
        """Return the next session's store, as `cluster_store` does."""
        return cluster_store(position, next(_sessions))

    def loader_watch(self, lines_dir: str = "") -> None:
        """Return None, because tf.data has no worker processes."""

    def window(
        self,
        path: Path,
        *,
        active: int,
        devices: Sequence[Any],
        kind: TraceKind = "full",
        shapes: bool = False,  # noqa: ARG002
    ) -> TensorflowWindow:
        """Create a recording of all devices of the process, as `Runtime.window` describes; `shapes` has no effect.

        Args:
            path: file for the trace.
            active: number of recorded steps.
            devices: devices of this process.
            kind: "full", or "light" for a kernel-only recording.
            shapes: ignored, because TensorFlow records no shapes.

        Raises:
            RuntimeError: the recording is kernel-only (`light`), and several CPU processes train. Then each recording
                may crash TensorFlow, so only the full recording is made.
        """
        if kind == "light" and not self.on_gpu(devices[0]) and self.position(devices).world_size > 1:
            raise RuntimeError("TensorFlow may crash when a recording of several CPU processes ends: there is but one")
        return TensorflowWindow(path, active=active, on_gpu=self.on_gpu(devices[0]), kernel_only=kind == "light")

    def flop_counter(self, devices: Sequence[Any], model: Any) -> None:
        """Return None, because operators of a graph cannot be observed during execution."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Describe a Keras model's trained variables. As in PyTorch, moving averages are not counted.

        If `gradient_sizes` (bytes) is empty, use the sizes of the variables.
        """
        import tensorflow as tf

        counts = [math.prod(variable.shape) for variable in model.trainable_variables]
        sizes = [tf.as_dtype(variable.dtype).size for variable in model.trainable_variables]
        trained = [count * size for count, size in zip(counts, sizes, strict=True)]  # backward reverses the order
        return ModelRecord(
            parameters=sum(counts),
            gradient_bytes=sum(trained),
            gradient_sizes=tuple(gradient_sizes) if gradient_sizes else tuple(reversed(trained)),
        )


RUNTIME = TensorflowRuntime()
