"""Test why a rank is late and what is reported, with a few numbers instead of a simulation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.rules import late_cause, straggler
from gpudiag.analysis.diagnosis.rules.late_cause import MoreOperators, OwnPauses, cause_of, stall_by_own_pauses
from gpudiag.analysis.diagnosis.rules.rule import CannotTell
from gpudiag.analysis.diagnosis.rules.straggler import Straggler
from gpudiag.analysis.diagnosis.simulation import what_if as what_if_module
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if
from gpudiag.analysis.timeline import build_timeline
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpudiag.model.analysis import Finding

Patch = pytest.MonkeyPatch


def excess_in(by_part: Mapping[str, Mapping[int, float]], steps: int = 2) -> Callable[[Any, str], Any]:
    """Fake `excess_of`: return each rank's excess from `by_part` (component → rank → ms), the same in each step."""

    def of(_: Any, part: str) -> Any:
        by_rank = {rank: 1e6 * ms for rank, ms in by_part.get(part, {0: 0.0, 1: 0.0}).items()}
        return SimpleNamespace(
            by_rank=by_rank,
            by_step={rank: (ns,) * steps for rank, ns in by_rank.items()},
            steady=lambda rank: by_rank[rank] > 0,
        )

    return of


def cause(
    patch: Patch,
    gain: float,
    alone: dict[str, float],
    *,
    differ: str = " ".join(COMPONENTS),
    others: float | None = None,
    throughout: float = 0.0,
    few: bool = True,
) -> str:
    """Return the cause of lateness of ranks that differ in the components `differ`.

    Equalizing all components saves `gain` ms, `alone` maps each component to the savings of equalizing only it, and
    equalizing all but the largest saves `others` (by default `gain`). `throughout` is the savings of equalizing all
    host components. `few`: few operators cause the host's delay.
    """
    best = max(alone, key=lambda part: alone[part])

    def gained(parts: frozenset[str]) -> float:
        if len(parts) == 1:
            return sum(alone.get(part, 0.0) for part in parts)
        if parts == {"launch", "operators", "stall"}:
            return throughout
        assert parts == {*COMPONENTS} - {best}
        return gain if others is None else others

    patch.setattr(late_cause, "equalized", lambda _of, _costs, parts, **_: frozenset(parts))
    patch.setattr(late_cause, "excess_of", excess_in({part: {0: 0.0, 1: 5.0} for part in differ.split()}))
    patch.setattr(late_cause, "few_slow_calls", lambda *_: {"mm": (1.0, 1.0)} if few else {})
    what_if: Any = SimpleNamespace(
        corrected=None,
        corrected_ms=100.0,
        graph=SimpleNamespace(ranks={0: 0, 1: 1}),
        savings_ms=lambda many: [gained(scenario) for scenario in many],
        saving_ms=gained,
    )
    found, by_part = cause_of(SimpleNamespace(), what_if, gain, False)  # type: ignore[arg-type]  # unused here
    assert by_part == {part: alone.get(part, 0.0) for part in COMPONENTS}
    return found


def test_component_with_half_of_the_savings_is_the_cause(monkeypatch: Patch) -> None:
    assert cause(monkeypatch, 10, {"input": 5.0, "compute": 4.0}) == "input"
    assert cause(monkeypatch, 10, {"input": 4.9, "compute": 4.0}) == "unknown"
    assert cause(monkeypatch, 10, {"input": 1.0}, differ="input") == "input"  # ranks differ in input only
    assert cause(monkeypatch, 10, {"input": 5.0, "compute": 8.0}, differ="input copy") == "input"
    assert cause(monkeypatch, 10, {"input": 5.0, "compute": 8.0}, differ="") == "compute"


def test_component_is_the_cause_if_all_others_save_at_most_half(monkeypatch: Patch) -> None:
    assert cause(monkeypatch, 10, {"compute": 4.0}, others=5.0) == "compute"
    assert cause(monkeypatch, 10, {"compute": 4.0}, others=5.1) == "unknown"


