"""Build recordings of a job with marked modules and known module times.

`Net` contains `a` and `b`. Each step on a GPU, in µs of kernels:

    forward    a: 100, Net itself: 10, b: 50, the loss: 5
    backward   the loss: 5, b: 80 and an all-reduce, a: 60 and 40, accumulating a gradient: 3
    optimizer  20
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from tests.trace.documents import document, event, kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 5
STEP_US = 1000
MAIN, BACKWARD = 11, 12
#: (forward, backward) time by module path, in µs of kernels per step, without nested modules.
TAKES = {"": (10, 0), "a": (100, 100), "b": (50, 80)}
#: Time outside of all modules, in µs of kernels per step.
OUTSIDE_US = 5 + 5 + 3 + 20


def mark(path: str, kind: str, start: float, length: float, thread: int = MAIN) -> dict[str, Any]:
    return event("cpu_op", f"gpudiag.module:Net/{path} ({kind})", start, length, tid=thread)


def operator(name: str, start: float, length: float, sequence: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an operator; with a number `sequence` it creates an autograd node."""
    arguments = {} if sequence is None else {"args": {"Sequence number": sequence, "Fwd thread id": 0}}
    return event("cpu_op", name, start, length, **(arguments | more))


def backward(name: str, start: float, length: float, sequence: int, forward_thread: int = 1) -> list[dict[str, Any]]:
    """Return the two nested events with which the autograd engine runs a node."""
    arguments = {"tid": BACKWARD, "args": {"Sequence number": sequence, "Fwd thread id": forward_thread}}
    around = f"autograd::engine::evaluate_function: {name}"
    return [
        event("cpu_op", around, start, length, **arguments),
        event("cpu_op", name, start + 1, length - 2, **arguments),
    ]


def job(*, operators: bool = True, devices: bool = True, slower: float = 1.0) -> dict[str, Any]:
    """Return the full trace of the job.

    If `operators` is false, return the kernel-only trace. If `devices` is false, the trace has no launches and kernels.
    `slower` multiplies the host's times.
    """
    events: list[dict[str, Any]] = []
    correlation = count(1)
    for number in range(STEPS):
        begin, first_node = number * STEP_US, 100 + 10 * number
        events.append(event("user_annotation", f"ProfilerStep#{number}", begin, 900))
        if operators:
            events += [host_event | _placed(host_event, begin, slower) for host_event in _host(first_node)]
        free = begin + 10.0  # end of the device's previous kernel
        for name, at, thread, lasts in _KERNELS if devices else ():
            call, start = next(correlation), begin + at * slower
            arguments = {"args": {"correlation": call}}
            events.append(event("cuda_runtime", "cudaLaunchKernel", start, 1, tid=thread, **arguments))
            free = max(free, start + 2)
            events.append(kernel(name, free, lasts, call))
            free += lasts
    return document(*sorted(events, key=lambda host_event: float(host_event["ts"])))


def _placed(host_event: dict[str, Any], begin: float, slower: float) -> dict[str, float]:
    return {"ts": begin + host_event["ts"] * slower, "dur": host_event["dur"] * slower}


#: (name, launch time after the step's begin, launching thread, duration) of each kernel; times in µs.
_KERNELS = (
    ("gemm_a", 40, MAIN, 100),
    ("add", 90, MAIN, 10),
    ("gemm_b", 120, MAIN, 50),
    ("mse", 170, MAIN, 5),
    ("mse_backward", 190, BACKWARD, 5),
    ("gemm_b_backward", 225, BACKWARD, 80),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", 242, BACKWARD, 70),
    ("gemm_a_backward", 265, BACKWARD, 60),
    ("gemm_a_backward_weight", 275, BACKWARD, 40),
    ("add_up", 295, BACKWARD, 3),
    ("sgd", 350, MAIN, 20),
)


def _host(first: int) -> Iterator[dict[str, Any]]:
    """Return the marks and operators of a step, whose first autograd node has the number `first`."""
    yield mark("", "Net", 10, 150)
    yield mark("a", "Linear", 20, 60)
    yield operator("aten::linear", 22, 50, first)
    yield operator("aten::t", 23, 5, first)
    yield operator("aten::addmm", 30, 40, first + 1)
    yield operator("aten::add", 85, 10, first + 2)
    yield mark("b", "Linear", 100, 50)
    # The operator `aten::detach` creates no node, so the next operator has the same number.
    yield operator("aten::detach", 101, 1, first + 3)
    yield operator("aten::addmm", 105, 40, first + 3)
    yield operator("aten::mse_loss", 165, 15, first + 4)
    # Each thread numbers its nodes separately, so some nodes of both threads have the same numbers.
    yield operator("aten::other", 183, 1, first + 3, tid=BACKWARD)
    yield from backward("MseLossBackward0", 185, 15, first + 4)
    yield from backward("AddmmBackward0", 220, 20, first + 3)
    yield operator("aten::mm", 223, 10, tid=BACKWARD)
    yield operator("c10d::allreduce_", 240, 5, tid=BACKWARD)
    yield from backward("AddBackward0", 250, 5, first + 2)
    yield from backward("AddmmBackward0", 260, 20, first + 1)
    yield operator("aten::mm", 264, 4, tid=BACKWARD)
    yield from backward("TBackward0", 282, 5, first)
    yield operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 290, 10, tid=BACKWARD)
    yield operator("Optimizer", 340, 20)
