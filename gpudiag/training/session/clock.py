"""Step times: from each step's start to the next, device work included, without waiting for the device in between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpudiag.model.run import StepTimes
from gpudiag.statistics import MAD_TO_SIGMA, mean_of
from gpudiag.training.session.timing.unprofiled_series import Anchor, HostStep, UnprofiledSeries, on_host_clock

#: Of so many steps it is told, while they go on, what they take.
_LATEST = 20


class StepClock:
    """Marks the instants between steps; the times come out later, in one go.

    Args:
        instant: makes a mark.
        between_ms: milliseconds between two marks.
        settle: waits until every mark has happened.
        anchor: waits for a mark of its own and says when that was on the host's clock; None where marks are the host's.
        happened: whether a mark has happened by now.
    """

    def __init__(
        self,
        instant: Callable[[], Any],
        between_ms: Callable[[Any, Any], float],
        settle: Callable[[], None],
        anchor: Callable[[], Anchor] | None = None,
        happened: Callable[[Any], bool] = lambda _mark: True,
    ) -> None:
        self._instant = instant
        self._between_ms = between_ms
        self._settle = settle
        self._anchor = anchor
        self._happened = happened
        self._marks: list[Any] = []
        self._gaps: set[int] = set()
        #: What the host did before each mark, as far as it was told.
        self._host: list[HostStep | None] = []
        self._latest: HostStep | None = None
        self._begin: Anchor | None = None
        #: Of the steps since that anchor, before the series began.
        self._from_idle: list[HostStep] = []

    def host_step(self, begin_ns: int, fetched_ns: int, queued_ns: int) -> None:
        """What the training thread did in the step that the next mark ends, by `time.perf_counter_ns`."""
        self._latest = HostStep(begin_ns, fetched_ns, queued_ns)
        if self._begin is not None and not self._marks:
            self._from_idle.append(self._latest)

    def fetching_ms(self) -> float | None:
        """What the last steps since the last reading took to fetch their batches, in the mean; None where not told."""
        told = [(step.fetched - step.begin) / 1e6 for step in self._host[-_LATEST:] if step is not None]
        return statistics.fmean(told) if told else None

    def anchor(self) -> None:
        """A series of steps is about to begin, and its device is to be compared with the host. May wait for it."""
        self._begin = self._anchor() if self._anchor is not None else None

    def mark(self) -> None:
        """One step ends and the next begins here."""
        self._marks.append(self._instant())
        self._host.append(self._latest)
        self._latest = None

    def restart(self) -> None:
        """The next step begins here; what passed since the last mark is no step (validation between epochs)."""
        self._gaps.add(len(self._marks))
        self.mark()

    def leave_out(self) -> None:
        """What the next mark ends is no step: something else lay in it."""
        self._gaps.add(len(self._marks))

    def finish(self) -> None:
        """The last step of a series has just been marked, and something else follows before the times are read."""

    def so_far(self) -> list[float]:
        """Times in milliseconds of the steps that have ended by now. Neither waits nor forgets them."""
        ended = len(self._marks)
        while ended and not self._happened(self._marks[ended - 1]):
            ended -= 1
        marks = self._marks[:ended]
        return [self._between_ms(marks[i - 1], marks[i]) for i in range(1, ended) if i not in self._gaps]

    def read(self) -> list[float]:
        """Times in milliseconds of the steps since the last reading, which it forgets. Waits for the device."""
        return self.series().step_ms

    def series(self) -> UnprofiledSeries:
        """The same, and what the host did in these steps, where it was told. Waits for the device."""
        self._settle()
        marks, gaps, host, begin, from_idle = self._marks, self._gaps, self._host, self._begin, self._from_idle
        self._marks, self._gaps, self._host, self._begin, self._from_idle = [], set(), [], None, []
        whole = [i for i in range(1, len(marks)) if i not in gaps]
        told = [host[i] for i in whole]
        ends_ns = None
        if self._anchor is not None and begin is not None and None not in told:
            ends_ns = on_host_clock([marks[i] for i in whole], begin, self._anchor(), self._between_ms)
        return UnprofiledSeries.of([self._between_ms(marks[i - 1], marks[i]) for i in whole], told, ends_ns, from_idle)


def host_clock() -> StepClock:
    """For training on the CPU: the step's work is done when its code has run."""
    return StepClock(time.perf_counter_ns, lambda begin, end: (end - begin) / 1e6, lambda: None)


def summarize(step_ms: Sequence[float]) -> StepTimes | None:
    """Mean, median, standard error of the mean and robust scatter of step times in milliseconds; None of none."""
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
