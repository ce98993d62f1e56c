"""The training loop into which faults are injected, for any framework."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from gpudiag.training.session.clock import StepClock, UnprofiledSeries
from gpudiag.training.session.position import ClusterPosition

#: Steps before the first estimate of the step time.
_FIRST_STEPS = 5
#: Trials of `milliseconds_of`, of which the fastest counts.
_TRIALS = 3


class Loader:
    """Batches in host memory, as a plain iterator, which leaves no mark in a trace.

    Attributes:
        usual: the batches of the clean job.
        source: the source of the next batch.
        late_s: delay of each batch.
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
    """One process of the job.

    Attributes:
        time_all_first: on GPUs no fault is recorded before all have been timed, because the profiler stays loaded.
        holds: `hold` is implemented.
        device: what it trains on, as the framework names it.
        place: this process's ranks and hosts.
        strategy: name of the strategy, for the record.
        model: the bare model.
        loader: the batches.
        extra: called before each forward; None for nothing.
        clean_ms: the step time without a fault, the same on all ranks; 0 before `warm_up`.
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
        self.device = device
        self.place = place
        self.strategy = strategy
        self.model = model
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
        """Return every rank's value, by rank, on every rank; never with a collective that a trace shows."""

    def hold(self, milliseconds: float) -> None:
        """Keep the device idle for this long before what is launched next, without blocking the host.

        Raises:
            NotImplementedError: the device is the host; only called on GPUs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no device to hold")

    def marked(self, number: int) -> AbstractContextManager[object]:  # noqa: ARG002  # most profilers mark steps
        """Return the mark that a user's loop puts around a recorded step."""
        return nullcontext()

    def close(self) -> None:
        """Leave the other processes."""
        return

    def step(self) -> None:
        """Fetch a batch and train on it."""
        begin_ns = time.perf_counter_ns()
        batch = next(self._batches)
        fetched_ns = time.perf_counter_ns()
        self.train(batch)
        self.clock.host_step(begin_ns, fetched_ns, time.perf_counter_ns())

    def warm_up(self, seconds: float) -> None:
        """Train for about this long, and set `clean_ms` from the second half."""
        began = time.perf_counter()
        self.timed(_FIRST_STEPS, run_in=0)
        # The first steps included compilation and autotuning, so the pace is that of the next ones.
        pace_ms = self.agree(statistics.median(self.timed(_FIRST_STEPS, run_in=0).step_ms))
        left_s = self.agree(max(0.0, seconds - (time.perf_counter() - began)))
        series = self.timed(max(2 * _FIRST_STEPS, int(1e3 * left_s / pace_ms)), run_in=0).step_ms
        self.clean_ms = self.agree(statistics.median(series[len(series) // 2 :]))

    def timed(self, steps: int, *, run_in: int) -> UnprofiledSeries:
        """Time this many steps after `run_in` others, which let the host run ahead again."""
        self.clock.anchor()
        for _ in range(run_in):
            self.step()
        self.clock.restart()
        for _ in range(steps):
            self.step()
            self.clock.mark()
        return self.clock.series()

    def unprofiled_ahead(self, steps: int, *, hold_ms: float) -> list[float]:
        """Time steps in ms that are launched before the device begins them, so that no kernel waits for its launch.

        Each begins on an idle device, at about the same time on all ranks, behind `hold_ms` that do not count. What
        exceeds the launch queue (1,024 launches) is launched while the device works on the rest.
        """
        times = []
        for _ in range(steps):
            self.gather(None)
            self.hold(hold_ms)
            self.clock.restart()
            self.step()
            self.clock.mark()
            times += self.clock.read()
        return times

    def milliseconds_of(self, function: Callable[[], object], *, repeats: int) -> float:
        """Return the duration of a call in ms, launches and device time together, averaged over consecutive calls.

        The fastest of three trials counts: a first call sets things up, and other programs may have taken the core.
        """
        trials = []
        for _ in range(_TRIALS):
            function()
            self.clock.read()
            self.clock.restart()
            for _ in range(repeats):
                function()
            self.clock.mark()
            trials.append(self.clock.read()[0] / repeats)
        return min(trials)

    def agree(self, value: float) -> float:
        """Return the mean of all ranks' values, on every rank."""
        return statistics.fmean(self.gather(value))
