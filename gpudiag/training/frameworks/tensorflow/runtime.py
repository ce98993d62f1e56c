"""TensorFlow, as a session sees it."""

from __future__ import annotations

import itertools
import math
import platform
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gpudiag.model.run import ModelRecord
from gpudiag.training.frameworks.tensorflow.clock import synchronized_clock
from gpudiag.training.frameworks.tensorflow.cluster import cluster_store, place_in_cluster
from gpudiag.training.frameworks.tensorflow.devices import hardware_name, training_devices
from gpudiag.training.frameworks.tensorflow.profiler import TensorflowWindow
from gpudiag.training.session import record
from gpudiag.training.session.clock import StepClock, host_clock
from gpudiag.training.session.place import Place, cpu_name, driver_version
from gpudiag.training.session.runtime import Recording

#: One number per session of this process; processes open their sessions in the same order.
_sessions = itertools.count()


class TensorflowRuntime:
    """One process may drive several devices; each is a rank of its own in the records, and all are in one trace."""

    framework = "tensorflow"

    def devices(self, wanted: Any, model: Any) -> tuple[str, ...]:
        """Those wanted, else those of the model's strategy."""
        return training_devices(wanted, model)

    def place(self, devices: Sequence[Any]) -> Place:
        """From the launcher, else from `TF_CONFIG`."""
        return place_in_cluster(max(1, len(devices)))

    def on_gpu(self, device: Any) -> bool:
        """Is it a GPU?"""
        return str(device).startswith("GPU:")

    def label(self, device: Any) -> str:
        """`GPU:0`, `CPU:1`."""
        return str(device)

    def device_name(self, device: Any) -> str:
        """Model of the GPU or CPU."""
        return hardware_name(str(device), cpu_name())

    def software(self) -> dict[str, str]:
        """Versions of python, tensorflow and keras, and on GPUs of the driver and what TensorFlow was built for."""
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
        """The host's clock, with synchronizations at either end of a series of steps on GPUs."""
        return synchronized_clock(devices) if self.on_gpu(devices[0]) else host_clock()

    def store(self, place: Place) -> Any:
        """The launcher's directory, else TensorFlow's coordination service."""
        return cluster_store(place, next(_sessions))

    def trace_name(self, rank: int) -> str:
        """`traces/rank<r>.xplane.pb.gz`."""
        return record.tensorflow_trace_name(rank)

    def marked_loaders(self) -> AbstractContextManager[None]:
        """None are known: tf.data marks itself in the trace."""
        return nullcontext()

    def loader_watch(self) -> None:
        """None: tf.data makes batches in threads of its own."""

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], recording: Recording = "full"
    ) -> TensorflowWindow:
        """A window of tf.profiler, which records all devices of the process.

        Raises:
            RuntimeError: a light one in a job of several CPU processes, of which each recording is a risk.
        """
        if recording == "light" and not self.on_gpu(devices[0]) and self.place(devices).world_size > 1:
            raise RuntimeError("TensorFlow may crash when a recording of several CPU processes ends: there is but one")
        return TensorflowWindow(path, active=active, on_gpu=self.on_gpu(devices[0]), light=recording == "light")

    def flop_counter(self, devices: Sequence[Any], model: Any) -> None:
        """None: a graph's operators are not seen while they run."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """The trained variables of a Keras model; moving averages and the like are no parameters, as in PyTorch."""
        import tensorflow as tf

        counts = [math.prod(variable.shape) for variable in model.trainable_variables]
        sizes = [tf.as_dtype(variable.dtype).size for variable in model.trainable_variables]
        trained = [count * size for count, size in zip(counts, sizes, strict=True)]
        return ModelRecord(
            parameters=sum(counts),
            gradient_bytes=sum(trained),
            gradient_sizes=tuple(gradient_sizes) if gradient_sizes else tuple(reversed(trained)),
        )


RUNTIME = TensorflowRuntime()