def test_slow_host_is_the_cause_if_its_components_together_save_half(monkeypatch: Patch) -> None:
    assert cause(monkeypatch, 10, {"launch": 4.0}, throughout=5.0) == "launch"
    assert cause(monkeypatch, 10, {"operators": 4.0}, throughout=5.0) == "launch"
    assert cause(monkeypatch, 10, {"launch": 4.0}, throughout=4.9) == "unknown"
    assert cause(monkeypatch, 10, {"sync": 4.0}, throughout=9.0) == "unknown"
    assert cause(monkeypatch, 10, {"operators": 6.0}) == "operators"
    assert cause(monkeypatch, 10, {"operators": 6.0}, few=False) == "launch"
    assert cause(monkeypatch, 10, {"input": 6.0}, few=False) == "input"


@pytest.mark.parametrize(("each_step", "most"), [(False, 1.0), (True, 2.0)])
def test_ranks_differ_by_a_percent_in_the_mean_or_in_each_step(
    monkeypatch: Patch, most: float, *, each_step: bool
) -> None:
    """Each of two ranks is late by 2 ms in every other step, which is 1 ms per step in the mean."""
    for step_ms, differs in ((100 * most, True), (100.1 * most, False)):
        excess = SimpleNamespace(by_rank={0: 1e6, 1: 1e6}, by_step={0: (2e6, 0.0), 1: (0.0, 2e6)})
        monkeypatch.setattr(late_cause, "excess_of", lambda *_, excess=excess: excess)
        what_if: Any = SimpleNamespace(corrected_ms=step_ms)
        assert late_cause._differ(what_if, "launch", each_step) == differs


@pytest.mark.parametrize(
    ("called", "gain", "paused", "found"),
    [
        ("launch", 10.0, 5.0, "stall"),
        ("launch", 10.0, 4.9, "launch"),
        ("unknown", 10.0, 5.0, "stall"),
        ("input", 10.0, 9.0, "input"),
        ("launch", 0.0, 9.0, "launch"),
    ],
)
def test_host_with_additional_pauses_stalls(
    monkeypatch: Patch, called: str, gain: float, paused: float, found: str
) -> None:
    monkeypatch.setattr(late_cause, "own_pauses", lambda *_: OwnPauses(ms={"a": paused}))
    cause, pauses = stall_by_own_pauses(SimpleNamespace(), (0,), called, gain)  # type: ignore[arg-type]  # unused here
    assert (cause, pauses.total_ms) == (found, paused if found == "stall" else 0)


def finding_of(
    patch: Patch,
    cause: str,
    *,
    late: Mapping[int, float] = {0: 0.0, 1: 8.0},
    part: str = "",
    jitter: bool = False,
    in_some_steps: tuple[int, ...] = (),
    gain: float = 10.0,
    is_cpu: bool = False,
    silent: float = 0.0,
    marked: float = 0.0,
    later_input: float = 0.0,
    paused: float = 0.0,
    place: str = "",
    held: bool = False,
    longer: float = 0.0,
    more: MoreOperators | None = None,
) -> Finding:
    """Return the finding about ranks that are late. Times are in ms.

    Args:
        late: rank → lateness.
        part: the component with the lateness; by default `cause`.
        jitter: whether ranks are equalized in each step.
        in_some_steps: the ranks that are late in some steps only.
        silent, marked: untraced time before the first op, and marked input, of rank 1.
        later_input, longer: time by which unprofiled fetches, and whole steps, are longer than recorded ones.
        paused, more: additional pauses and operators of late ranks.
        place: location of the stall; "" if unknown.
        held: whether the clock of rank 1 is throttled.
    """
    alone = dict.fromkeys(COMPONENTS, 0.0) | {"input": 1.0, "launch": 2.0}
    patch.setattr(straggler, "cause_of", lambda *_: (cause, dict(alone)))
    patch.setattr(straggler, "excess_of", excess_in({part or cause: late}))
    patch.setattr(straggler, "later_input_ms", lambda *_: later_input)
    patch.setattr(
        straggler,
        "stall_by_own_pauses",
        lambda _case, _late, of, gain: (
            "stall" if paused and gain else of,
            OwnPauses(ms={"after a": paused} if paused and gain else {}),
        ),
    )
    patch.setattr(straggler, "_place", lambda *_, **__: (place, ("there",) if place else ()))
    patch.setattr(straggler, "_held_back", lambda *_: {"1": ["throttled"]} if held else {})
    patch.setattr(straggler, "_longer_ms", lambda *_: longer)
    patch.setattr(straggler, "_frames_ms", lambda *_: {"f": 1.0})
    patch.setattr(straggler, "_late_in_some_steps", lambda *_: in_some_steps)
    patch.setattr(straggler, "_times_last", lambda *_: {0: 3})
    patch.setattr(straggler, "more_operators", lambda *_: more)
    host = SimpleNamespace(
        process=np.array([0, 1]),
        before_first_op=np.array([1e6 * 99, 1e6 * silent]),
        input=np.array([0.0, 1e6 * marked]),
    )
    what_if: Any = SimpleNamespace(graph=SimpleNamespace(host=host, ranks={0: 0, 1: 1}))
    tracks = [SimpleNamespace(rank=rank, waits_ns={9: np.array([1e6, 3e6])}, is_cpu=is_cpu) for rank in range(2)]
    case: Any = SimpleNamespace(
        run=None,
        tracks=tracks,
        attribution=SimpleNamespace(tracks=tracks),
        timeline=SimpleNamespace(framework="pytorch", divides_work=False),
    )
    return Straggler()._describe(case, what_if, jitter, gain, 20.0)


