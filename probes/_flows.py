"""Measure concurrent copies, timed by the GPU, and verify their data.

A flow is a series of copies in one direction. A gate (a kernel that waits for the host) holds each flow's stream while
its copies are queued, so that launch time is not measured. Then the gate opens, and events record the copies' times. A
single flow has an event before and after all copies; the rate is all bytes divided by the time between the events.
Several flows have an event after each copy, and bytes count only while all flows run. The first run verifies the data:
the target is overwritten before the run, and compared in full after it.
"""

from __future__ import annotations

import threading
import time
from ctypes import c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _cuda import MIB, call, driver
from _protocol import ProbeError
from _stopwatch import Settled, rates_while_all_run, repeat_until_settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _cuda import Gpu

#: The gate opens by itself after this time, because a host that a queued copy blocks cannot open the gate.
_GATE_LIMIT_NS = 500_000_000
#: Size in bytes of a trial copy. The trial's time predicts how many copies fit into a run.
_TRIAL = 8 * MIB


class GateGaveUpError(ProbeError):
    """The copies blocked the host while they were queued, so the gate opened at its time limit."""


@dataclass(frozen=True)
class Flow:
    """One direction of copying.

    Attributes:
        gpu, stream: the GPU that issues the copies, and its stream.
        copy: queues one copy of a number of bytes on `stream`; the context of `gpu` must be current.
        poison: overwrites this number of bytes of the target.
        count_wrong: counts the wrong words in this number of bytes of the target.
    """

    gpu: Gpu
    stream: Any
    copy: Callable[[int], None]
    poison: Callable[[int], None]
    count_wrong: Callable[[int], int]


