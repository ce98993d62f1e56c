"""PyTorch, as a session sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import ModelRecord
from gpudiag.worker import place as placing
from gpudiag.worker import record
from gpudiag.worker.agreement import job_store
from gpudiag.worker.profiler import ProfiledWindow
from gpudiag.worker.timing import clock_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.worker.place import Place
    from gpudiag.worker.timing import StepClock


class PyTorchRuntime:
    """One device per process, as DistributedDataParallel has it, unless it is told several."""

    framework = "pytorch"

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:  # noqa: ARG002  # the model does not tell
        """The device wanted, or devices; else the current GPU if this process has used one; else the CPU."""
        if isinstance(wanted, list | tuple):
            return tuple(placing.training_device(device) for device in wanted)
        return (placing.training_device(wanted),)

    def place(self, devices: Sequence[Any]) -> Place:
        """From the default process group, else from torchrun's environment."""
        return replace(placing.this_place(), devices=max(1, len(devices)))  # none is known before the first step

    def on_gpu(self, device: Any) -> bool:
        """Is it a CUDA device?"""
        return bool(device.type == "cuda")

    def label(self, device: Any) -> str:
        """`cuda:0`, `cpu`."""
        return str(device)

    def device_name(self, device: Any) -> str:
        """Model of the GPU or CPU."""
        return placing.device_name(device)

    def software(self) -> dict[str, str]:
        """Versions of python, torch and what is under it."""
        return placing.software()

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """CUDA events on a GPU, the host's clock on a CPU."""
        return clock_for(devices[0])

    def store(self, place: Place) -> Any:
        """The process group's store, or torchrun's."""
        return job_store(place)

    def trace_name(self, rank: int) -> str:
        """`traces/rank<r>.pt.trace.json.gz`."""
        return record.trace_name(rank)

    def window(self, path: Path, *, active: int, devices: Sequence[Any]) -> ProfiledWindow:
        """A window of torch.profiler."""
        return ProfiledWindow(path, active=active, cuda=self.on_gpu(devices[0]))

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