def test_late_ranks_exceed_a_third_of_the_latest(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "compute", late={0: 2.3, 1: 8.0, 2: 2.4, 3: -5.0})
    assert (one.ranks, one.cause, one.confidence) == ((1, 2), "compute", "high")
    assert one.title == "ranks 1 and 2 compute longer, which delays all ranks by 10.0 ms per step"
    assert one.evidence["lateness_ms_by_rank"] == {0: 2.3, 1: 8.0, 2: 2.4, 3: -5.0}
    assert one.evidence["wait_ms_by_rank"] == {0: 2.0, 1: 2.0}
    assert list(one.evidence["savings_ms_by_part"])[:2] == ["launch", "input"]
    assert finding_of(monkeypatch, "compute").title.startswith("rank 1 computes")
    assert finding_of(monkeypatch, "compute", late={0: 0.5, 1: 2.0, 2: 3.0}).title.startswith("ranks 1 and 2 ")
    assert finding_of(monkeypatch, "compute", late={0: 3.0, 1: 2.0, 2: 3.0}).title.startswith("ranks 0, 1 and 2 ")


def test_host_work_on_a_cpu_is_compute(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "launch", is_cpu=True)
    assert (one.cause, one.evidence["savings_ms_by_part"]["compute"]) == ("compute", 2.0)
    assert "launch" not in one.evidence["savings_ms_by_part"]
    assert "numactl, taskset, OMP_NUM_THREADS" in " ".join(one.advice)
    assert finding_of(monkeypatch, "input", is_cpu=True).cause == "input"
    assert finding_of(monkeypatch, "launch").cause == "launch"


def test_occasional_and_rotating_lateness_are_distinguished(monkeypatch: Patch) -> None:
    some = finding_of(monkeypatch, "launch", jitter=True, in_some_steps=(1,))
    assert some.title == "rank 1 is slow now and then, which costs 10.0 ms per step"
    assert (some.ranks, some.confidence, some.evidence["times_last_by_rank"]) == ((1,), "medium", {0: 3})
    assert "now and then on rank 1:" in some.advice[0]
    assert "host_frames_ms_more_than_peers" not in some.evidence
    turns = finding_of(monkeypatch, "launch", jitter=True, in_some_steps=(0, 1), longer=5.0)
    assert turns.title == "ranks take turns being slow, which costs 10.0 ms per step"
    assert "now and then on one rank or another:" in turns.advice[0]
    several = finding_of(monkeypatch, "launch", jitter=True, late={0: 1.0, 1: 2.0, 2: 3.0}, in_some_steps=(1, 2))
    assert several.title.startswith("ranks 1 and 2 are slow now and then")
    steady = finding_of(monkeypatch, "launch")
    assert "times_last_by_rank" not in steady.evidence
    assert steady.evidence["host_frames_ms_more_than_peers"] == {"f": 1.0}
    assert "host_frames_ms_more_than_peers" not in finding_of(monkeypatch, "copy").evidence


@pytest.mark.parametrize(
    ("cause", "later", "jitter", "found"),
    [
        ("stall", 5.0, False, "input"),
        ("stall", 4.9, False, "stall"),
        ("stall", 5.0, True, "stall"),
        ("launch", 9.0, False, "launch"),
    ],
)
def test_stall_that_unprofiled_steps_show_as_fetching_is_input(
    monkeypatch: Patch, cause: str, later: float, found: str, *, jitter: bool
) -> None:
    assert finding_of(monkeypatch, cause, later_input=later, jitter=jitter, in_some_steps=(1,)).cause == found


