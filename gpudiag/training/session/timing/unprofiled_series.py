"""Timed steps and what the host did in each: fetching, queueing, and how far it was then ahead of its device.

The training thread notes three instants per step: before it fetches the batch, when it has it, when the step's work is
queued. Where the device works beside it, an event recorded at the step's end says when the device was done, on the
device's clock. Before and after the series, while the device is idle, an event is recorded and waited for: these
anchors place all others on the host's clock, after the fact, so that nothing waits within the steps.

Worked example. Anchors at 0 and 1000 us of the host, 0 and 999 us of the device: its clock is slow by 0.1 %. A step's
work was queued at 400 us and done at 450 us of the device, which is 450.45 us of the host: a lead of 50 us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpudiag.model.run import LoaderPace, Scheduling, UnprofiledSteps

#: Nanoseconds in a millisecond.
_MS = 1e6


class HostStep(NamedTuple):
    """Instants of one step on the training thread, in ns of `time.perf_counter_ns`."""

    begin: int
    fetched: int
    queued: int


class Anchor(NamedTuple):
    """One instant on both clocks: a mark of the device, and when it was in ns of `time.perf_counter_ns`."""

    mark: Any
    host_ns: int


class UnprofiledSeries:
    """Times of steps, and what the host did in each: lists in ms of one length, or None for what is not known.

    Besides them `idle_host_ms`, of the steps between an anchor and the series: the first of them began on an idle
    device, so that the host found room in its queue.
    """

    def __init__(self) -> None:
        self.step_ms: list[float] = []
        self.input_ms: list[float] | None = []
        self.host_ms: list[float] | None = []
        self.lead_ms: list[float] | None = []
        self.idle_host_ms: list[float] = []

    @classmethod
    def of(
        cls,
        step_ms: list[float],
        host: Sequence[HostStep | None],
        ends_ns: Sequence[float] | None,
        from_idle: Sequence[HostStep] = (),
    ) -> UnprofiledSeries:
        """From step times, the host's instants, and when the device finished each step, in ns of the host's clock.

        Args:
            step_ms: the step times.
            host: of each step.
            ends_ns: when each step was done; None where that is not known.
            from_idle: of the steps before, from an idle device on.
        """
        series = cls()
        series.step_ms = step_ms
        series.idle_host_ms = [(step.queued - step.fetched) / _MS for step in from_idle]
        told = [step for step in host if step is not None]
        if len(told) < len(host):
            series.input_ms = series.host_ms = series.lead_ms = None
            return series
        series.input_ms = [(step.fetched - step.begin) / _MS for step in told]
        series.host_ms = [(step.queued - step.fetched) / _MS for step in told]
        series.lead_ms = None
        if ends_ns is not None:
            # A device that had nothing left to do is done when it is told, not before.
            series.lead_ms = [max(0.0, end - step.queued) / _MS for step, end in zip(told, ends_ns, strict=True)]
        return series

    def extend(self, other: UnprofiledSeries) -> None:
        """Append steps that followed these; what is not known of some is not known of all."""
        self.step_ms += other.step_ms
        self.input_ms = _joined(self.input_ms, other.input_ms)
        self.host_ms = _joined(self.host_ms, other.host_ms)
        self.lead_ms = _joined(self.lead_ms, other.lead_ms)
        self.idle_host_ms += other.idle_host_ms

    def record(
        self, *, sees_input: bool = True, loader: LoaderPace | None = None, scheduling: Scheduling | None = None
    ) -> UnprofiledSteps | None:
        """For the run's record; None where nothing was timed or nothing is known of the host."""
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


def on_host_clock(
    marks: Sequence[Any], begin: Anchor, end: Anchor, between_ms: Callable[[Any, Any], float]
) -> list[float]:
    """When each of a device's marks was, in ns of the host's clock: in a straight line through the two anchors."""
    apart_ms = between_ms(begin.mark, end.mark)
    if apart_ms <= 0:
        return [float(begin.host_ns)] * len(marks)
    host_ns_per_ms = (end.host_ns - begin.host_ns) / apart_ms
    return [begin.host_ns + between_ms(begin.mark, mark) * host_ns_per_ms for mark in marks]


def _joined(before: list[float] | None, after: list[float] | None) -> list[float] | None:
    return None if before is None or after is None else before + after


def _rounded(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(round(value, 6) for value in values)
