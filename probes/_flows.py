"""Copies that run at once, timed by the GPU, with data that is checked.

How one figure is made. Each flow's stream is held by a gate (a kernel that waits for the host) while its copies are
queued, so that launching is not measured. The gate opens; events around the copies are read. One flow: n copies over
the time between two events. Several flows: an event after each copy, and bytes count only while all flows run. The
first run is not counted; in it, data arrives in poisoned memory and is compared in full.
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

#: The gate opens by itself after this long: what is being queued must be blocking the host.
_GATE_LIMIT_NS = 500_000_000
#: Size of the copy that tells how long a run will take.
_TASTE = 8 * MIB


class GateGaveUpError(ProbeError):
    """The copies blocked the host while they were queued, so that the gate had to open by itself."""


@dataclass(frozen=True)
class Flow:
    """One direction of copying: who issues it, on which stream, how, and how to tell that the data arrived."""

    gpu: Gpu
    stream: Any
    copy: Callable[[int], None]
    """Queue one copy of so many bytes on `stream`; the context of `gpu` is current."""
    poison: Callable[[int], None]
    count_wrong: Callable[[int], int]
    label: str = ""


@dataclass(frozen=True)
class Transfer:
    """What a set of flows carried at once."""

    settled: Settled
    size: int
    copies: int
    wrong_words: int | None
    gated: bool

    def describe(self, **more: Any) -> dict[str, Any]:
        """As the result of a probe has it; GB/s are sums over the flows."""
        return {
            "gb_per_s": self.settled.median / 1e9,
            "each_gb_per_s": [rate / 1e9 for rate in self.settled.each],
            "cv": self.settled.cv,
            "repeats": self.settled.repeats,
            "size_bytes": self.size,
            "copies": self.copies,
            "wrong_words": self.wrong_words,
            "gated": self.gated,
            **more,
        }


class Gate:
    """Holds streams of any GPU until `open`: two words of host memory that every GPU can read."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._words = gpus[0].allocate_pinned(4096).view("uint32")
        self._address = self._words.ctypes.data
        self.kernels = not any(gpu.kernels_missing for gpu in gpus)

    def close(self) -> None:
        """Set the gate up for the next run."""
        self._words[:2] = 0

    def hold(self, gpu: Gpu, stream: Any) -> None:
        """Keep what is queued on `stream` from now on until the gate opens."""
        if self.kernels:
            gpu.launch("wait_for_host", stream, c_uint64(self._address), c_uint64(_GATE_LIMIT_NS), grid=1, block=1)
        else:
            flag = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
            call("cuStreamWaitValue32", stream, self._address, 1, flag)

    def open(self) -> None:
        """Let every held stream go."""
        self._words[0] = 1

    def gave_up(self) -> bool:
        """Whether a stream went on by itself because nobody opened the gate in time."""
        return bool(self._words[1])


def run_on_gpu(gate: Gate, flows: Sequence[Flow], size: int, copies: int, *, gated: bool = True) -> list[list[float]]:
    """Seconds after which each flow had finished 0, 1, … of its copies (only 0 and all, when there is one flow).

    Raises:
        GateGaveUpError: queueing the copies blocked the host.
    """
    gate.close()
    stops = copies if len(flows) > 1 else 1
    used: dict[int, int] = {}
    events = []
    for flow in flows:
        first = used.get(flow.gpu.ordinal, 0)
        used[flow.gpu.ordinal] = first + stops + 1
        events.append(flow.gpu.events(first, stops + 1))
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
    """As `run_on_gpu`, for copies that block the host: a thread per flow, timed by the host's clock."""
    barrier = threading.Barrier(len(flows))
    finished: list[list[float]] = [[] for _ in flows]
    failures: list[BaseException] = []

    def work(flow: Flow, times: list[float]) -> None:
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
    """Bytes per second of each flow."""
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
    """Measure flows at once: choose size and copies for runs of about `target_s`, verify, repeat until settled.

    Args:
        run: how to run them, e.g. `run_on_gpu` with its gate.
        flows: at least one.
        most_bytes: the size to use wherever the link is fast enough for it.
        target_s: about how long one run should take.
        most_copies: bound on the copies of one run.
        gated: recorded in the result.
        least: repeats to agree.
        most: repeats at most.
    """
    taste = min(_TASTE, most_bytes)
    run(flows, taste, 1)
    copy_s = max(times[-1] for times in run(flows, taste, 1)) * most_bytes / taste
    size, copies = most_bytes, max(1 if len(flows) == 1 else 2, min(most_copies, int(target_s / copy_s)))
    if copy_s > target_s:
        # A slow link: smaller copies, which still take milliseconds each.
        size = max(taste, int(most_bytes * target_s / copy_s / 2) // MIB * MIB)
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
    """`measure` behind the gate, or without it for copies that turn out to block the host while they are queued."""
    try:
        return measure(lambda *given: run_on_gpu(gate, *given), flows, **options)
    except GateGaveUpError:
        return measure(lambda *given: run_on_gpu(gate, *given, gated=False), flows, gated=False, **options)