def test_unmarked_input_is_called_unmarked(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "input", silent=5.0, marked=4.9)
    assert one.title.startswith("rank 1's unmarked time at the start of the step (usually data loading) delays")
    assert (one.confidence, "assumed_data_loading" in one.evidence) == ("medium", True)
    marked = finding_of(monkeypatch, "input", silent=5.0, marked=5.0)
    assert marked.title.startswith("rank 1's data loading delays")
    assert (marked.confidence, "assumed_data_loading" in marked.evidence) == ("high", False)
    assert "assumed_data_loading" not in finding_of(monkeypatch, "compute", silent=5.0).evidence


def test_additional_pauses_and_their_location_are_reported(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "launch", paused=6.0)
    assert (one.cause, one.place, one.evidence["pauses_ms_more_than_peers"]) == ("stall", "after a", {"after a": 6.0})
    assert finding_of(monkeypatch, "launch", paused=6.0, place="in b").place == "in b"
    assert finding_of(monkeypatch, "launch", paused=6.0, jitter=True, in_some_steps=(1,)).cause == "launch"
    assert finding_of(monkeypatch, "compute", paused=6.0).cause == "compute"
    stalled = finding_of(monkeypatch, "stall", place="in b")
    assert (stalled.title, stalled.advice) == (
        "rank 1 stalls in b, which delays all ranks by 10.0 ms per step",
        ("there",),
    )


def test_clock_is_the_cause_if_clocks_of_late_ranks_are_held_down(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "compute", held=True)
    assert (one.cause, one.evidence["clock"]) == ("clock", {"1": ["throttled"]})
    assert "peers' clocks" in one.advice[0]
    assert finding_of(monkeypatch, "launch", held=True).cause == "launch"
    assert finding_of(monkeypatch, "compute", held=True, jitter=True, in_some_steps=(1,)).cause == "compute"


def test_longer_unprofiled_steps_are_attributed_to_late_ranks(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "compute", longer=10.0)
    assert one.recoverable_ms_per_step == 20.0
    assert one.recoverable_percent == pytest.approx(100 * 20 / 60)
    assert (one.severity, one.evidence["longer_in_timed_steps_ms"]) == ("critical", 10.0)
    assert "by 20.0 ms" in one.title
    none = finding_of(monkeypatch, "compute")
    assert (none.recoverable_percent, "longer_in_timed_steps_ms" in none.evidence) == (20.0, False)


def test_additional_operators_are_named(monkeypatch: Patch) -> None:
    more = MoreOperators(own_ms={"sort": 3.0, "pad": 1.0}, calls={"sort": 1.0}, own_work=True)
    one = finding_of(monkeypatch, "launch", more=more)
    assert (one.place, one.evidence["calls_per_step_more_than_peers"]) == ("in sort", {"sort": 1.0})
    assert one.evidence["operators_ms_more_than_peers"] == {"sort": 3.0, "pad": 1.0}
    assert "call sort, pad more often" in one.advice[0]
    longer = finding_of(monkeypatch, "launch", more=MoreOperators(own_ms={"sort": 3.0}, calls={}, own_work=False))
    assert ("operators_ms_more_than_peers" in longer.evidence, longer.place) == (True, "")
    for other in (
        finding_of(monkeypatch, "copy", more=more),
        finding_of(monkeypatch, "launch", more=more, paused=6.0),
        finding_of(monkeypatch, "launch", more=more, jitter=True, in_some_steps=(1,)),
    ):
        assert "operators_ms_more_than_peers" not in other.evidence


def test_unknown_cause_names_the_ranks_by_the_largest_component(monkeypatch: Patch) -> None:
    one = finding_of(monkeypatch, "unknown", part="sync")
    assert (one.ranks, one.confidence) == ((1,), "medium")
    assert one.title == "rank 1 delays all ranks by 10.0 ms per step; the traces do not show why"
    several = finding_of(monkeypatch, "unknown", part="sync", late={0: 0.0, 1: 3.0, 2: 3.0})
    assert several.title.startswith("ranks 1 and 2 delay all")


