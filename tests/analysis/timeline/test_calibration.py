"""Test that each threshold of the timeline has a source, and that outcomes just below and just above it differ.

`CASES.of(NAME)` registers a function that is called with a value just below and just above the threshold NAME.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gpudiag.analysis.timeline import (
    alignment,
    calibration,
    collectives,
    completeness,
    mixed_runs,
    point_to_point,
    process_groups,
    steps,
)
from gpudiag.analysis.timeline.alignment import CollectiveSequence, _equally_good, _Fit, _fit
from gpudiag.analysis.timeline.completeness import DeviceActivity
from gpudiag.analysis.timeline.steps import device_windows
from gpudiag.analysis.timeline.validity import _clocks, _steps
from gpudiag.model.event import CollectiveCall, ProcessGroup, Role
from gpudiag.model.timeline import SAME_CLOCK_NS, UNKNOWN, HostSteps
from gpudiag.units import NS_PER_MS, NS_PER_US
from tests.calibration_cases import KINDS, Cases, figures_in, numbers_in
from tests.timeline_builder import TraceBuilder

FOLDER = Path(alignment.__file__).parent
CASES = Cases(calibration)
#: Constants that may be outside of calibration.py: limits of time, memory, and the number of drawn spans.
BOUNDS = {"_WIDEST_LAG", "_VOTERS", "_MOST_CANDIDATES", "_CLASS_OF", "_MOST_SHOWN", "_ORDINARY_ROLE", "_THREE"}
DRAWN = {"_MOST_SPANS", "_MOST_DEPTH", "_MOST_LINE_DEPTH", "_MOST_RANKS", "_LONGEST_NAME", "_HOST_KINDS"}
DRAWN |= {"_MOST_OTHERS", "_TYPICAL", "_SEEN_WAIT", "_MOST_WAITS"}


def fit(pairs: int, *, offset: int = 0, spread: float = 10 * NS_PER_US, coverage: float = 1.0) -> _Fit:
    return _Fit(np.arange(pairs), np.arange(pairs), offset, spread, coverage, believable=True)


def seen(matching: float, offset: int) -> _Fit:
    """Return the fit of two traces of 100 collectives, of which the share `matching` ends at the same time."""
    end = np.arange(100) * NS_PER_MS
    other = end + np.where(np.arange(100) < round(100 * matching), 0, NS_PER_MS // 2) + offset
    kinds, symmetric = np.zeros(100, np.int64), np.ones(100, np.bool_)
    first, second = (
        CollectiveSequence(start=times, end=times, signature=kinds, symmetric=symmetric) for times in (end, other)
    )
    return _fit(first, second, offset, calibration.LEAST_TOLERANCE_NS)


@CASES.of("LEAST_TOLERANCE_NS")
def distinct_offsets(at: float) -> object:
    return len(_equally_good([fit(20), fit(20, offset=int(at))]))


@pytest.mark.parametrize(("residual_ns", "reported"), [(SAME_CLOCK_NS, False), (SAME_CLOCK_NS + 1, True)])
def test_clocks_that_differ_by_more_than_the_limit_are_reported(residual_ns: int, *, reported: bool) -> None:
    matching: Any = Of(clocks=[Of(rank=1, residual_ns=residual_ns)], ambiguous=False)
    assert bool(_clocks(matching)) == reported


@CASES.of("CORRECTED_NS")
def corrected_clock(at: float) -> object:
    track: Any = Of(trace=0, rank=0, on_host=False, source="")
    pair: Any = Of(
        group=("", ()), a=0, b=1, alignment=Of(a=np.arange(9), b=np.arange(9), offset_ns=int(at), residual_ns=1)
    )
    offsets, _ = collectives._clock_offsets([track, Of(trace=1, rank=1, on_host=False, source="")], [pair])  # type: ignore[list-item]
    return any(offsets)


CASES.of("MATCHED_SHARE", 0.49, 0.51)(lambda at: seen(at, 0).believable)
CASES.of("TO_MOVE_A_CLOCK", 0.74, 0.76)(lambda at: seen(at, 10 * NS_PER_MS).believable)
CASES.of("NEARLY_ALL")(lambda at: len(_equally_good([fit(20), fit(20, offset=NS_PER_MS, coverage=at)])))
CASES.of("EQUALLY_GOOD")(lambda at: len(_equally_good([fit(20), fit(20, offset=NS_PER_MS, spread=at * 10_000)])))
CASES.of("FINEST_SPREAD_NS")(lambda at: len(_equally_good([fit(20, spread=1), fit(20, offset=NS_PER_MS, spread=at)])))
CASES.of("TELLING")(
    lambda at: len(_equally_good([fit(at, spread=1), fit(at, offset=NS_PER_MS, spread=float(NS_PER_MS))]))
)


@CASES.of("FEWEST_SEEN")
def matched_by_chance(at: int) -> object:
    member: Any = Of(ends=np.arange(at), instances=np.full(at, UNKNOWN))
    return mixed_runs._matches(member, np.ones(at, np.bool_), few_others=False)


@CASES.of("FEWEST_REPEATS")
def repeated(at: int) -> object:
    rows = np.arange(at)
    zero = np.zeros(at, np.int64)
    events: Any = Of(role=np.full(at, Role.OPTIMIZER), name=zero, thread=zero, end_ns=rows * 10)
    return steps._after_optimizer(events) is None


@CASES.of("PERIOD_APART", 20 / 1000, 21 / 1000)
def pattern(at: float) -> object:
    """Return whether a pattern is rejected if its last repetition is later than the other repetitions."""
    count = 3500 + round(1000 * at)
    names = np.arange(1, count + 1)
    names[[0, 1000, 2000, 3000 + round(1000 * at)]] = 0
    events: Any = Of(start_ns=np.arange(count), end_ns=np.arange(count), thread=np.zeros(count, np.int64))
    return steps._repeating(events, np.arange(count), names.astype(np.int32)) is None


@CASES.of("FEW_STEPS")
def analysed(at: int) -> object:
    track: Any = Of(window_steps=np.arange(at), steps=Of(source="ProfilerStep"))
    return [warning.code for warning in _steps([], [track])]


CASES.of("LOST_SHARE")(lambda at: DeviceActivity(10_000, round(10_000 * at), missing=False).lossy)
CASES.of("FEWEST_LOST")(lambda at: DeviceActivity(10, at, missing=False).lossy)


@CASES.of("FEWEST_DURATIONS", 99, 100)
def same_recording(at: int) -> object:
    events = mock.MagicMock(start_ns=np.zeros(200, np.int64), end_ns=np.arange(200) % at)
    events.__len__.return_value = 200
    events.columns.return_value = {"end_ns": events.end_ns}
    first, second = (Of(source=source, origin_ns=0, events=events) for source in ("a", "b"))
    return mixed_runs._original(second, [first])  # type: ignore[arg-type, list-item]


@CASES.of("RUNS_APART_NS")
def pause_between_recordings(at: float) -> object:
    events = TraceBuilder().operator(0, 5).build().events
    starts = (10**18, 10**18 + int(events.end_ns.max()) + int(at))
    traces: Any = [Of(source=f"{start}.json", origin_ns=start, events=events) for start in starts]
    return bool(mixed_runs._recorded_apart(traces, [Of(end_ns=int(events.end_ns.max()))] * 2, []))  # type: ignore[list-item]


@CASES.of("LEAST_UNIX_NS")
def clock_since_1970(at: float) -> object:
    events = TraceBuilder().operator(0, 5).build().events
    traces: Any = [Of(source=f"{start}.json", origin_ns=start, events=events) for start in (int(at), 2 * 10**17)]
    return bool(mixed_runs._recorded_apart(traces, [Of(end_ns=int(events.end_ns.max()))] * 2, []))  # type: ignore[list-item]


@CASES.of("THIN_SHARE")
def recorded_share(at: float) -> object:
    track: Any = Of(rank=0, trace=0, bounds=np.array([0, 1]))
    with mock.patch.object(completeness, "_recorded_share", return_value=at):
        return bool(completeness.thin_recording([Of(framework="pytorch")], [Of()], [track]))  # type: ignore[list-item]


@CASES.of("COVERED_SHARE")
def represented_share(at: float) -> object:
    busy = np.array([0, 1000])
    ops = Of(start=busy[:1], end=busy[1:], step=np.zeros(1), launch_start=busy[:1])
    track: Any = Of(
        is_cpu=False, bounds=busy, ops=ops, collectives=None, steps=Of(source="ProfilerStep", thread=1), threads={}
    )
    return bool(completeness.partial_coverage([track], [at]))


def three_steps(ops_of_last: int, latency_ns: int) -> list[int]:
    """Return which of three steps have a window. The first two have 100 ops. Ops start `latency_ns` after a launch."""
    counts = (100, 100, ops_of_last)
    step = np.repeat(np.arange(3), counts)
    start = np.concatenate([1_000_000 * number + 1_000 * np.arange(count) for number, count in enumerate(counts)])
    ops: Any = Of(step=step, start=start, end=start + 1_000, launch_end=start - latency_ns)
    marks = HostSteps(
        start=1_000_000 * np.arange(3) - latency_ns,
        number=np.arange(3),
        end=2_000_001,
        source="x",
        thread=1,
        ends_known=True,
    )
    return [int(number) for number in device_windows(ops, marks).steps]


@CASES.of("ALIKE_OPS", 0.1, 0.11)
def whole_step(at: float) -> object:
    return three_steps(100 - round(100 * at), latency_ns=NS_PER_MS)


@CASES.of("AT_ONCE_NS")
def idle_device(at: float) -> object:
    return three_steps(50, latency_ns=int(at))


@CASES.of("AS_CLOSE")
def group_of_three(at: float) -> object:
    """Return the inferred group of a collective that ends 100 ns later on rank 1, and `at` x 100 ns later on rank 2."""
    call = CollectiveCall(row=0, operation="all_reduce")
    track: Any = Of(rank=0, calls=(call,), end=np.array([10_000]))
    ends = {1: {"all_reduce": np.array([10_100])}, 2: {"all_reduce": np.array([10_000 + round(100 * at)])}}
    groups = {"pair": ProcessGroup((0, 1)), "all": ProcessGroup((0, 1, 2))}
    return process_groups._group_of_thread(track, [0], groups, ends)


@CASES.of("NOT_BY_CHANCE")
def group_beside_a_nearer_pair(at: float) -> object:
    """Return the inferred group of a collective that ends at once on ranks 0 and 1, and `at` x 1000 ns later on rank 2.

    The next collective follows after 4000 ns.
    """
    call = CollectiveCall(row=0, operation="all_reduce")
    track: Any = Of(rank=0, calls=(call,), end=np.array([10_000]))
    late = 10_000 + round(1000 * at)
    ends = {1: {"all_reduce": np.array([10_000, 14_000])}, 2: {"all_reduce": np.array([late, late + 4_000])}}
    groups = {"pair": ProcessGroup((0, 1)), "all": ProcessGroup((0, 1, 2))}
    return process_groups._group_of_thread(track, [0], groups, ends)


@CASES.of("TWICE_AS_OFTEN")
def neighbours_of_last(at: float) -> object:
    return process_groups._neighbours(2, (0, 1, 2), {0: 1000, 1: round(1000 * at), 2: 1000})


@CASES.of("SHORT_PASS")
def pass_before_send(at: float) -> object:
    """Return whether a send belongs to backward, if forward compute of `at` ms precedes it."""
    work = round(at * NS_PER_MS)
    builder = TraceBuilder().operator(0, 1_000, name="autograd::engine::evaluate_function: MulBackward0")
    events = builder.operator(1_001, 1_001 + work // 1_000).build().events
    sends = CollectiveCall(row=0, operation="send")
    start = np.array([0, NS_PER_MS + 500, NS_PER_MS + 2_000 + work])
    track: Any = Of(calls=(sends,) * 3, start=start, row=np.zeros(3, np.int64))
    return process_groups._in_backward(track, events, [1, 2])[1]


@CASES.of("WIDEST_SHIFT", 64, 65)
def late_capture(at: float) -> object:
    """Return whether messages are matched if the receiver's trace begins `at` messages later."""
    begun = NS_PER_MS * np.arange(400)
    return point_to_point._shift(begun, begun[round(at) :] + 1_000) == round(at)


@pytest.mark.parametrize("name", CASES.known)
def test_outcomes_just_below_and_just_above_a_threshold_differ(name: str) -> None:
    assert CASES.differ(name)


def test_every_threshold_has_a_source_and_cases() -> None:
    figures = figures_in(FOLDER / "calibration.py")
    assert set(CASES.known) == set(figures)
    assert {name: text for name, text in figures.items() if not any(kind in text for kind in KINDS)} == {}


def test_no_threshold_is_outside_calibration() -> None:
    elsewhere = {name for path in FOLDER.rglob("*.py") if path.name != "calibration.py" for name in numbers_in(path)}
    assert elsewhere <= BOUNDS | DRAWN
