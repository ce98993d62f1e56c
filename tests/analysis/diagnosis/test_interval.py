"""Test each effect that widens the interval of the step time, one at a time, in jobs of a few numbers."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.significance import half_width_ms, interval_ms
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.intervals import as_set
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Spans = tuple[tuple[int, int], ...]

#: Recorded and unprofiled steps agree within 2 % of a step of 100 ms, or 3 % if there are no unprofiled steps.
ALIKE, ALIKE_ALONE = 2.0, 3.0


def spans(ms: Spans) -> Any:
    return as_set([(start * NS_PER_MS, end * NS_PER_MS) for start, end in ms])


def track(
    *, is_cpu: bool = False, transfer: Spans = (), ops: Spans = (), collectives: Spans = (), steps: int = 2
) -> Any:
    """Make a track with `ops` and `collectives`, and its attribution with `transfer`; all three are spans in ms."""
    return (
        SimpleNamespace(is_cpu=is_cpu, ops=spans(ops), collectives=spans(collectives)),
        SimpleNamespace(parts={"communication_transfer": spans(transfer)}, step_ns=np.zeros(steps)),
    )


#: Parts of a job that do not matter in these tests.
NOTHING: dict[str, Any] = dict.fromkeys(("blocking", "latency", "gap", "duration", "transfer"), np.zeros(0))


class Job:
    """A job whose corrected step takes 100 ms, and whose hosts take 4 µs per event.

    `asked` has the tried overheads per event in ns, and `paces` the columns (busy, waiting) of each scenario
    with another host speed.
    """

    def __init__(
        self,
        *,
        steps: Sequence[float] = (100.0, 100.0),
        recorded: float = 100.0,
        simulated: float = 100.0,
        chance: float = 0.0,
        timed: Sequence[tuple[float, ...]] = (),
        tracks: Sequence[Any] = (track(),),
        cheap: float = 100.0,
        dear: float = 100.0,
        profiler: float = 0.0,
        per_event_ns: float = 1270.0,
        busy: Sequence[float] = (40.0, 60.0),
        slow: Sequence[float] = (0.0, 0.0),
        process: Sequence[int] = (0, 0),
        events: Sequence[int] = (10_000, 15_000),
        of_steps: int = 2,
        at_other_times: tuple[float, float] = (100.0, 100.0),
        input_not_recorded: float = 0.0,
    ) -> None:
        """Set times in ms.

        Args:
            steps, timed: steps of the slowest track, and unprofiled steps of each rank.
            recorded, simulated: mean step of the recording, and of its simulation.
            chance, tracks: half-width of the interval from the scatter of steps; results of `track`.
            cheap, dear: step at the lowest and at the highest possible overhead.
            profiler: overhead in the first host node at the highest possible overhead per event.
            per_event_ns: estimated overhead per event.
            busy, slow, process, events: columns of the host nodes of a graph of `of_steps` steps.
            at_other_times: step if hosts are faster, and if they are slower.
            input_not_recorded: wait for input that only unprofiled steps have.
        """
        self.slowest_track_ms, self.timed_ms, self.chance_ms = list(steps), list(timed), chance
        self.case = SimpleNamespace(
            slowest_ms=recorded,
            tracks=[one for one, _ in tracks],
            attribution=SimpleNamespace(tracks=[one for _, one in tracks]),
        )
        host = SimpleNamespace(
            busy=np.array(busy) * NS_PER_MS,
            slow=np.array(slow) * NS_PER_MS,
            process=np.array(process),
            events=np.array(events),
        )
        graph = SimpleNamespace(host=host, steps=of_steps, ranks={number: number for number in sorted({*process})})
        busy = host.busy - np.array([profiler, 0.0]) * NS_PER_MS
        left = SimpleNamespace(corrected_ms=dear, host_corrected=SimpleNamespace(busy=busy))
        self.asked: list[float] = []

        def at_cost(each: float) -> Any:
            self.asked.append(each)
            return SimpleNamespace(corrected_ms=cheap) if len(self.asked) == 1 else left

        def each_step_ms(costs: Iterable[Any]) -> list[float]:
            self.paces = [(costs.busy.tolist(), costs.waiting.tolist()) for costs in costs]
            return list(at_other_times)

        self.what_if = SimpleNamespace(
            corrected=Scenario(busy=np.array([26.0, 13.0]), waiting=np.array([1.3, 0.0]), **NOTHING),
            corrected_ms=100.0, simulated_ms=simulated, per_event_ns=per_event_ns, graph=graph, at_cost=at_cost,
            each_step_ms=each_step_ms, input_not_recorded_ms=input_not_recorded,
        )  # fmt: skip

    def interval(self) -> Any:
        this: Any = self
        return pytest.approx(interval_ms(this))


def around(below: float, above: float | None = None, *, timed: object = ()) -> tuple[float, float]:
    alike = ALIKE if timed else ALIKE_ALONE
    return 100 - below - alike, 100 + (below if above is None else above) + alike


def test_single_step_has_no_interval() -> None:
    this: Any = Job(steps=[100.0])
    assert interval_ms(this) is None


def test_interval_without_scatter_is_the_general_tolerance() -> None:
    assert Job().interval() == around(0)
    assert Job(timed=[(100.0, 100.0)]).interval() == around(0, timed=True)


@pytest.mark.parametrize("timed", [[], [(100.0, 100.0)]])
def test_scatter_and_simulation_error_widen_the_interval(timed: list[tuple[float, ...]]) -> None:
    assert Job(chance=3, timed=timed).interval() == around(3, timed=timed)
    assert Job(recorded=104, timed=timed).interval() == around(4, timed=timed)
    assert Job(recorded=96, timed=timed).interval() == around(4, timed=timed)
    assert Job(simulated=110, recorded=113, chance=4, timed=timed).interval() == around(5, timed=timed)
    assert Job(chance=150, timed=timed).interval() == (0, 252 if timed else 253)


def test_interval_includes_unprofiled_steps_of_the_slowest_rank() -> None:
    fast, slow = (80.0, 81.0), (89.0, 90.0, 91.0)
    assert Job(timed=[fast, slow]).interval() == (90 - half_width_ms(slow), 102)
    late = (119.0, 120.0, 121.0)
    assert Job(timed=[fast, late]).interval() == (98, 120 + half_width_ms(late))
    wild = (1.0, 20.0, 400.0)
    assert Job(timed=[wild]).interval() == (0, statistics.fmean(wild) + half_width_ms(wild))


def test_interval_includes_input_of_unprofiled_steps() -> None:
    timed = (119.9, 120.0, 120.1)  # the steps of `timed` scatter by less than 2 % of 120 ms
    assert Job(timed=[timed], input_not_recorded=20).interval() == (117.6, 122.4)


def test_interval_covers_profiler_overhead_without_unprofiled_steps() -> None:
    assert Job(dear=90, cheap=105).interval() == around(10, 5)
    assert Job(dear=90, cheap=105, chance=7.5, recorded=110).interval() == around(
        math.hypot(10, 7.5, 10), math.hypot(5, 7.5, 10)
    )
    # Higher overhead must not lengthen the step, and lower overhead must not shorten it.
    assert Job(dear=105, cheap=90).interval() == around(0)
    assert Job(dear=-20).interval() == (0, 103)
    assert Job(chance=120).interval() == (0, 223)


def test_interval_covers_speed_changes_of_hosts() -> None:
    job = Job(at_other_times=(80, 130))
    assert job.interval() == around(20, 30)
    # Host work and waits vary by a factor of 1.3 in both directions, except waits for devices.
    (fast, waits), (slow, longer) = job.paces
    assert (fast, waits) == (pytest.approx([20, 10]), pytest.approx([1, 0]))
    assert (slow, longer) == (pytest.approx([33.8, 16.9]), pytest.approx([1.69, 0]))
    assert Job(at_other_times=(80, 130), chance=15, dear=40).interval() == around(
        math.hypot(15, 20, 60), math.hypot(15, 30)
    )
    # If the simulated step of a faster host is not shorter, it sets no lower bound. With unprofiled steps, no bounds
    # from faster or slower hosts are needed.
    assert Job(at_other_times=(101, 99)).interval() == around(0)
    assert Job(at_other_times=(80, 130), timed=[(100.0, 100.0)]).interval() == around(0, timed=True)


@pytest.mark.parametrize(
    ("per_event_ns", "busy", "costs"),
    [
        # The measured limit of the overhead is half of the time per event (`busy`). The overhead may be half or twice
        # the estimate, or half or twice the limit.
        (1270, 4000, (635, 4000)),  # half of the estimate, and twice the limit of 2 µs
        (1270, 2000, (500, 2540)),  # half of the limit of 1 µs, and twice the estimate
        (1270, 0, (635, 2540)),  # the time per event is unknown
        (3000, 4000, (1000, 5000)),  # the upper bound is at most 5 µs
        (6000, 4000, (1000, 6000)),  # the upper bound is the estimate if that is above 5 µs
    ],
)
def test_overhead_may_be_half_or_twice_the_estimate(
    per_event_ns: float, busy: float, costs: tuple[float, float]
) -> None:
    each = busy / NS_PER_MS
    job = Job(per_event_ns=per_event_ns, busy=[each, 3 * each], events=[1, 3])
    job.interval()
    assert tuple(job.asked) == pytest.approx(costs)


def test_hosts_without_events_have_the_estimated_overhead() -> None:
    job = Job(events=[0, 0])
    job.interval()
    assert job.asked == [635, 2540]


def test_untraced_communication_time_scales_with_host_work() -> None:
    """The profiler takes half of the step, so it may also take half of the 10 ms of communication per step."""
    of: dict[str, Any] = {"profiler": 50, "dear": 100}
    assert Job(tracks=[track(transfer=((0, 20),))], **of).interval() == around(5, 0)
    seen = track(transfer=((0, 20),), ops=((2, 6),), collectives=((4, 10),))
    assert Job(tracks=[seen], **of).interval() == around(3, 0)
    more = track(transfer=((0, 40),), steps=4)
    assert Job(tracks=[seen, more, track()], **of).interval() == around(5, 0)
    # Communication on devices counts, but that of communication threads in CPU processes does not.
    cpu = track(is_cpu=True, transfer=((0, 20),))
    assert Job(tracks=[cpu, track()], **of).interval() == around(5, 0)
    assert Job(tracks=[cpu], **of).interval() == around(0)
    assert Job(tracks=[track(transfer=((0, 20),), steps=0)], **of).interval() == around(10, 0)


def test_slow_calls_scale_with_host_work() -> None:
    # The profiler takes 45 ms, which is half of the 90 ms outside of slow calls.
    assert Job(profiler=45, slow=[10, 0]).interval() == around(2.5, 0)
    assert Job(profiler=45, slow=[10, 0], dear=98).interval() == around(4.5, 0)
    # The process with the longest slow calls counts. Slow calls take at most as long as the host was busy.
    assert Job(profiler=25, slow=[10, 40], process=[0, 1]).interval() == around(10, 0)
    assert Job(profiler=30, slow=[80, 0]).interval() == around(20, 0)
    assert Job(profiler=45, slow=[10, 0], of_steps=0).interval() == around(5, 0)
    # The overhead is at most the whole time.
    assert Job(profiler=400, slow=[10, 0]).interval() == around(5, 0)


@pytest.mark.parametrize(
    ("steps", "drift"),
    [
        ((99.0, 101.0, 99.0, 101.0, 99.0, 101.0), 6 * 1.0954 / 100),
        ((99.0, 101.0) * 4, 6 * 1.0690 / 100),
        ((99.0, 100.0, 101.0), 6 * 4.3027 / 2.5706 * 1.0 / 100),  # with three steps the estimate is less certain
        ((50.0, 150.0, 50.0, 150.0, 50.0, 150.0), 1.0),  # the drift is at most a factor of e
    ],
)
def test_cpu_processes_drift_by_a_multiple_of_their_scatter(steps: tuple[float, ...], drift: float) -> None:
    low, high = 100 * (1 - math.exp(-drift)), 100 * (math.exp(drift) - 1)
    job: Any = Job(steps=steps, tracks=[track(is_cpu=True)], chance=55)
    assert interval_ms(job) == pytest.approx(around(low, high), rel=1e-3)
    # If one of the tracks is a device, only the scatter of recorded steps counts.
    assert Job(steps=steps, tracks=[track(is_cpu=True), track()], chance=55).interval() == around(55)
