"""Define the interface of training loops into which faults are injected, for any framework."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from gpudiag.model.run import ParallelLayout
from gpudiag.training.session.clock import StepClock, UnprofiledSeries
from gpudiag.training.session.position import ClusterPosition

#: Number of steps before the first estimate of the step time.
_FIRST_STEPS = 5
#: Number of trials of `milliseconds_of`.
_TRIALS = 3


class Loader:
    """Iterate over batches in host memory, without events in the trace.

    Attributes:
        usual: iterator over the batches of the clean job.
        source: iterator from which the following batches are taken.
        late_s: delay before each batch is delivered, in seconds.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self.usual = self.source = iter(batches)
        self.late_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch = next(self.source)
            if self.late_s:
                time.sleep(self.late_s)
            yield batch


class Trainer(ABC):
    """The training loop of one process.

    Attributes:
        time_all_first: True if on GPUs all faults are timed before the first fault is recorded, which is necessary if
            the profiler stays loaded after its first use and slows all later steps.
        holds: True if `hold` is implemented.
        device: the framework's device that the process trains on.
        place: position of this process in the cluster.
        strategy: name of the strategy, for the run record.
        model: the model without a wrapper for data parallelism.
        parallel: how the processes divide the model, for the run record; None if each process has the whole model.
        loader: the source of batches.
        extra: function that is called before each forward, or None.
        clean_ms: step time in ms without a fault, the same on all ranks; 0 before `warm_up`.
        clock: measures step times including device work.
    """

    time_all_first: ClassVar[bool] = False
    holds: bool = False

    def __init__(
        self,
        *,
        device: Any,
        place: ClusterPosition,
        strategy: str,
        model: Any,
        batches: Iterable[Any],
        clock: StepClock,
    ) -> None:
        self.device, self.place = device, place
        self.strategy, self.model = strategy, model
        self.parallel: ParallelLayout | None = None
        self.loader = Loader(batches)
        self.clock = clock
        self.extra: Callable[[], None] | None = None
        self.clean_ms = 0.0
        self._batches = iter(self.loader)

    @abstractmethod
    def train(self, batch: Any) -> None:
        """Run forward, backward and update."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks. This communication must not appear in traces."""

    def hold(self, milliseconds: float) -> None:
        """Keep the device, but not the host, busy for `milliseconds`; raise NotImplementedError unless `holds`."""
        raise NotImplementedError(f"{type(self).__name__} has no device to hold")

    def marked(self, number: int) -> AbstractContextManager[object]:  # noqa: ARG002  # most profilers mark steps
        """Return a context manager that marks step `number` in the trace, if the profiler does not mark steps."""
        return nullcontext()

    def close(self) -> None:
        """Leave the process group."""
        return

    def step(self) -> None:
        """Fetch a batch and train on it."""
        begin_ns = time.perf_counter_ns()
        batch = next(self._batches)
        fetched_ns = time.perf_counter_ns()
        self.train(batch)
        self.clock.host_step(begin_ns, fetched_ns, time.perf_counter_ns())

    def warm_up(self, seconds: float) -> None:
        """Train for about `seconds`, and set `clean_ms` to the median step time of the second half."""
        began = time.perf_counter()
        self.timed(_FIRST_STEPS, run_in=0)
        # The first steps include compilation and autotuning, so the step time is estimated from later steps.
        pace_ms = self.agree(statistics.median(self.timed(_FIRST_STEPS, run_in=0).step_ms))
        left_s = self.agree(max(0.0, seconds - (time.perf_counter() - began)))
        series = self.timed(max(2 * _FIRST_STEPS, int(1e3 * left_s / pace_ms)), run_in=0).step_ms
        self.clean_ms = self.agree(statistics.median(series[len(series) // 2 :]))

    def timed(self, steps: int, *, run_in: int) -> UnprofiledSeries:
        """Time `steps` steps. Before, run `run_in` untimed steps, in which the host gets ahead of the device."""
        self.clock.anchor()  # relates device times to the host's clock; may wait for the device
        for _ in range(run_in):
            self.step()
        self.clock.restart()
        for _ in range(steps):
            self.step()
            self.clock.mark()
        return self.clock.series()

    def unprofiled_ahead(self, steps: int, *, hold_ms: float) -> list[float]:
        """Return the times in ms of steps without launch overhead: kernels are queued before the device begins them.

        Before each step the device is kept busy for `hold_ms` (not timed), which must exceed the time of launching a
        step. The launch queue holds 1,024 launches, so only later kernels of a step can wait for their launch.
        """
        times = []
        for _ in range(steps):
            self.gather(None)  # all ranks begin at about the same time
            self.hold(hold_ms)
            self.clock.restart()
            self.step()
            self.clock.mark()
            times += self.clock.read()
        return times

    def milliseconds_of(self, function: Callable[[], object], *, repeats: int) -> float:
        """Call a function `repeats` times. Return the mean time per call until the device has done the work, in ms.

        Of three trials return the fastest, because first calls initialize state, and other programs may use the core.
        """
        trials = []
        for _ in range(_TRIALS):
            function()
            self.clock.read()  # wait for the device, and discard earlier marks
            self.clock.restart()
            for _ in range(repeats):
                function()
            self.clock.mark()
            trials.append(self.clock.read()[0] / repeats)
        return min(trials)

    def agree(self, value: float) -> float:
        """Return the mean of all ranks' values. All ranks must call this method."""
        return statistics.fmean(self.gather(value))
