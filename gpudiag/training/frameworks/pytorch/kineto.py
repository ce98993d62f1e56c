"""What there is no public way to have of PyTorch's profiler; whatever is missing is a RuntimeError, or left out.

Checked with PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any


def profiler_runs() -> bool:
    """Is a PyTorch profiler, of whoever's, recording this thread? A second one would take its events away."""
    from torch import autograd

    return bool(autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001


def synchronization_events() -> Any:
    """The profiler's configuration that records CUDA synchronizations; None where this PyTorch has no such thing."""
    from torch._C import _profiler

    make: Any = _profiler._ExperimentalConfig  # noqa: SLF001
    try:
        return make(enable_cuda_sync_events=True)
    except TypeError:
        return None


def end_open_ranges() -> None:
    """End every `record_function` that is open, the program's own too, now that the recording it began in is over.

    Each points into what that recording has kept of it, which is freed. One that ends while a later profiler runs would
    write there (PyTorch 2.13: a segmentation fault, at once or at exit). Ended twice, it does nothing the second time.
    """
    import torch
    from torch.autograd.profiler import record_function

    for found in gc.get_objects():
        if issubclass(type(found), record_function) and found.record is not None:
            with contextlib.suppress(Exception):
                torch.ops.profiler._record_function_exit._RecordFunction(found.record)  # noqa: SLF001


def annotations_only() -> Any:
    """A class like `torch.profiler.profile` that records, of what the framework does, `record_function` alone.

    The public profiler enables its callbacks for all scopes; here the private call that it makes is told one.

    Raises:
        RuntimeError: this PyTorch has no scopes to choose from.
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
        """As its base, less the operators."""

        def prepare_trace(self) -> None:
            super().prepare_trace()
            recorder: Any = self.profiler

            def start() -> None:
                recorder.entered = True
                began()
                try:
                    enable(recorder.config(), recorder.kineto_activities, {scopes.USER_SCOPE})
                except Exception:
                    # Ending a recording that was prepared and never enabled kills the process (PyTorch 2.13).
                    enable(recorder.config(), recorder.kineto_activities)
                    raise

            recorder._start_trace = start  # noqa: SLF001

    return AnnotationsOnly
