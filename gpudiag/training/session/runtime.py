"""What a session needs of the framework that trains: one interface, which each framework implements."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from gpudiag.model.run import LoaderPace, ModelRecord, StepFlops
from gpudiag.training.session.clock import StepClock
from gpudiag.training.session.place import Place

#: `light`: what devices do, calls to their runtime, and marks; `full`: what the framework does too.
Recording = Literal["light", "full"]
#: In the order in which they are made: the least disturbed first.
RECORDINGS: tuple[Recording, ...] = get_args(Recording)

#: Steps that a window throws away first: the first recording of a process pays for starting CUPTI.
WARMUP_STEPS = 2


class Window(Protocol):
    """A few recorded steps, after `WARMUP_STEPS` that only get the profiler going.

    Attributes:
        saved: the trace is where it should be.
        device_activity: whether it holds any; None where there is no device beside the host, and before it is saved.
        unmarked: why no modules are marked in it; empty where they are, or are not to be.
    """

    saved: bool
    device_activity: bool | None
    unmarked: str

    def start(self) -> None:
        """Begin with the steps that are thrown away. Raises RuntimeError when another profiler runs."""

    def step(self) -> None:
        """A step has ended. The last one's end saves the trace, which can take seconds."""

    def stop(self) -> None:
        """End the recording; saves what there is if the window was cut short while it recorded."""

    def discard(self) -> None:
        """End a recording that has failed; leaves nothing of it, and raises nothing."""


class FlopCounter(AbstractContextManager[None], Protocol):
    """Counts the floating-point operations of the step within which it is open, and changes nothing of it."""

    found: StepFlops | None


class LoaderWatch(Protocol):
    """Sees how long processes that make batches take for one."""

    def begin(self) -> None:
        """Forget what was made before."""

    def pace(self) -> LoaderPace | None:
        """What was made since; None where that is not known."""


class Runtime(Protocol):
    """One framework, as a session sees it.

    Devices are the framework's own: a `torch.device`, or the name of a TensorFlow logical device. A process trains on
    one of them or, where one process drives several, on each as a rank of its own.
    """

    framework: str

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:
        """The devices that this process trains on: those wanted, else what the framework itself tells."""

    def place(self, devices: Sequence[Any]) -> Place:
        """Where this process stands in the job, as far as is known by now."""

    def on_gpu(self, device: Any) -> bool:
        """Does this device work beside the host?"""

    def label(self, device: Any) -> str:
        """The device's name in the framework's own words."""

    def device_name(self, device: Any) -> str:
        """Model of the GPU, or of the CPU that this process runs on."""

    def software(self) -> dict[str, str]:
        """Versions of what trains here."""

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """A clock for steps on these devices."""

    def store(self, place: Place) -> Any:
        """The key-value store that the job's processes share; None for one process."""

    def trace_name(self, rank: int) -> str:
        """Where the full trace of the process with this first rank goes, relative to the run directory."""

    def marked_loaders(self) -> AbstractContextManager[None]:
        """While this is open, fetching a batch from one of the framework's loaders is a range named `input`."""

    def loader_watch(self) -> LoaderWatch | None:
        """What sees the worker processes that are started from now on; None where nothing does."""

    def window(self, path: Path, *, active: int, devices: Sequence[Any], recording: Recording = "full") -> Window:
        """A profiled window of `active` steps whose trace goes to `path`."""

    def flop_counter(self, devices: Sequence[Any], model: Any) -> FlopCounter | None:
        """What counts a step of this model, before the first; None where nothing can."""

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Parameters and gradients of a model; with sizes by parameter where none are given, last one first."""


def load_runtime(framework: str | None = None) -> Runtime:
    """The runtime of this framework, or of the one that this process has imported: PyTorch if both or none.

    Imports no framework by itself. The frameworks stand above the session, which knows of them only where they are.

    Raises:
        UsageError: there is no such framework.
    """
    registry = importlib.import_module("gpudiag.training.frameworks.registry")
    return cast("Runtime", registry.load_runtime(framework))