def proposed(
    patch: Patch,
    by_rank: float,
    by_step: float,
    *,
    steps: int = 4,
    steady: bool = True,
    ranks: int = 2,
    meet: bool = True,
) -> bool | None:
    """Return whether lateness is reported as jitter; None if nothing is proposed.

    `by_rank` is the savings in ms if the means of the ranks were equal, and `by_step` if the ranks were equal in each
    step. `steady`: the excess of a rank is significant. `meet`: the ranks have common collectives.
    """
    patch.setattr(straggler, "equalize_ranks", lambda *_, each_step: each_step)
    patch.setattr(straggler, "_steady", lambda _: steady)
    what_if: Any = SimpleNamespace(
        corrected=None,
        corrected_ms=100.0,
        graph=SimpleNamespace(ranks=dict.fromkeys(range(ranks), 0), peers=[list(range(ranks))]),
        savings_ms=lambda edits: [by_step if each_step else by_rank for each_step in edits],
    )
    case: Any = SimpleNamespace(
        steps=steps,
        one_of_many=lambda: False,
        timeline=SimpleNamespace(divides_work=False),
        tracks=[SimpleNamespace(collectives=[1] if meet else [])],
    )
    findings = [*Straggler().examine(case, what_if)]
    if not findings:
        return None
    (one,) = findings
    assert not isinstance(one, CannotTell)
    return bool(one.edit.keywords["each_step"])  # type: ignore[attr-defined]  # a partial


def test_jitter_saves_more_if_each_step_is_equalized(monkeypatch: Patch) -> None:
    assert [proposed(monkeypatch, 10.0, by_step) for by_step in (13.0, 13.1)] == [False, True]
    assert [proposed(monkeypatch, 10.0, 10.0, steady=steady) for steady in (True, False)] == [False, True]
    assert [proposed(monkeypatch, 0.0, by_step) for by_step in (0.99, 1.0)] == [False, True]
    assert [proposed(monkeypatch, 1.0, 9.0, steps=steps) for steps in (1, 2)] == [False, True]


def test_ranks_without_common_collectives_are_not_compared(monkeypatch: Patch) -> None:
    assert proposed(monkeypatch, 9.0, 9.0, meet=False) is None
    assert proposed(monkeypatch, 9.0, 9.0, ranks=1) is None


@pytest.mark.parametrize(
    ("timed", "corrected", "now"), [(None, 90.0, 90.0), (90.0, 90.9, 90.9), (90.0, 91.0, 90.0), (90.0, 50.0, 50.0)]
)
def test_current_step_is_the_unprofiled_step_if_much_faster(timed: float | None, corrected: float, now: float) -> None:
    known: Any = SimpleNamespace(unprofiled_ms=timed, corrected_ms=corrected)
    now_ms: Any = vars(WhatIf)["now_ms"]
    assert now_ms.fget(known) == now


def gain(
    before: float,
    after: float,
    now: float,
    *,
    exchanged: bool = True,
    is_cpu: bool = False,
    base: bool = False,
    most: float = 1000.0,
) -> float:
    """Return the savings in a step of `now` ms if a scenario shortens the simulated step from `before` to `after`.

    `exchanged`: the scenario still communicates. `base`: the scenario is compared with a given scenario instead of the
    corrected step. `most` is the upper limit of the savings. All times are in ms.
    """
    of: Any = SimpleNamespace(
        corrected="corrected",
        now_ms=now,
        max_saving_ms=most,
        each_step_ms=lambda many: [before, *[after] * (len(many) - 1)],
        timeline=SimpleNamespace(tracks=[SimpleNamespace(is_cpu=is_cpu)]),
    )
    of._unprofiled_saving_ms = lambda *amounts: WhatIf._unprofiled_saving_ms(of, *amounts)
    costs: Any = SimpleNamespace(communicates=exchanged)
    (found,) = WhatIf.savings_ms(of, [costs], costs if base else None)
    return found


def test_cause_costs_its_share_or_the_remainder_of_a_faster_unprofiled_step() -> None:
    assert gain(100, 70, 100) == 30
    assert gain(100, 70, 80) == pytest.approx(24)  # 30 % of the unprofiled 80 ms, because the remainder is only 10 ms
    assert gain(100, 20, 90) == pytest.approx(72)
    assert gain(100, 70, 80, exchanged=False) == 10  # on GPUs communication saves only the remainder
    assert gain(100, 70, 80, exchanged=False, is_cpu=True) == pytest.approx(24)
    assert gain(100, 70, 60, exchanged=False) == 0
    assert gain(100, 70, 80, base=True) == 30
    assert gain(100, 20, 100, most=60.0) == 60  # savings are at most the reported step
    assert gain(100, 120, 100) == gain(0, 0, 0) == 0


