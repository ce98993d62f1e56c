"""Measure step times including device work, and the host's activity in the same steps.

Each step lasts from its start to the start of the next step. The training thread takes 3 timestamps per step: before
the fetch of the batch, after the fetch, and when the step's work is queued. A GPU records an event on its own clock at
each step's end. Before and after a series of steps, the host records an anchor event on the idle device and waits for
it. With the two anchors, all other events are converted to the host's clock, so the host need not wait within a step.

Worked example. Anchors are at 0 and 1000 us of the host, and at 0 and 999 us of the device, so the device's clock is
slow by 0.1 %. The host queued a step's last work at 400 us. The device finished the step at 450 us of the device's
clock, which is 450.45 us of the host's clock. So the host ran ahead by 50.45 us (its lead).

Linux counts for each thread how often it was preempted (`status`, `nonvoluntary_ctxt_switches`) and how long it was
ready to run without a core (`schedstat`, second value in ns: https://docs.kernel.org/scheduler/sched-stats.html). Both
counters are read only before and after a series of unprofiled steps, because a reading takes 0.1 ms.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpudiag.model.run import LoaderPace, Scheduling, StepTimes, UnprofiledSteps
from gpudiag.statistics import MAD_TO_SIGMA, mean_of

_NS_PER_MS = 1e6
#: Number of recent steps over which the reported fetch time is averaged.
_RECENT_STEPS = 20

#: Directory in which Linux describes the threads of this process.
_TASKS = Path("/proc/self/task")
#: Prefix of the names that PyTorch gives to autograd's device threads.
_AUTOGRAD = "pt_autograd_"
#: Name of the counter of preemptions in a thread's `status`.
_SWITCHES = "nonvoluntary_ctxt_switches:"


class HostStep(NamedTuple):
    """Times of one step on the training thread, in ns of `time.perf_counter_ns`: begin, batch fetched, work queued."""

    begin: int
    fetched: int
    queued: int

    @property
    def input_ms(self) -> float:
        """Time to fetch the batch, in ms."""
        return (self.fetched - self.begin) / _NS_PER_MS

    @property
    def host_ms(self) -> float:
        """Time to queue the step's work, in ms."""
        return (self.queued - self.fetched) / _NS_PER_MS


class Anchor(NamedTuple):
    """One point in time on both clocks: `mark`, an event recorded by the device, and `host_ns` of `perf_counter_ns`."""

    mark: Any
    host_ns: int


class UnprofiledSeries:
    """Times of consecutive steps in ms. Each list has one element per step, or is None if the times are unknown.

    Attributes:
        step_ms: step times.
        input_ms: times to fetch the batch.
        host_ms: times to queue the step's work.
        lead_ms: times by which the host ran ahead: from queueing a step's last work until the device ends the step.
        idle_host_ms: times to queue the work of the steps directly before the series. The first of these steps began on
            an idle device, so in these steps no launch waited for a full launch queue.
    """

    def __init__(self) -> None:
        self.step_ms: list[float] = []
        self.input_ms: list[float] | None = []
        self.host_ms: list[float] | None = []
        self.lead_ms: list[float] | None = []
        self.idle_host_ms: list[float] = []

    @classmethod
    def from_steps(
        cls,
        step_ms: list[float],
        host: Sequence[HostStep | None],
        ends_ns: Sequence[float] | None,
        from_idle: Sequence[HostStep] = (),
    ) -> UnprofiledSeries:
        """Combine step times with host times.

        Args:
            step_ms: the step times.
            host: the host times of each step; None for a step whose host times were not reported.
            ends_ns: time at which the device finished each step, in ns of the host's clock; None if unknown.
            from_idle: the host times of the preceding steps, the first of which began on an idle device.
        """
        series = cls()
        series.step_ms = step_ms
        series.idle_host_ms = [step.host_ms for step in from_idle]
        series.lead_ms = None
        known = [step for step in host if step is not None]
        if len(known) < len(host):
            series.input_ms = series.host_ms = None
            return series
        series.input_ms = [step.input_ms for step in known]
        series.host_ms = [step.host_ms for step in known]
        if ends_ns is not None:
            # A device cannot finish a step before the step's last work is queued.
            series.lead_ms = [
                max(0.0, end - step.queued) / _NS_PER_MS for step, end in zip(known, ends_ns, strict=True)
            ]
        return series

    def extend(self, other: UnprofiledSeries) -> None:
        """Append the steps of another series. A list that is None in either series becomes None."""
        self.step_ms += other.step_ms
        self.input_ms = _concatenated(self.input_ms, other.input_ms)
        self.host_ms = _concatenated(self.host_ms, other.host_ms)
        self.lead_ms = _concatenated(self.lead_ms, other.lead_ms)
        self.idle_host_ms += other.idle_host_ms

    def record(
        self, *, sees_input: bool = True, loader: LoaderPace | None = None, scheduling: Scheduling | None = None
    ) -> UnprofiledSteps | None:
        """Return the series for the rank's record; None if the series is empty or its host times are unknown.

        If `sees_input` is False, the times to fetch batches are omitted. `loader` and `scheduling` are added unchanged.
        """
        if not self.step_ms or self.host_ms is None:
            return None
        return UnprofiledSteps(
            input_ms=_rounded(self.input_ms) if sees_input else None,
            host_ms=_rounded(self.host_ms) or (),
            lead_ms=_rounded(self.lead_ms),
            idle_host_ms=_rounded(self.idle_host_ms) or (),
            loader=loader,
            scheduling=scheduling,
        )


