"""PyTorch, as a session sees it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import ModelRecord
from gpudiag.training.frameworks.pytorch.clock import clock_for
from gpudiag.training.frameworks.pytorch.devices import device_name, software, training_device
from gpudiag.training.frameworks.pytorch.loader_workers import WorkerTimes, watch_workers
from gpudiag.training.frameworks.pytorch.loaders import marked_loaders
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.frameworks.pytorch.store import job_store
from gpudiag.training.session import record
from gpudiag.training.session.clock import StepClock
from gpudiag.training.session.place import Place, this_place
from gpudiag.training.session.runtime import Recording

if TYPE_CHECKING:
    from gpudiag.training.frameworks.pytorch.flops import FlopCounter


class PyTorchRuntime:
    """One device per process, as DistributedDataParallel has it, unless it is told several."""

    framework = "pytorch"

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:  # noqa: ARG002  # the model does not tell
        """The device wanted, or devices; else the current GPU if this process has used one; else the CPU."""
        if isinstance(wanted, list | tuple):
            return tuple(training_device(device) for device in wanted)
        return (training_device(wanted),)

    def place(self, devices: Sequence[Any]) -> Place:
        """From the default process group, else from torchrun's environment."""
        return replace(this_place(), devices=max(1, len(devices)))  # none is known before the first step

    def on_gpu(self, device: Any) -> bool:
        """Is it a CUDA device?"""
        return bool(device.type == "cuda")

    def label(self, device: Any) -> str:
        """`cuda:0`, `cpu`."""
        return str(device)

    def device_name(self, device: Any) -> str:
        """Model of the GPU or CPU."""
        return device_name(device)

    def software(self) -> dict[str, str]:
        """Versions of python, torch and what is under it."""
        return software()

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """CUDA events on a GPU, the host's clock on a CPU."""
        return clock_for(devices[0])

    def store(self, place: Place) -> Any:
        """The process group's store, or torchrun's."""
        return job_store(place)

    def trace_name(self, rank: int) -> str:
        """`traces/rank<r>.pt.trace.json.gz`."""
        return record.trace_name(rank)

    def marked_loaders(self) -> AbstractContextManager[None]:
        """Those of torch.utils.data."""
        return marked_loaders()

    def loader_watch(self) -> WorkerTimes | None:
        """Workers of torch.utils.data that are forked, once the program has imported it."""
        if "torch" not in sys.modules:
            return None
        watch_workers()
        return WorkerTimes()

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], recording: Recording = "full"
    ) -> ProfiledWindow:
        """A window of torch.profiler."""
        return ProfiledWindow(path, active=active, cuda=self.on_gpu(devices[0]), light=recording == "light")

    def flop_counter(self, devices: Sequence[Any], model: Any) -> FlopCounter | None:
        """For one device: several of one process are driven by threads that cannot be seen into."""
        if model is None or len(devices) > 1:
            return None
        try:
            from gpudiag.training.frameworks.pytorch.flops import FlopCounter
        except Exception:  # noqa: BLE001  # a PyTorch whose formulas are elsewhere trains all the same
            return None
        return FlopCounter(model)

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """The parameters of a `torch.nn.Module`, wrapped or not."""
        parameters = list(model.parameters())
        trained = [p.numel() * p.element_size() for p in parameters if p.requires_grad]
        return ModelRecord(
            parameters=sum(p.numel() for p in parameters),
            gradient_bytes=sum(trained),
            gradient_sizes=tuple(gradient_sizes) if gradient_sizes else tuple(reversed(trained)),
        )


RUNTIME = PyTorchRuntime()
