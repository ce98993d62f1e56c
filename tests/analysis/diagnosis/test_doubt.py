"""Test when a finding about hosts is doubtful, with values just below and above each limit."""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.significance import Significance, half_width_ms
from gpudiag.model.analysis import Finding
from gpudiag.statistics import mean_of
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The mean of these steps is 8.3 ms above their median; the half-width of the mean's interval is 21.4 ms.
PAUSED = (90.0, 90.0, 90.0, 90.0, 90.0, 140.0)
EVEN = (100.0,) * 6


class Replay:
    """Fake the what-if simulation. A step takes 100 ms (recorded: 120 ms).

    `left_ms` maps the applied edits to the step time in ms at higher overhead, by default 90 ms.
    """

    corrected_ms = 100.0
    simulated_ms = 120.0
    per_event_ns = 1000.0
    corrected = frozenset[str]()

    def __init__(self, left_ms: Mapping[frozenset[str], float] | None = None, **graph: Any) -> None:
        self.left_ms = left_ms or {}
        self.graph = SimpleNamespace(**graph)
        self.asked: list[float] = []

    def at_cost(self, per_event_ns: float) -> Replay:
        self.asked.append(per_event_ns)
        return self

    def each_step_ms(self, many: Sequence[frozenset[str]]) -> list[float]:
        return [self.left_ms.get(costs, 90.0) for costs in many]


def edit(name: str) -> Any:
    return lambda _, costs: costs | {name}


def rank(
    number: int, *, step_ms: Sequence[float] = (), host_ms: Sequence[float] = (), lead_ms: Sequence[float] | None = None
) -> Any:
    unprofiled = SimpleNamespace(step_ms=tuple(step_ms), mean_ms=statistics.fmean(step_ms)) if step_ms else None
    timed = SimpleNamespace(host_ms=tuple(host_ms), lead_ms=lead_ms) if host_ms else None
    return SimpleNamespace(rank=number, unprofiled=unprofiled, timed=timed, device="cuda:0")


def significance(simulation: Any, recorded: Sequence[Sequence[float]] = (EVEN,), *ranks: Any) -> Significance:
    """Return the significance of findings for devices whose recorded steps take `recorded` ms.

    `ranks` are the ranks of the run record; without ranks there are no unprofiled steps.
    """
    tracks = [SimpleNamespace(step_ns=np.array(steps) * NS_PER_MS) for steps in recorded]
    timed = [rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None]
    case: Any = SimpleNamespace(
        timeline=SimpleNamespace(framework="pytorch"),
        attribution=SimpleNamespace(tracks=tracks),
        run=SimpleNamespace(ranks=ranks) if ranks else None,
        unprofiled_ms=max(timed, default=None),
    )
    return Significance(case, simulation)


def finding(code: str = "launch-bound", cause: str | None = "launch", gain_ms: float | None = None) -> Finding:
    return Finding(code=code, severity="info", ranks=(1,), cause=cause, recoverable_ms_per_step=gain_ms)


def doubt(of: Significance, gain_ms: float, found: Finding | None = None, before: Sequence[str] = ()) -> str:
    return of.doubt(found or finding(), gain_ms, [edit(name) for name in before], edit("it")) or ""


TIMED = (rank(0, step_ms=EVEN), rank(1, step_ms=EVEN))


def test_statistics_of_the_example_steps() -> None:
    assert statistics.fmean(PAUSED) - statistics.median(PAUSED) == pytest.approx(8.333, abs=1e-3)
    assert half_width_ms(PAUSED) == pytest.approx(mean_of(PAUSED, as_measured=True).half_width)
    assert half_width_ms(PAUSED) == pytest.approx(21.4, abs=0.1)
    assert half_width_ms(PAUSED[-1:]) == half_width_ms(()) == 0
    assert half_width_ms(PAUSED[-2:]) > 0


@pytest.mark.parametrize(("gain_ms", "doubted"), [(4.9, False), (5.0, True), (13.3, True), (13.35, False)])
def test_savings_in_the_median_step_are_not_chance(gain_ms: float, *, doubted: bool) -> None:
    reason = doubt(significance(Replay(), [EVEN], rank(0, step_ms=PAUSED)), gain_ms)
    assert ("may be chance" in reason) == doubted
    if doubted:
        assert f"would save {gain_ms:.1f} ms" in reason
        assert "21.4 ms may be chance" in reason