@pytest.mark.parametrize(
    ("timed", "devices_set_pace", "host_ms", "asked"),
    [
        (None, True, {0: 3.0}, []),
        (50.0, False, {0: 3.0}, [("steps", 50.0), ("hosts", {0: 3.0})]),
        (50.0, True, {0: 3.0}, [("steps", 50.0), ("hosts", {0: 3.0}), ("each", {0: 3.0})]),
        (50.0, True, None, [("steps", 50.0), ("hosts", {}), ("each", {})]),
    ],
)
def test_simulation_is_fitted_to_unprofiled_steps(
    monkeypatch: Patch, timed: float | None, devices_set_pace: bool, host_ms: dict[int, float] | None, asked: list[Any]
) -> None:
    noted: list[Any] = []

    def noting(of: Any, name: str, told: Any) -> Any:
        noted.append((name, told))
        return of

    monkeypatch.setattr(what_if_module, "fit_step_time", lambda of, step_ms: noting(of, "steps", step_ms))
    monkeypatch.setattr(what_if_module, "fit_host_time", lambda of, _, ms: noting(of, "hosts", ms))
    monkeypatch.setattr(what_if_module, "limit_each_host", lambda of, _, ms: noting(of, "each", ms))
    trace = TraceBuilder().steps(5, 1000, lambda trace: trace.operator(0, 500).compute(100, 900, launch=(50, 60)))
    what_if = build_what_if(build_timeline([trace.build()]), timed, host_ms=host_ms, devices_set_pace=devices_set_pace)
    assert noted == asked
    assert what_if is not None
    assert what_if.unprofiled_ms == timed
    nothing = TraceBuilder().steps(5, 1000, lambda trace: trace.compute(0, 900, launch=None))
    assert build_what_if(build_timeline([nothing.build()])) is None


def simulated() -> WhatIf:
    """Simulate two ranks: a kernel of rank 1 takes 300 µs, for which rank 0 waits in the all-reduce."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(6):
            trace.step(2000 * step).operator(0, 60).compute(100, 400 if rank else 100, "late", launch=(10, 12))
            trace.collective(400 if rank else 100, 900, ranks=(0, 1), launch=(20, 22))
            trace.compute(950, 1900, "gemm", stream=7, launch=(30, 32))
        traces.append(trace.build())
    what_if = build_what_if(build_timeline(traces))
    assert what_if is not None
    return what_if


def test_scenarios_simulated_together_equal_separate_simulations() -> None:
    of = simulated()
    shorter = replace(of.corrected, duration=of.corrected.duration / 2)
    both = of.each_step_ms([of.corrected, shorter])
    assert both == [simulated().step_ms(of.corrected), simulated().step_ms(shorter)]
    assert of.savings_ms([shorter, of.corrected]) == [pytest.approx(both[0] - both[1]), 0]
    assert of.saving_ms(of.corrected, shorter) == 0
    assert of.saving_ms(shorter, of.corrected) == pytest.approx(both[0] - both[1])
    steps = of.steps_ms([shorter])[0]
    assert len(steps) == of.graph.steps
    assert steps.mean() == pytest.approx(both[1])


def test_overhead_changes_only_host_time() -> None:
    of = simulated()
    other = of.at_cost(0.0)
    assert other.model is of.model
    assert (other.per_event_ns, other.unprofiled_ms) == (0.0, of.unprofiled_ms)
    assert other.corrected.busy.sum() > of.corrected.busy.sum()
    cheap, dear = of.at_cost(0.0), of.at_cost(5000.0)
    assert cheap.corrected_ms == other.corrected_ms >= dear.corrected_ms
    assert of.model.process_of_op.tolist() == of.graph.device.track.tolist()


def test_stall_excludes_waits_for_communication() -> None:
    known: Any = SimpleNamespace(
        graph=SimpleNamespace(host=SimpleNamespace(untraced=np.array([10.0, 10.0, 10.0]))),
        host_corrected=SimpleNamespace(waiting=np.array([30.0, 12.0, 4.0])),
        model=SimpleNamespace(communication=SimpleNamespace(waiting=np.array([5.0, 5.0, 5.0]))),
    )
    stalled: Any = vars(WhatIf)["untraced"]
    assert stalled.func(known).tolist() == [10, 7, 0]
