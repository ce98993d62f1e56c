"""The profiled window: a few steps under the PyTorch profiler, saved as one compressed trace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from gpudiag.training.frameworks.pytorch.garbage import MarkedCollections
from gpudiag.training.frameworks.pytorch.kineto import (
    annotations_only,
    end_open_ranges,
    profiler_runs,
    synchronization_events,
)
from gpudiag.training.frameworks.pytorch.modules import MarkedModules
from gpudiag.training.frameworks.saved_trace import compress, contains
from gpudiag.training.session.runtime import WARMUP_STEPS

#: How Kineto writes what ran on a device.
_DEVICE_ACTIVITY = rb'"cat": ?"(?:kernel|gpu_memcpy|gpu_memset)"'


class ProfiledWindow:
    """Records `active` steps of this process after two that are thrown away.

    Args:
        path: where the trace goes, `*.json.gz`; written beside it first and renamed when it is whole.
        active: how many steps to record; None for all between `start` and `stop`, with no marks of steps.
        cuda: record device activity too, and which stream waits for which event.
        light: record annotations alone of what the framework does: no operators, and no marks of modules.

    Raises:
        RuntimeError: this PyTorch cannot record lightly.
    """

    def __init__(self, path: Path, *, active: int | None, cuda: bool, light: bool = False) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self.path = path
        self.saved = False
        self.device_activity: bool | None = None
        self.unmarked = ""
        self._cuda = cuda
        self._kept = True
        self._collections = MarkedCollections()
        self._modules = None if light else MarkedModules()
        self._profiler = (annotations_only() if light else profile)(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
            schedule=None if active is None else schedule(wait=0, warmup=WARMUP_STEPS, active=active, repeat=1),
            experimental_config=synchronization_events() if cuda else None,
            on_trace_ready=self._save,
            # Shapes would double what recording costs the host (8 ms against 4 ms of a 62 ms step of 1,800 operators,
            # on a CPU). NCCL's collectives carry their sizes without them; gloo's are in the run record.
            record_shapes=False,
        )

    def start(self) -> None:
        """Begin with the steps that are thrown away.

        Raises:
            RuntimeError: another profiler is recording.
        """
        if profiler_runs():
            raise RuntimeError("another torch.profiler is recording; only one can at a time")
        self._profiler.start()
        self._collections.start()
        if self._modules is not None:
            self.unmarked = self._modules.start()

    def step(self) -> None:
        """A step has ended. The last one's end saves the trace, which can take seconds."""
        self._profiler.step()

    def stop(self) -> None:
        """End the recording; saves what there is if the window was cut short while it recorded."""
        self._collections.stop()
        if self._modules is not None:
            self._modules.stop()
        try:
            self._profiler.stop()
        finally:
            end_open_ranges()

    def discard(self) -> None:
        """End a recording that has failed; leaves nothing of it, and raises nothing."""
        self._kept = False
        with contextlib.suppress(Exception):
            self.stop()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _save(self, profiler: Any) -> None:
        if not self._kept:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_name(f".{self.path.name}.part")
        plain = self.path.with_name(f".{self.path.name}.json")
        try:
            profiler.export_chrome_trace(str(plain))
            if self._cuda:
                self.device_activity = contains(plain, _DEVICE_ACTIVITY)
            compress(plain, whole)
            whole.replace(self.path)
            self.saved = True
        finally:
            # The profiler's own attempt has a name of its own, where the disk was full.
            for leftover in (plain, plain.with_name(f"{plain.name}.tmp"), whole):
                with contextlib.suppress(OSError):
                    leftover.unlink()