@pytest.mark.parametrize(("gain_ms", "doubted"), [(21.3, True), (21.5, False)])
def test_savings_above_the_interval_are_not_chance(gain_ms: float, *, doubted: bool) -> None:
    """Savings are not chance if they exceed the interval's half-width of 21.4 ms."""
    simulation = Replay()
    simulation.corrected_ms = 270.0
    only = significance(simulation, [EVEN], rank(0, step_ms=PAUSED))
    assert ("may be chance" in doubt(only, gain_ms)) == doubted


def test_recorded_and_unprofiled_steps_scatter_independently() -> None:
    steps = [EVEN, tuple(2 * step_ms for step_ms in PAUSED), ()]
    recorded = significance(Replay(), steps)
    assert recorded.slowest_track_ms == [2 * step_ms for step_ms in PAUSED]
    assert recorded.timed_ms == []
    # The scatter of recorded steps is scaled to the step without profiler overhead.
    assert recorded.chance_ms == pytest.approx(2 * half_width_ms(PAUSED) * 100 / 120)
    assert recorded._skew_ms == pytest.approx(2 * 8.3333 * 100 / 120, abs=1e-3)
    both = significance(Replay(), steps, rank(0, step_ms=EVEN), rank(1, step_ms=PAUSED), rank(2))
    assert both.timed_ms == [EVEN, PAUSED]
    assert both.chance_ms == pytest.approx(half_width_ms(PAUSED) * np.hypot(2 * 100 / 120, 1))
    assert both._skew_ms == pytest.approx(8.3333, abs=1e-3)
    assert significance(Replay(), [()]).chance_ms == 0


@pytest.mark.parametrize(
    ("code", "cause", "asked"),
    [
        ("launch-bound", None, True),
        ("straggler", "launch", True),
        ("straggler", "operators", True),
        ("straggler", "input", False),
        ("host-stall", "launch", False),
    ],
)
def test_only_findings_about_host_work_are_doubted(code: str, cause: str | None, *, asked: bool) -> None:
    of = significance(Replay(), [EVEN], rank(0, step_ms=PAUSED))
    assert bool(doubt(of, 6.0, finding(code, cause))) == asked


@pytest.mark.parametrize(("left_ms", "doubted"), [(95.0, False), (94.9, True), (80.0, True)])
def test_finding_without_unprofiled_steps_must_survive_higher_overhead(left_ms: float, *, doubted: bool) -> None:
    simulation = Replay({frozenset(): left_ms, frozenset({"it"}): 90.0})
    reason = doubt(significance(simulation), 10.0)
    assert simulation.asked == [1300.0]
    assert bool(reason) == doubted
    if doubted:
        assert reason.startswith("If the profiler adds 1.3 µs per event, fixing launch-bound (launch) saves only ")
        assert f"only {max(left_ms - 90, 0):.1f} ms per step; otherwise, at the estimated 1.0 µs, 10.0 ms." in reason
        assert reason.endswith("as `gpudiag profile` does.")


def test_smaller_finding_must_survive_higher_overhead() -> None:
    simulation = Replay({frozenset({"waste"}): 60.0, frozenset({"waste", "it"}): 58.0})
    of = significance(simulation, [EVEN], *TIMED)
    assert doubt(of, 10.0) == ""
    assert simulation.asked == []
    reason = doubt(of, 10.0, before=["waste"])
    assert "saves only 2.0 ms per step; otherwise, at the estimated 1.0 µs, 10.0 ms." in reason
    assert reason.endswith("Fix the larger findings and record again.")
    enough = Replay({frozenset({"waste"}): 60.0, frozenset({"waste", "it"}): 55.0})
    assert doubt(significance(enough, [EVEN], *TIMED), 10.0, before=["waste"]) == ""


def hosts(*each: tuple[Sequence[float], Sequence[float]], steps: int = 2) -> dict[str, Any]:
    """Return the graph of processes, each given as (ms, recorded events) of its host nodes over all steps."""
    process = np.repeat(np.arange(len(each)), [len(busy) for busy, _ in each])
    host = SimpleNamespace(
        process=process,
        busy=np.concatenate([np.array(busy) for busy, _ in each]) * NS_PER_MS,
        events=np.concatenate([np.array(events) for _, events in each]),
    )
    return {"host": host, "steps": steps, "ranks": {index: index for index in range(len(each))}}


#: Process 1 records as many events as the other two processes, and takes slightly longer.
ALIKE = hosts(([40, 40], [400, 400]), ([48, 48], [400, 400]), ([41, 41], [400, 400]))


