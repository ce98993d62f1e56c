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
    """A recording of a few steps, after `PROFILER_WARMUP_STEPS` discarded steps.

    Attributes:
        saved: True if the trace has been written.
        device_activity: whether the trace contains device activity; None before it is saved, and on the CPU.
        unmarked: reason why no modules are marked in the trace; "" if modules are marked or no marks were requested.
    """

    saved: bool
    device_activity: bool | None
    unmarked: str

    def start(self) -> None:
        """Begin the discarded steps; raise RuntimeError if another profiler runs."""

    def step(self) -> None:
        """End a step. The end of the last step saves the trace, which can take seconds."""

    def stop(self) -> None:
        """End the recording. If the loop ended early, save the steps recorded so far."""

    def discard(self) -> None:
        """End a failed recording, and remove its files. The method raises no exceptions."""


class StepFlopCounter(AbstractContextManager[None], Protocol):
    """Count the floating-point operations of the step that runs while the context manager is open.

    `result` has the operations, or the reason why they are unknown; None before the step has ended.
    """

    result: StepFlops | None


class LoaderWatch(Protocol):
    """Time the worker processes that make batches."""

    def begin(self) -> None:
        """Discard the times of earlier batches."""

    def time_lines(self) -> None:
        """Ask the workers to time the lines of the user's dataset."""

    def pace(self) -> LoaderPace | None:
        """Return the mean time per batch since `begin`; None if it is unknown."""


class Runtime(Protocol):
    """The methods of a framework that a session needs.

    A device is a `torch.device`, or the name of a TensorFlow logical device. If a process trains on several devices,
    each device is a separate rank in records.
    """

    framework: str

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:
        """Return the devices of this process: `wanted`, or for None the devices in use, or else the default device.

        `model` may show the devices in use; None if the model is unknown.
        """

    def position(self, devices: Sequence[Any]) -> ClusterPosition:
        """Return this process's position in the cluster. `devices` is empty as long as they are not known."""

    def on_gpu(self, device: Any) -> bool:
        """Return whether this device is a GPU, which runs asynchronously to the host."""

    def label(self, device: Any) -> str:
        """Return the framework's name of the device."""

    def device_name(self, device: Any) -> str:
        """Return the model name of the GPU, or of this process's CPU."""

    def software(self) -> dict[str, str]:
        """Return the versions of the training software, by name."""

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """Return a clock for steps on these devices."""

    def store(self, position: ClusterPosition) -> Any:
        """Return the key-value store that the job's processes share; None for one process."""

    def trace_name(self, rank: int) -> str:
        """Return the path, below the run directory, of the full trace of the process whose first rank is `rank`."""

    def marked_loaders(self) -> AbstractContextManager[None]:
        """Within the block, mark each fetch of a batch from the framework's loaders as a range named `input`."""

    def loader_watch(self, lines_dir: str = "") -> LoaderWatch | None:
        """Begin to time loader workers that start after this call; return None if the framework has no such workers.

        With a directory `lines_dir`, the workers can also time source lines, and write their logs there; "" for none.
        """

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], kind: TraceKind = "full", shapes: bool = False
    ) -> Window:
        """Create a recording of `active` steps of these devices, with a trace of this kind in the file `path`.

        With `shapes`, a full trace also has the shapes of operators' inputs.
        """

    def flop_counter(self, devices: Sequence[Any], model: Any) -> StepFlopCounter | None:
        """Create a counter for one step of `model` (None: unknown); return None if operations cannot be counted."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Describe parameters and gradients. `gradient_sizes` (bytes) are empty if each gradient is one message."""
