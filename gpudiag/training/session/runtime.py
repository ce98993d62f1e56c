"""Declare the interface between a session and a framework, as protocols for type checking."""

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
    """A few recorded steps, after `PROFILER_WARMUP_STEPS` discarded steps.

    Attributes:
        saved: the trace has been written.
        device_activity: the trace contains device activity; None before it is saved, and for training on the CPU.
        unmarked: reason why no modules are marked in the trace; "" if modules are marked or no marks were requested.
    """

    saved: bool
    device_activity: bool | None
    unmarked: str

    def start(self) -> None:
        """Begin the discarded steps. Raises RuntimeError if another profiler runs."""

    def step(self) -> None:
        """End a step. After the last step the trace is saved, which can take seconds."""

    def stop(self) -> None:
        """End the recording. If the loop ended early, save the steps recorded so far."""

    def discard(self) -> None:
        """End a failed recording, and remove its files. The method raises no exceptions."""


class StepFlopCounter(AbstractContextManager[None], Protocol):
    """Count the floating-point operations of a step without changing it. The counter must be open during the step."""

    result: StepFlops | None


class LoaderWatch(Protocol):
    """Time the worker processes that produce batches."""

    def begin(self) -> None:
        """Discard the times of earlier batches."""

    def time_lines(self) -> None:
        """Ask the workers to time the lines of the user's dataset."""

    def pace(self) -> LoaderPace | None:
        """Return the mean time per batch since `begin`; None if it is unknown."""


class Runtime(Protocol):
    """The methods of a framework that a session needs.

    Devices are the framework's own objects: a `torch.device`, or the name of a TensorFlow logical device. If a process
    trains on several devices, each device is a separate rank.
    """

    framework: str

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:
        """Return the devices that this process trains on: `wanted` if given, else the devices in use or the default."""

    def position(self, devices: Sequence[Any]) -> ClusterPosition:
        """Return this process's position in the cluster, as far as it is known."""

    def on_gpu(self, device: Any) -> bool:
        """Return whether this device runs asynchronously to the host."""

    def label(self, device: Any) -> str:
        """Return the framework's name of the device."""

    def device_name(self, device: Any) -> str:
        """Return the model name of the GPU, or of this process's CPU."""

    def software(self) -> dict[str, str]:
        """Return the versions of the training software."""

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """Return a clock for steps on these devices."""

    def store(self, position: ClusterPosition) -> Any:
        """Return the key-value store that the job's processes share; None for one process."""

    def trace_name(self, rank: int) -> str:
        """Return the path, below the run directory, of the full trace of the process whose first rank is `rank`."""

    def marked_loaders(self) -> AbstractContextManager[None]:
        """Within the block, mark each fetch of a batch from the framework's loaders as a range named `input`."""

    def loader_watch(self, lines_dir: str = "") -> LoaderWatch | None:
        """Return a watch of the loader workers that start from now on; None if the framework has no such workers.

        If `lines_dir` is given, the workers can also time lines, and write their logs there.
        """

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], kind: TraceKind = "full", shapes: bool = False
    ) -> Window:
        """Create a profiled window of `active` steps that writes its trace to `path`, with `shapes` of operators."""

    def flop_counter(self, devices: Sequence[Any], model: Any) -> StepFlopCounter | None:
        """Create a counter for one step of this model; None if its operations cannot be counted."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Describe a model's parameters and gradients; by default one gradient per parameter, in reverse order."""
