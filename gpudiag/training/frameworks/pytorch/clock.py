"""Step times under PyTorch: CUDA events on a GPU, the host's clock on a CPU."""

from __future__ import annotations

from typing import Any

from gpudiag.training.session.clock import StepClock, host_clock


def cuda_clock(device: Any) -> StepClock:
    """For training on a GPU: events on the current stream, read after one synchronization at the end.

    Work that a step puts on other streams counts from when the current stream waits for it, as DDP's and FSDP's do.
    """
    import torch

    make_event: Any = torch.cuda.Event

    def event() -> Any:
        mark = make_event(enable_timing=True)
        mark.record(torch.cuda.current_stream(device))
        return mark

    return StepClock(event, lambda begin, end: float(begin.elapsed_time(end)), lambda: torch.cuda.synchronize(device))


def clock_for(device: Any) -> StepClock:
    """The clock for a `torch.device`."""
    return cuda_clock(device) if device.type == "cuda" else host_clock()
