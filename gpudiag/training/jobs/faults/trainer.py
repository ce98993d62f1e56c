"""What a training loop has in which faults are put, whatever trains."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from gpudiag.training.session.clock import StepClock, UnprofiledSeries
from gpudiag.training.session.position import ClusterPosition

#: Steps after which the first guess of the step time is made.
_FIRST_STEPS = 5

_ROUNDS = 3


class Loader:
    """Batches in host memory, `late_s` seconds late each. A plain iterator: it leaves no mark in a trace.

    Attributes:
        usual: the clean job's batches.
        source: where the next batch comes from.
        late_s: how late it is.
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
        time_all_first: on GPUs no fault is recorded before all have been timed: the profiler leaves its library loaded.
        holds: `hold` is there.
        device: what it trains on, as the framework names it.
        place: where it stands in the job.
        strategy: how gradients are exchanged, for the record.
        model: the bare model.
        loader: the batches.
        extra: work that the step does beside training; None for none.
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
        """One forward, backward and update."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on each of them; waits for all. Never by a collective that a trace shows."""

    def hold(self, milliseconds: float) -> None:
        """Keep the device from what is launched next for this long, without keeping the host.

        Raises:
            NotImplementedError: there is no device that runs beside the host; only GPUs are asked.
        """
        raise NotImplementedError(f"{type(self).__name__} has no device to hold")

    def marked(self, number: int) -> AbstractContextManager[object]:  # noqa: ARG002  # most profilers mark steps
        """The mark that a user's loop puts around a recorded step."""
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
        """Train for about this long, and set `clean_ms` by the second half of it."""
        began = time.perf_counter()
        self.timed(_FIRST_STEPS, run_in=0)
        # What is left of the time, at the pace of the last steps; the first held compilation and autotuning.
        pace_ms = self.agree(statistics.median(self.timed(_FIRST_STEPS, run_in=0).step_ms))
        left_s = self.agree(max(0.0, seconds - (time.perf_counter() - began)))
        series = self.timed(max(2 * _FIRST_STEPS, int(1e3 * left_s / pace_ms)), run_in=0).step_ms
        self.clean_ms = self.agree(statistics.median(series[len(series) // 2 :]))

    def timed(self, steps: int, *, run_in: int) -> UnprofiledSeries:
        """Train this many steps after `run_in` others, which let the host run ahead again."""
        self.clock.anchor()
        for _ in range(run_in):
            self.step()
        self.clock.restart()
        for _ in range(steps):
            self.step()
            self.clock.mark()
        return self.clock.series()

    def unprofiled_ahead(self, steps: int, *, hold_ms: float) -> list[float]:
        """Times in ms of steps whose work is all launched before the device begins it: none waits for its launch.

        Each begins on an idle device, at about the same time on all ranks, behind `hold_ms` that are not counted. What
        a queue does not hold (1,024 launches) is launched while the device works on the rest.
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
        """How long one call takes, launches and device work together, averaged over calls that follow each other.

        The fastest of three rounds: a first call sets things up, and other programs may have taken the core meanwhile.
        """
        rounds = []
        for _ in range(_ROUNDS):
            function()
            self.clock.read()
            self.clock.restart()
            for _ in range(repeats):
                function()
            self.clock.mark()
            rounds.append(self.clock.read()[0] / repeats)
        return min(rounds)

    def agree(self, value: float) -> float:
        """The mean of all ranks' values, on each of them."""
        return statistics.fmean(self.gather(value))
