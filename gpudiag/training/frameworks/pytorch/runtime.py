"""Implement the runtime of a session for PyTorch: devices, step times, software versions, key-value store."""

from __future__ import annotations

import itertools
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import ModelRecord
from gpudiag.training.frameworks.pytorch.dataloader import WorkerTimes, marked_loaders, watch_workers
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.session import record
from gpudiag.training.session.agreement import STORE_VARIABLE, DirectoryStore
from gpudiag.training.session.clock import Anchor, StepClock, host_clock
from gpudiag.training.session.position import ClusterPosition, cpu_name, current_position, driver_version

if TYPE_CHECKING:
    from gpudiag.training.frameworks.pytorch.flops import FlopCounter
    from gpudiag.training.session.step_counts import TraceKind

#: Number of attempts to measure an event's time on the host's clock. The shortest attempt is the most accurate.
_ANCHOR_TRIES = 5

#: Counter of this job's sessions. A session has the same number on all ranks, which open sessions in the same order.
_sessions = itertools.count()


def training_device(wanted: Any = None) -> Any:
    """Return `wanted` as a `torch.device`. For None, return the current GPU if this process uses CUDA, else the CPU."""
    import torch

    if wanted is not None:
        device: Any = torch.device(wanted)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return device
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return torch.device("cuda", cuda.current_device())
    return torch.device("cpu")


def device_name(device: Any) -> str:
    """Return the model name of the GPU, or of this process's CPU."""
    if device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(device))
    return cpu_name()


def software() -> dict[str, str]:
    """Return the versions of python and torch, and with GPUs also of cuda, cudnn, nccl and driver, by these names."""
    import torch

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is None or not torch.cuda.is_available():
        return versions
    versions["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch's own
    if cudnn is not None:
        versions["cudnn"] = str(cudnn)
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl: Any = torch.cuda.nccl
        versions["nccl"] = ".".join(str(number) for number in nccl.version())
    driver = driver_version()
    if driver:
        versions["driver"] = driver
    return versions


def clock_for(device: Any) -> StepClock:
    """Return the clock for a `torch.device`."""
    return cuda_clock(device) if device.type == "cuda" else host_clock()


def cuda_clock(device: Any) -> StepClock:
    """Return a clock that records an event per step on the current stream, and synchronizes once to read all events.

    Work on another stream counts in the step in which the current stream waits for it. DDP and FSDP wait in each step.
    """
    import torch

    make_event: Any = torch.cuda.Event

    def event() -> Any:
        mark = make_event(enable_timing=True)
        mark.record(torch.cuda.current_stream(device))
        return mark

    def synchronize() -> None:
        torch.cuda.synchronize(device)

    def anchor() -> Anchor:
        synchronize()
        tries = []
        for _ in range(_ANCHOR_TRIES):
            before_ns = time.perf_counter_ns()
            mark = event()
            mark.synchronize()
            after_ns = time.perf_counter_ns()
            # The device is idle, so the event occurs between the two host times, which are a few microseconds apart.
            tries.append((after_ns - before_ns, (before_ns + after_ns) // 2, mark))
        _, host_ns, mark = min(tries, key=lambda attempt: attempt[0])
        return Anchor(mark, host_ns)

    def between_ms(begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end))

    return StepClock(event, between_ms, synchronize, anchor, happened=lambda mark: bool(mark.query()))


def new_job() -> None:
    """Restart the numbering of sessions. Call this before joining another job, in which all ranks count from 0."""
    global _sessions  # noqa: PLW0603  # a process is in one job at a time
    _sessions = itertools.count()


def job_store(position: ClusterPosition) -> Any:
    """Return the key-value store that the job's processes share, with a prefix for this session; None for one process.

    Raise RuntimeError if several processes have neither gpudiag's store, a default process group, nor torchrun's store.
    """
    session = next(_sessions)
    if position.world_size == 1:
        return None
    if directory := os.environ.get(STORE_VARIABLE):
        return DirectoryStore(Path(directory) / f"session-{session}")
    from torch import distributed

    dist: Any = distributed  # the stores are not in `__all__`
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # there is no public way to the store
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            position.world_size,
            is_master=False,
            timeout=timedelta(seconds=60),
        )
    else:
        raise RuntimeError(
            f"a job of {position.world_size} processes needs torch.distributed.init_process_group before "
            "gpudiag.profile"
        )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # after a restart the store still has the old keys
    return dist.PrefixStore(f"gpudiag/{attempt}/{session}", store)


class PyTorchRuntime:
    """The runtime of PyTorch. A process has one device, unless the caller of `devices` names several."""

    framework = "pytorch"
    label = staticmethod(str)
    device_name = staticmethod(device_name)
    software = staticmethod(software)
    store = staticmethod(job_store)
    trace_name = staticmethod(record.trace_name)
    marked_loaders = staticmethod(marked_loaders)

    def devices(self, wanted: Any, model: Any) -> tuple[Any, ...]:  # noqa: ARG002 # independent of the model
        """Return the wanted device or devices. For None, return the current GPU if CUDA is used, else the CPU."""
        wanted = wanted if isinstance(wanted, list | tuple) else (wanted,)
        return tuple(training_device(device) for device in wanted)

    def position(self, devices: Sequence[Any]) -> ClusterPosition:
        """Return the position from the default process group, or else from torchrun's environment."""
        return replace(current_position(), devices=max(1, len(devices)))  # before the first step `devices` is empty

    def on_gpu(self, device: Any) -> bool:
        """Return whether `device` is a CUDA device."""
        return bool(device.type == "cuda")

    def clock(self, devices: Sequence[Any]) -> StepClock:
        """Return a clock that uses CUDA events on a GPU, and the host's clock on a CPU."""
        return clock_for(devices[0])

    def loader_watch(self, lines_dir: str = "") -> WorkerTimes | None:
        """Begin to time DataLoader workers, which write line logs to `lines_dir`; return None without PyTorch."""
        if "torch" not in sys.modules:
            return None
        watch_workers(lines_dir)
        return WorkerTimes()

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], kind: TraceKind = "full", shapes: bool = False
    ) -> ProfiledWindow:
        """Create a recording of `active` steps with torch.profiler, as `Runtime.window` describes.

        `path` is the file for the trace. The kind "light" is kernel-only. On a GPU, device activity is recorded too.
        """
        on_gpu = self.on_gpu(devices[0])
        return ProfiledWindow(path, active=active, cuda=on_gpu, kernel_only=kind == "light", shapes=shapes)

    def flop_counter(self, devices: Sequence[Any], model: Any) -> FlopCounter | None:
        """Create a counter. Return None without a model, or for several devices: their threads cannot be observed."""
        if model is None or len(devices) > 1:
            return None
        try:
            from gpudiag.training.frameworks.pytorch.flops import FlopCounter
        except Exception:  # noqa: BLE001  # this PyTorch has its formulas elsewhere; the training goes on
            return None
        return FlopCounter(model)

    def describe(self, model: Any, gradient_sizes: Sequence[int]) -> ModelRecord:
        """Describe the parameters of a `torch.nn.Module`. If `gradient_sizes` (bytes) is empty, use tensors' sizes."""
        parameters = list(model.parameters())
        trained = [p.numel() * p.element_size() for p in parameters if p.requires_grad]  # backward reverses the order
        return ModelRecord(
            parameters=sum(p.numel() for p in parameters),
            gradient_bytes=sum(trained),
            gradient_sizes=tuple(gradient_sizes) if gradient_sizes else tuple(reversed(trained)),
        )


RUNTIME = PyTorchRuntime()
