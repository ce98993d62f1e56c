"""Test host times in unprofiled steps, and device marks on the host's clock, with simulated clocks."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.training.session.clock import (
    Anchor,
    HostStep,
    StepClock,
    UnprofiledSeries,
    host_clock,
    on_host_clock,
)

US = 1000


class Machine:
    """Simulate a host that launches, and a device that works in order, each with its own clock.

    A mark is the device time, in ns, at which all previously launched work is complete. The device's clock has a
    different zero than the host's, and its rate differs by `drift`.
    """

    def __init__(self, drift: float = 0.0) -> None:
        self.host_ns = 1_000_000_000
        self.device_free_ns = 0
        self.drift = drift
        self.clock = StepClock(self._record, lambda begin, end: (end - begin) / 1e6, self._settle, self._anchor)

    def step(self, *, input_us: int, launch_us: int, device_us: int) -> None:
        """Run a step: fetch the batch, and then launch `device_us` of work."""
        begin = self.host_ns
        self.host_ns += input_us * US
        fetched = self.host_ns
        # The device starts with the first launch, and cannot finish before the last launch.
        free = max(self.device_free_ns, fetched) + device_us * US
        self.host_ns += launch_us * US
        self.device_free_ns = max(free, self.host_ns)
        self.clock.host_step(begin, fetched, self.host_ns)

    def _by_device(self, instant_ns: float) -> float:
        return (instant_ns - 400_000_000) * (1 + self.drift)

    def _record(self) -> float:
        return self._by_device(max(self.device_free_ns, self.host_ns))

    def _settle(self) -> None:
        self.host_ns = max(self.host_ns, self.device_free_ns)

    def _anchor(self) -> Anchor:
        self._settle()
        return Anchor(self._record(), self.host_ns)


@pytest.mark.parametrize("drift", [0.0, 1e-3, -1e-3])
def test_lead_is_remaining_device_work(drift: float) -> None:
    machine = Machine(drift)
    machine.clock.anchor()
    machine.clock.restart()
    for _ in range(5):
        machine.step(input_us=100, launch_us=400, device_us=2000)
        machine.clock.mark()
    series = machine.clock.series()
    assert series.input_ms == pytest.approx([0.1] * 5)
    assert series.host_ms == pytest.approx([0.4] * 5)
    # After the first step 1.6 ms of device work remain; the host's lead grows by 1.5 ms per step.
    assert series.lead_ms == pytest.approx([1.6, 3.1, 4.6, 6.1, 7.6], abs=1e-3)
    assert series.step_ms[1:] == pytest.approx([2.0 * (1 + drift)] * 4)


def test_slow_host_has_no_lead() -> None:
    machine = Machine()
    machine.clock.anchor()
    machine.clock.restart()
    for _ in range(4):
        machine.step(input_us=100, launch_us=3000, device_us=1000)
        machine.clock.mark()
    series = machine.clock.series()
    assert series.lead_ms == pytest.approx([0.0] * 4, abs=1e-9)
    assert series.step_ms == pytest.approx([3.1] * 4)


def test_host_times_of_excluded_step_are_excluded() -> None:
    machine = Machine()
    machine.clock.anchor()
    machine.clock.restart()
    for launch_us in (100, 200, 300):
        machine.step(input_us=10, launch_us=launch_us, device_us=50)
        if launch_us == 200:
            machine.clock.restart()  # the epoch ended during the step
        else:
            machine.clock.mark()
    series = machine.clock.series()
    assert series.host_ms == pytest.approx([0.1, 0.3])
    assert len(series.step_ms) == 2
    assert series.lead_ms is not None
    assert len(series.lead_ms) == 2


def test_lead_and_host_times_are_unknown_without_anchor_or_host_steps() -> None:
    machine = Machine()
    machine.clock.restart()
    machine.step(input_us=10, launch_us=10, device_us=10)
    machine.clock.mark()
    series = machine.clock.series()
    assert series.lead_ms is None
    record = series.record()
    assert record is not None
    assert record.lead_ms is None
    assert record.input_ms == (0.01,)
    machine.clock.restart()
    machine.clock.mark()  # jobs with user-defined step timing record no host steps
    assert machine.clock.series().record() is None
    assert UnprofiledSeries().record() is None


def test_extended_series_drops_quantities_that_a_block_lacks() -> None:
    first = UnprofiledSeries.from_steps([1.0], [HostStep(0, 1_000, 2_000)], [5_000.0])
    first.extend(UnprofiledSeries.from_steps([2.0], [HostStep(0, 1_000, 2_000)], [2_000.0]))
    assert (first.step_ms, first.lead_ms) == ([1.0, 2.0], [0.003, 0.0])
    first.extend(UnprofiledSeries.from_steps([3.0], [HostStep(0, 1_000, 2_000)], None))
    assert first.lead_ms is None
    assert first.host_ms == [0.001] * 3
    first.extend(UnprofiledSeries.from_steps([3.0], [None], None))
    assert first.record() is None


@given(
    st.lists(st.integers(1, 10_000_000), min_size=1, max_size=20),
    st.floats(-1e-3, 1e-3),
    st.integers(0, 10**15),
)
def test_marks_between_anchors_convert_to_host_clock(gaps_ns: list[int], drift: float, began_ns: int) -> None:
    true_ns = list(accumulate(gaps_ns))
    marks = [began_ns + at * (1 + drift) for at in [0, *true_ns]]
    placed = on_host_clock(
        marks, Anchor(marks[0], 7_000), Anchor(marks[-1], 7_000 + true_ns[-1]), lambda begin, end: (end - begin) / 1e6
    )
    # Device times are whole ns, or floats of lower precision after a long uptime.
    assert placed == pytest.approx([7_000 + at for at in [0, *true_ns]], abs=2.0)


def test_coinciding_anchors_convert_all_marks_to_their_instant() -> None:
    assert on_host_clock([5.0, 6.0], Anchor(5.0, 9), Anchor(5.0, 9), lambda begin, end: end - begin) == [9.0, 9.0]


def test_steps_before_series_record_host_time_with_empty_queue() -> None:
    machine = Machine()
    # The step lies before the anchor (both clocks read at once), so its host time is not recorded.
    machine.step(input_us=0, launch_us=700, device_us=2000)
    machine.clock.read()
    machine.clock.anchor()
    for launch_us in (400, 900):
        machine.step(input_us=100, launch_us=launch_us, device_us=2000)
    machine.clock.restart()
    for _ in range(3):
        machine.step(input_us=100, launch_us=2000, device_us=2000)
        machine.clock.mark()
    series = machine.clock.series()
    assert series.idle_host_ms == [0.4, 0.9]
    assert series.host_ms == [2.0] * 3
    record = series.record()
    assert record is not None
    assert record.idle_host_ms == (0.4, 0.9)
    machine.clock.restart()
    machine.step(input_us=100, launch_us=500, device_us=2000)
    machine.clock.mark()
    after = machine.clock.series()
    assert after.idle_host_ms == []
    after.extend(series)
    assert after.idle_host_ms == [0.4, 0.9]


def test_host_clock_records_no_idle_host_times() -> None:
    clock = host_clock()
    clock.anchor()
    clock.host_step(0, 0, 1000)
    clock.restart()
    clock.host_step(0, 0, 1000)
    clock.mark()
    assert clock.series().idle_host_ms == []