@dataclass(frozen=True)
class Transfer:
    """Result of concurrent flows with `copies` of `size` bytes each. `wrong_words` is None without verification.

    If not `gated`, the times include launching.
    """

    settled: Settled
    size: int
    copies: int
    wrong_words: int | None
    gated: bool

    def describe(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of a probe's result. `gb_per_s` is the sum over the flows."""
        return {
            "gb_per_s": self.settled.median / 1e9,
            "each_gb_per_s": [rate / 1e9 for rate in self.settled.each],
            "cv": self.settled.cv,
            "repeats": self.settled.repeats,
            "size_bytes": self.size,
            "copies": self.copies,
            "wrong_words": self.wrong_words,
            "gated": self.gated,
            **fields,
        }


class Gate:
    """Hold streams until `open`. The host sets one shared flag to open. A kernel that gives up sets another flag."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._words = gpus[0].allocate_pinned(4096).view("uint32")
        self._address = self._words.ctypes.data
        self.kernels = not any(gpu.kernels_missing for gpu in gpus)

    def close(self) -> None:
        """Reset the gate for the next run."""
        self._words[:2] = 0

    def hold(self, gpu: Gpu, stream: Any) -> None:
        """Let all work that is later queued on `stream` wait until the gate opens."""
        if self.kernels:
            gpu.launch("wait_for_host", stream, c_uint64(self._address), c_uint64(_GATE_LIMIT_NS), grid=1, block=1)
        else:  # without kernels the driver waits, without a time limit
            flag = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
            call("cuStreamWaitValue32", stream, self._address, 1, flag)

    def open(self) -> None:
        """Release every held stream."""
        self._words[0] = 1

    def gave_up(self) -> bool:
        """Return whether a stream continued because the gate was not opened in time."""
        return bool(self._words[1])


def run_on_gpu(gate: Gate, flows: Sequence[Flow], size: int, copies: int, *, gated: bool = True) -> list[list[float]]:
    """Run the copies of all flows. Return for each flow the times in s at which 0, 1, 2, … of its copies had finished.

    If there is only one flow, return only the times for 0 and for all copies. If not `gated`, streams are not held.

    Raises:
        GateGaveUpError: queueing the copies blocked the host.
    """
    gate.close()
    marks_per_flow = 1 + (copies if len(flows) > 1 else 1)
    used: dict[int, int] = {}  # ordinal of a GPU → number of its events in use, because it may have several flows
    events = []
    for flow in flows:
        first = used.get(flow.gpu.ordinal, 0)
        used[flow.gpu.ordinal] = first + marks_per_flow
        events.append(flow.gpu.events(first, marks_per_flow))
    try:
        for flow, marks in zip(flows, events, strict=True):
            flow.gpu.use()
            if gated:
                gate.hold(flow.gpu, flow.stream)
            call("cuEventRecord", marks[0], flow.stream)
        for flow, marks in zip(flows, events, strict=True):
            flow.gpu.use()
            for k in range(copies):
                flow.copy(size)
                if len(marks) > 2:
                    call("cuEventRecord", marks[k + 1], flow.stream)
            if len(marks) == 2:
                call("cuEventRecord", marks[1], flow.stream)
    finally:
        gate.open()
    finished = []
    for flow, marks in zip(flows, events, strict=True):
        flow.gpu.use()
        call("cuEventSynchronize", marks[-1])
        finished.append([0.0] + [call("cuEventElapsedTime", marks[0], mark) / 1e3 for mark in marks[1:]])
    if gated and gate.gave_up():
        raise GateGaveUpError("the copies block the host while they are queued")
    return finished


def run_on_host(flows: Sequence[Flow], size: int, copies: int) -> list[list[float]]:
    """Run copies that block the host, in one thread per flow. Return `run_on_gpu`'s times by the host's clock."""
    barrier = threading.Barrier(len(flows))
    finished: list[list[float]] = [[] for _ in flows]
    failures: list[BaseException] = []

    def work(flow: Flow, times: list[float]) -> None:
        """Run one flow's copies after all threads have started."""
        try:
            flow.gpu.use()
            barrier.wait(30)
            start = time.perf_counter()
            times.append(0.0)
            for _ in range(copies):
                flow.copy(size)
                call("cuStreamSynchronize", flow.stream)
                times.append(time.perf_counter() - start)
        except (ProbeError, threading.BrokenBarrierError) as error:
            barrier.abort()
            failures.append(error)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(flows, finished, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise ProbeError(str(failures[0]))
    return finished


def rates(finished: Sequence[Sequence[float]], size: int, copies: int) -> list[float]:
    """Return the bytes per second of each flow, from the times that `run_on_gpu` returns."""
    if len(finished) == 1:
        return [size * copies / finished[0][-1]]
    return rates_while_all_run(finished, size)


def measure(
    run: Callable[[Sequence[Flow], int, int], list[list[float]]],
    flows: Sequence[Flow],
    *,
    most_bytes: int,
    target_s: float,
    most_copies: int = 16,
    gated: bool = True,
    least: int = 4,
    most: int = 10,
) -> Transfer:
    """Measure concurrent flows: choose size and copies for runs of about `target_s`, verify, repeat until stable.

    Args:
        run: called with the flows, the bytes per copy and the copies per flow, e.g. `run_on_gpu` with its gate.
        flows: one or more flows.
        most_bytes: size of a copy; on slow links copies are smaller.
        target_s: approximate duration of a run in seconds.
        most_copies: maximum number of copies of a run.
        gated: value of the result's field `gated`; True if `run` uses the gate.
        least: number of last repeats that must agree.
        most: maximum number of repeats.
    """
    trial = min(_TRIAL, most_bytes)
    run(flows, trial, 1)  # the first run of a path, which is not timed
    copy_s = max(times[-1] for times in run(flows, trial, 1)) * most_bytes / trial
    # Each of several flows makes at least two copies, so that a time within the flow is known (`rates_while_all_run`).
    size, copies = most_bytes, max(1 if len(flows) == 1 else 2, min(most_copies, int(target_s / copy_s)))
    if copy_s > target_s:
        # The link is so slow that smaller copies take milliseconds too, which is long enough to measure. A run has two.
        size = max(trial, int(most_bytes * target_s / copy_s / 2) // MIB * MIB)
        copies = 2
    wrong: int | None = None
    verifiable = not any(flow.gpu.kernels_missing for flow in flows)
    if verifiable:
        for flow in flows:
            flow.poison(size)
    run(flows, size, copies)
    if verifiable:
        wrong = sum(flow.count_wrong(size) for flow in flows)
    settled = repeat_until_settled(lambda: rates(run(flows, size, copies), size, copies), least=least, most=most)
    return Transfer(settled, size, copies, wrong, gated)


def measure_gated(gate: Gate, flows: Sequence[Flow], **options: Any) -> Transfer:
    """Measure with the gate, or without it if queueing the copies blocks the host. `options` are those of `measure`."""
    try:
        return measure(lambda *arguments: run_on_gpu(gate, *arguments), flows, **options)
    except GateGaveUpError:
        return measure(lambda *arguments: run_on_gpu(gate, *arguments, gated=False), flows, gated=False, **options)
