"""Step times under PyTorch: CUDA events on a GPU, the host's clock on a CPU."""

from __future__ import annotations

import time
from typing import Any

from gpudiag.training.session.clock import StepClock, host_clock
from gpudiag.training.session.timing.unprofiled_series import Anchor

#: Tries to find when an event was on the host's clock; the one that took least is the best.
_ANCHOR_TRIES = 5


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

    def settle() -> None:
        torch.cuda.synchronize(device)

    def anchor() -> Anchor:
        settle()
        tries = []
        for _ in range(_ANCHOR_TRIES):
            before_ns = time.perf_counter_ns()
            mark = event()
            mark.synchronize()
            after_ns = time.perf_counter_ns()
            # On an idle device the event happens between the two instants, some microseconds apart.
            tries.append((after_ns - before_ns, (before_ns + after_ns) // 2, mark))
        _, host_ns, mark = min(tries, key=lambda one: one[0])
        return Anchor(mark, host_ns)

    def between_ms(begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end))

    return StepClock(event, between_ms, settle, anchor, happened=lambda mark: bool(mark.query()))


def clock_for(device: Any) -> StepClock:
    """The clock for a `torch.device`."""
    return cuda_clock(device) if device.type == "cuda" else host_clock()