@pytest.mark.parametrize(("gain_ms", "doubted"), [(19.9, True), (20.0, True), (20.1, False)])
def test_slower_host_may_have_higher_overhead(gain_ms: float, *, doubted: bool) -> None:
    """Profiler overhead takes 20 ms per step, and more on the slower host if its overhead per event is higher."""
    left = {frozenset[str](): 100.0, frozenset({"it"}): 80.0}
    result = doubt(significance(Replay(left, **ALIKE)), gain_ms, finding("straggler", "launch", gain_ms))
    assert bool(result) == doubted
    if doubted:
        assert (
            f"1.0 µs per event on every rank, fixing straggler (launch) saves {gain_ms:.1f} ms per step; oth" in result
        )
        assert "more (it adds 20.0 ms in all), 0.0 ms: its CPU does no more work than the others." in result


@pytest.mark.parametrize(
    ("late", "doubted"),
    [
        # The usual host takes 0.1025 ms per event (41 ms for 400 events). Half of the savings, 5 ms, equals the time of
        # 48.8 events.
        (([48, 48], [448, 448]), True),
        (([48, 48], [449, 449]), False),
        # A host that takes 1.5 times as long as the usual host probably lost its CPU core.
        (([61.4, 61.4], [400, 400]), True),
        (([61.6, 61.6], [400, 400]), False),
        (([20, 20], [10, 10]), True),
        (([41, 41], [1000, 1000]), False),
    ],
)
def test_host_with_more_events_or_a_lost_core_is_not_doubted(
    late: tuple[Sequence[float], Sequence[float]], *, doubted: bool
) -> None:
    graph = hosts(([40, 40], [400, 400]), late, ([41, 41], [400, 400]), ([43, 43], [401, 401]))
    left = {frozenset[str](): 100.0, frozenset({"it"}): 80.0}
    assert bool(doubt(significance(Replay(left, **graph)), 10.0, finding("straggler", "launch", 10.0))) == doubted


@pytest.mark.parametrize(("events", "doubted"), [(2.45, True), (2.47, False)])
def test_events_and_times_are_per_step(events: float, *, doubted: bool) -> None:
    """The usual host takes 20.5 ms per event (41 ms for 2 events).

    Half of the savings, 9.5 ms, equals the time of 0.46 events.
    """
    graph = hosts(([40, 40], [2, 2]), ([48, 48], [events, events]), ([41, 41], [2, 2]))
    left = {frozenset[str](): 100.0, frozenset({"it"}): 80.0}
    assert bool(doubt(significance(Replay(left, **graph)), 19.0, finding("straggler", "launch", 19.0))) == doubted


def test_hosts_without_events_have_no_time_per_event() -> None:
    left = {frozenset[str](): 100.0, frozenset({"it"}): 80.0}
    graph = hosts(([40], [0]), ([48], [0]), ([41], [0]), steps=0)
    assert "no more work" in doubt(significance(Replay(left, **graph)), 10.0, finding("straggler", "launch", 10.0))


@pytest.mark.parametrize(("late_ms", "doubted"), [(55.0, False), (54.9, True)])
def test_hosts_that_differ_in_unprofiled_steps_are_not_doubted(late_ms: float, *, doubted: bool) -> None:
    """Hosts differ if one host takes longer than all others by half of the finding's 10 ms."""
    timed = (
        rank(0, step_ms=EVEN, host_ms=(50.0, 50.0)),
        rank(1, step_ms=EVEN, host_ms=(late_ms, late_ms)),
        rank(2, step_ms=EVEN, host_ms=(51.0, 49.0)),
    )
    result = doubt(significance(Replay(**ALIKE), [EVEN], *timed), 10.0, finding("straggler", "launch", 10.0))
    assert result.endswith("the ranks' CPUs differ less in the unprofiled steps.") == doubted
    assert bool(result) == doubted
    # The savings of the finding are unknown.
    assert not doubt(significance(Replay(**ALIKE), [EVEN], *timed), 10.0, finding("straggler", "launch", None))


def test_host_without_lead_among_hosts_with_lead_is_not_doubted() -> None:
    timed = tuple(
        rank(number, step_ms=EVEN, host_ms=(50.0, 50.0), lead_ms=(lead, lead))
        for number, lead in enumerate((45, 0, 45))
    )
    assert not doubt(significance(Replay(**ALIKE), [EVEN], *timed), 10.0, finding("straggler", "launch", 10.0))
