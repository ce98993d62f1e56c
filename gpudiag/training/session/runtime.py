"""The interface through which a session uses a framework; each framework implements it. For type checkers only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from gpudiag.model.run import LoaderPace, ModelRecord, StepFlops
from gpudiag.training.session.clock import StepClock
from gpudiag.training.session.position import ClusterPosition
from gpudiag.training.session.step_counts import TraceKind


class Window(Protocol):
    """A few recorded steps, after `PROFILER_WARMUP_STEPS` that are discarded.

    Attributes:
        saved: the trace has been written.
        device_activity: the trace holds device activity; None without a device beside the host, and before it is saved.
        unmarked: why no modules are marked in the trace; empty if they are, or are not to be.
    """

    saved: bool
    device_activity: bool | None
    unmarked: str

    def start(self) -> None:
        """Begin with the discarded steps. Raises RuntimeError if another profiler runs."""

    def step(self) -> None:
        """End a step. The last one's end saves the trace, which can take seconds."""

    def stop(self) -> None:
        """End the recording; save what there is if it was cut short."""

    def discard(self) -> None:
        """End a failed recording, and remove its files. Raises nothing."""


class StepFlopCounter(AbstractContextManager[None], Protocol):
    """Count the floating-point operations of the step within which it is open, and change nothing of it."""

    result: StepFlops | None


class LoaderWatch(Protocol):
    """Time the processes that make batches."""

    def begin(self) -> None:
        """Forget the batches so far."""

    def pace(self) -> LoaderPace | None:
        """Return the mean time of the batches since; None if it is unknown."""


class Runtime(Protocol):
    """One framework.

    Devices are the framework's own objects: a `torch.device`, or the name of a TensorFlow logical device. A process
    trains on one of them or, if one process drives several, on each as a rank of its own.
    """

    framework: str

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:
        """Return the devices that this process trains on: those wanted, else those that the framework uses."""

    def position(self, devices: Sequence[Any]) -> ClusterPosition:
        """Return this process's position in the cluster, as far as it is known by now."""

    def on_gpu(self, device: Any) -> bool:
        """Return whether this device works beside the host."""

    def label(self, device: Any) -> str:
        """Return the framework's name of the device."""

    def device_name(self, device: Any) -> str:
        """Return the model name of the GPU, or of this process's CPU."""

    def software(self) -> dict[str, str]:
        """Return the versions of the software that trains."""

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """Return a clock for steps on these devices."""

    def store(self, position: ClusterPosition) -> Any:
        """Return the key-value store that the job's processes share; None for one process."""

    def trace_name(self, rank: int) -> str:
        """Return the path of the full trace of the process with this first rank, relative to the run directory."""

    def marked_loaders(self) -> AbstractContextManager[None]:
        """Mark each fetch of a batch from the framework's loaders as a range named `input`, while open."""

    def loader_watch(self) -> LoaderWatch | None:
        """Time the loader workers that are started from now on; None if that is impossible."""

    def window(self, path: Path, *, active: int, devices: Sequence[Any], kind: TraceKind = "full") -> Window:
        """Make a profiled window of `active` steps whose trace goes to `path`."""

    def flop_counter(self, devices: Sequence[Any], model: Any) -> StepFlopCounter | None:
        """Make a counter for one step of this model; None if its operations cannot be counted."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Describe a model's parameters and gradients; by default one gradient per parameter, last one first."""