class StepClock:
    """Mark the ends of steps, and compute all step times after a series of steps.

    Args:
        instant: function that records a mark on the device's clock and returns the mark.
        between_ms: function that returns the milliseconds between two marks.
        synchronize: function that waits until the device has reached all marks.
        anchor: function that records a mark, waits for it, and returns an `Anchor`; None if marks are host times.
        happened: function that returns whether the device has reached a mark.
    """

    def __init__(
        self,
        instant: Callable[[], Any],
        between_ms: Callable[[Any, Any], float],
        synchronize: Callable[[], None],
        anchor: Callable[[], Anchor] | None = None,
        happened: Callable[[Any], bool] = lambda _mark: True,
    ) -> None:
        self._instant, self._between_ms, self._synchronize = instant, between_ms, synchronize
        self._anchor, self._happened = anchor, happened
        self._latest: HostStep | None = None
        self._reset()

    def _reset(self) -> None:
        """Clear all marks and begin a series."""
        self._marks: list[Any] = []
        #: Indices of marks that end no step.
        self._gaps: set[int] = set()
        #: Host times of the step that each mark ends; None if they were not reported.
        self._host: list[HostStep | None] = []
        #: The anchor before the series.
        self._begin: Anchor | None = None
        #: Host times of the steps between the anchor and the first mark of the series.
        self._from_idle: list[HostStep] = []

    def host_step(self, begin_ns: int, fetched_ns: int, queued_ns: int) -> None:
        """Report the training thread's times (see `HostStep`, in ns) of the step that the next mark ends."""
        self._latest = HostStep(begin_ns, fetched_ns, queued_ns)
        if self._begin is not None and not self._marks:
            self._from_idle.append(self._latest)

    def fetching_ms(self) -> float | None:
        """Return the mean time to fetch a batch in recent steps, in ms; None if no host times were reported."""
        known = [step.input_ms for step in self._host[-_RECENT_STEPS:] if step is not None]
        return statistics.fmean(known) if known else None

    def anchor(self) -> None:
        """Record the anchor before a series of steps. The method may wait for the device."""
        self._begin = self._anchor() if self._anchor is not None else None

    def mark(self) -> None:
        """End a step and begin the next step."""
        self._marks.append(self._instant())
        self._host.append(self._latest)
        self._latest = None

    def restart(self) -> None:
        """Begin a step, and exclude the time since the last mark, for example validation between epochs."""
        self.exclude_step()
        self.mark()

    def exclude_step(self) -> None:
        """Exclude the step that the next mark ends."""
        self._gaps.add(len(self._marks))

    def finish(self) -> None:
        """End a series after its last step was marked. Subclasses that must synchronize at this point override this."""

    def so_far(self) -> list[float]:
        """Return the times of the completed steps in ms, without waiting for the device and without clearing them."""
        ended = len(self._marks)  # number of marks that the device has reached; the device reaches marks in order
        while ended and not self._happened(self._marks[ended - 1]):
            ended -= 1
        marks = self._marks[:ended]
        return [self._between_ms(marks[i - 1], marks[i]) for i in range(1, ended) if i not in self._gaps]

    def read(self) -> list[float]:
        """Return the times in ms of the steps since the last call, and clear them; see `series`."""
        return self.series().step_ms

    def series(self) -> UnprofiledSeries:
        """Wait for the device. Return the step times and host times since the last call, and clear them."""
        self._synchronize()
        marks, gaps, begin, from_idle = self._marks, self._gaps, self._begin, self._from_idle
        # Step `i` lasts from mark `i - 1` to mark `i`.
        steps = [i for i in range(1, len(marks)) if i not in gaps]
        host = [self._host[i] for i in steps]
        self._reset()
        ends_ns = None  # without host times, the host's lead is unknown, and no second anchor is needed
        if self._anchor is not None and begin is not None and None not in host:
            ends_ns = on_host_clock([marks[i] for i in steps], begin, self._anchor(), self._between_ms)
        step_ms = [self._between_ms(marks[i - 1], marks[i]) for i in steps]
        return UnprofiledSeries.from_steps(step_ms, host, ends_ns, from_idle)


def host_clock() -> StepClock:
    """Return a clock for training on the CPU, where a step's work ends when the step's code has run."""
    return StepClock(time.perf_counter_ns, lambda begin, end: (end - begin) / _NS_PER_MS, lambda: None)


