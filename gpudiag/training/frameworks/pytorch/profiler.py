"""Record a few steps with the PyTorch profiler, and save them as one compressed trace.

This module uses private functions of PyTorch's profiler. If such a function is missing, the module raises RuntimeError
or omits the feature. The module was checked with PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

from gpudiag.training.frameworks.pytorch.marks import MarkedCollections, MarkedModules
from gpudiag.training.session.record import contains, export_compressed
from gpudiag.training.session.step_counts import PROFILER_WARMUP_STEPS

#: Kineto's categories of device activity.
_DEVICE_ACTIVITY = rb'"cat": ?"(?:kernel|gpu_memcpy|gpu_memset)"'


class ProfiledWindow:
    """Record `active` steps of this process after `PROFILER_WARMUP_STEPS` discarded steps.

    Args:
        path: path of the trace, `*.json.gz`. The trace is first written to another file and renamed when complete.
        active: number of steps to record; None to record everything from `start` to `stop`, without step marks.
        cuda: also record device activity, and the waits of streams for events.
        kernel_only: record no operators and no module marks; on the host record only runtime calls and annotations.
        shapes: record the shapes of operators' inputs. Shapes can double the profiler's overhead on the host: on a CPU,
            8 ms instead of 4 ms in a step of 62 ms with 1,800 operators.

    Raises:
        RuntimeError: `kernel_only` is set, but this PyTorch cannot record without operators.
    """

    def __init__(
        self, path: Path, *, active: int | None, cuda: bool, kernel_only: bool = False, shapes: bool = False
    ) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self.path, self.saved = path, False
        self.device_activity: bool | None = None
        self.unmarked = ""
        self._cuda = cuda
        self._kept = True
        self._collections = MarkedCollections()
        self._modules = None if kernel_only else MarkedModules()
        steps = None if active is None else schedule(wait=0, warmup=PROFILER_WARMUP_STEPS, active=active, repeat=1)
        self._profiler = (_annotations_only() if kernel_only else profile)(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
            schedule=steps,
            experimental_config=_synchronization_events() if cuda else None,
            on_trace_ready=self._save,
            record_shapes=shapes,
        )

    def start(self) -> None:
        """Begin the discarded steps; raise RuntimeError if another profiler is recording."""
        if profiler_runs():
            raise RuntimeError("another torch.profiler is recording; only one can at a time")
        self._profiler.start()
        self._collections.start()
        if self._modules is not None:
            self.unmarked = self._modules.start()

    def step(self) -> None:
        """End a step. The end of the last step saves the trace, which can take seconds."""
        self._profiler.step()

    def stop(self) -> None:
        """End the recording. If the loop ended early, save the steps recorded so far."""
        self._collections.stop()
        if self._modules is not None:
            self._modules.stop()
        try:
            self._profiler.stop()
        finally:
            _end_open_ranges()

    def discard(self) -> None:
        """End a failed recording, and remove its files. The method raises no exceptions."""
        self._kept = False
        with contextlib.suppress(Exception):
            self.stop()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _save(self, profiler: Any) -> None:
        """Write the compressed trace, and note whether it contains device activity."""
        if not self._kept:
            return
        examine = self._look_for_device_activity if self._cuda else None
        export_compressed(profiler.export_chrome_trace, self.path, examine=examine)
        self.saved = True

    def _look_for_device_activity(self, plain: Path) -> None:
        self.device_activity = contains(plain, _DEVICE_ACTIVITY)


def profiler_runs() -> bool:
    """Return whether a PyTorch profiler records this thread. A second profiler would take events from the first."""
    from torch import autograd

    return bool(autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001


def _synchronization_events() -> Any:
    """Return a configuration that records CUDA synchronizations; None if this PyTorch has no such option."""
    from torch._C import _profiler

    make: Any = _profiler._ExperimentalConfig  # noqa: SLF001
    try:
        return make(enable_cuda_sync_events=True)
    except TypeError:
        return None


def _end_open_ranges() -> None:
    """End every open `record_function`, including the program's, when a recording ends.

    An open range points into memory of the recording in which it began. This memory is freed when the recording ends.
    If the range ends while a later profiler runs, it writes to the freed memory. With PyTorch 2.13 this causes a
    segmentation fault, immediately or at exit. Ending a range a second time does nothing.
    """
    import torch
    from torch.autograd.profiler import record_function

    for candidate in gc.get_objects():
        if issubclass(type(candidate), record_function) and candidate.record is not None:
            with contextlib.suppress(Exception):
                torch.ops.profiler._record_function_exit._RecordFunction(candidate.record)  # noqa: SLF001


def _annotations_only() -> Any:
    """Return a class like `torch.profiler.profile` that records `record_function` ranges and no operators.

    The public profiler records all kinds of events (scopes). The returned class selects one by a private function.

    Raises:
        RuntimeError: this PyTorch cannot select scopes.
    """
    import torch
    from torch.autograd import profiler as autograd_profiler
    from torch.profiler import profile

    enable: Any = getattr(autograd_profiler, "_enable_profiler", None)
    scopes: Any = getattr(torch._C._profiler, "RecordScope", None)  # noqa: SLF001
    began: Any = getattr(autograd_profiler, "_run_on_profiler_start", lambda: None)
    if enable is None or scopes is None or "scopes" not in (enable.__doc__ or ""):
        raise RuntimeError(f"PyTorch {torch.__version__} cannot record annotations without operators")

    class AnnotationsOnly(profile):
        """Record annotations and runtime calls, without operators."""

        def prepare_trace(self) -> None:
            super().prepare_trace()
            recorder: Any = self.profiler

            def start() -> None:  # like the replaced method, but for one scope
                recorder.entered = True
                began()
                try:
                    enable(recorder.config(), recorder.kineto_activities, {scopes.USER_SCOPE})
                except Exception:
                    # In PyTorch 2.13, ending a prepared recording that was never enabled kills the process.
                    enable(recorder.config(), recorder.kineto_activities)
                    raise

            recorder._start_trace = start  # noqa: SLF001

    return AnnotationsOnly