def on_host_clock(
    marks: Sequence[Any], begin: Anchor, end: Anchor, between_ms: Callable[[Any, Any], float]
) -> list[float]:
    """Return the times of marks in ns of the host's clock, by linear interpolation between two anchors.

    If both anchors have the same time on the device's clock, return the first anchor's time for all marks.
    """
    apart_ms = between_ms(begin.mark, end.mark)
    if apart_ms <= 0:
        return [float(begin.host_ns)] * len(marks)
    host_ns_per_ms = (end.host_ns - begin.host_ns) / apart_ms
    return [begin.host_ns + between_ms(begin.mark, mark) * host_ns_per_ms for mark in marks]


def summarize(step_ms: Sequence[float]) -> StepTimes | None:
    """Return step times with mean, standard error, median and jitter; None without steps.

    The jitter is the median absolute deviation, scaled to the standard deviation of a normal distribution.
    """
    if not step_ms:
        return None
    median = statistics.median(step_ms)
    return StepTimes(
        step_ms=tuple(round(value, 6) for value in step_ms),
        mean_ms=statistics.fmean(step_ms),
        median_ms=median,
        standard_error_ms=mean_of(step_ms).standard_error if len(step_ms) > 1 else 0.0,
        jitter_ms=MAD_TO_SIGMA * statistics.median([abs(value - median) for value in step_ms]),
    )


class _ThreadCounters(NamedTuple):
    """Linux's scheduling counters of one thread since its start: CPU time, wait for a core, and preemptions."""

    cpu_ns: int
    wait_ns: int
    switches: int


class SchedulingWatch:
    """Read Linux's scheduling counters of the training threads before and after series of steps.

    The training threads are the calling thread and autograd's threads, which launch backward on a GPU. The increases
    of the counters are scaled to one unprofiled step, because excluded steps also lie between the two readings.

    Worked example. Between the readings 1000 ms pass, the threads wait 50 ms for a core, and the mean step takes 20 ms.
    So per step the threads wait 50 / 1000 * 20 = 1 ms.
    """

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._before: dict[int, _ThreadCounters] = {}
        self._begun_ns = self._wall_ns = 0
        self._cpu_ns = self._wait_ns = self._switches = 0

    def find_threads(self) -> None:
        """Find the training threads. Call this before `begin`. In a process of 60 threads the call takes 1 ms."""
        self._threads = [threading.get_native_id(), *_autograd_threads()]

    def begin(self) -> None:
        """Read the counters before a series of steps."""
        self._before = _read_counters(self._threads)
        self._begun_ns = time.perf_counter_ns()

    def end(self) -> None:
        """Read the counters after a series of steps. Add the increases to those of earlier series."""
        if not self._before:  # `begin` was not called, or the kernel has no counters
            return
        wall_ns = time.perf_counter_ns() - self._begun_ns
        after = _read_counters(self._threads)
        for thread in self._before.keys() & after.keys():
            self._cpu_ns += after[thread].cpu_ns - self._before[thread].cpu_ns
            self._wait_ns += after[thread].wait_ns - self._before[thread].wait_ns
            self._switches += after[thread].switches - self._before[thread].switches
        self._wall_ns += wall_ns
        self._before = {}

    def per_step(self, step_ms: float) -> Scheduling | None:
        """Return the increases of the counters, scaled to a step of `step_ms`; None if no counters were read.

        If the kernel reuses the id of a thread that has ended, an increase can be negative. A negative sum counts as 0.
        """
        if not self._cpu_ns or self._wall_ns <= 0:
            return None
        scale = step_ms * _NS_PER_MS / self._wall_ns
        return Scheduling(
            involuntary_switches=round(max(0, self._switches) * scale, 6),
            run_queue_wait_ms=round(max(0, self._wait_ns) / _NS_PER_MS * scale, 6),
            cpu_ms=round(max(0, self._cpu_ns) / _NS_PER_MS * scale, 6),
        )


def _read_counters(threads: Sequence[int]) -> dict[int, _ThreadCounters]:
    """Return the counters of each thread that still exists; empty if the kernel has no such counters."""
    counters = {}
    for thread in threads:
        with contextlib.suppress(OSError, ValueError, StopIteration, IndexError):
            cpu_ns, wait_ns, *_ = map(int, (_TASKS / str(thread) / "schedstat").read_text().split())
            lines = (_TASKS / str(thread) / "status").read_text(errors="replace").splitlines()
            switches = next(int(line.split()[1]) for line in lines if line.startswith(_SWITCHES))
            counters[thread] = _ThreadCounters(cpu_ns, wait_ns, switches)
    return counters


def _autograd_threads() -> list[int]:
    """Return the ids of autograd's device threads in this process."""
    threads = []
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS):  # noqa: PTH208 # three times as fast for hundreds of threads
            with contextlib.suppress(OSError):
                if (_TASKS / name / "comm").read_text(errors="replace").startswith(_AUTOGRAD):
                    threads.append(int(name))
    return threads


def _concatenated(before: list[float] | None, after: list[float] | None) -> list[float] | None:
    return None if before is None or after is None else before + after


def _rounded(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(round(value, 6) for value in values)
