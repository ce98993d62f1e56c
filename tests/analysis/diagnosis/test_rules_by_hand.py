"""Test the findings of rules for a few numbers: conditions, text and figures."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gpudiag.analysis.diagnosis import kernels as kernel_rules
from gpudiag.analysis.diagnosis import rules
from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.places import Place, main_place
from gpudiag.analysis.diagnosis.rules.communication_advice import largest_collective
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE, HostStall, stall_advice
from gpudiag.analysis.diagnosis.rules.host_sync import HostSync, _calls
from gpudiag.analysis.diagnosis.rules.input_bound import InputBound, with_unprofiled_input
from gpudiag.analysis.diagnosis.rules.launch_bound import LaunchBound
from gpudiag.analysis.diagnosis.rules.slow_copy import SlowCopy
from gpudiag.analysis.diagnosis.rules.straggler import _frames_ms, _held_back, _late_in_some_steps, _times_last, _what
from gpudiag.model.analysis import Finding
from gpudiag.model.event import EventKind
from gpudiag.model.timeline import UNKNOWN
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.test_unprofiled_by_hand import host, run
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.case import Case


def finding(code: str, gain: float | None, **fields: Any) -> Finding:
    return Finding(code=code, severity="info", recoverable_ms_per_step=gain, **fields)


def timed(
    *waits: Sequence[float],
    findings: Sequence[Finding] = (),
    step_ms: float | None = 100.0,
    not_recorded_ms: float = 0.0,
) -> list[Finding]:
    """Return the findings of a job, with those about input in unprofiled steps.

    `waits` has each rank's waits for input in ms in unprofiled steps, whose mean duration is `step_ms` (None: unknown).
    Recorded steps have `findings`, and lack a wait for input of `not_recorded_ms`.
    """
    record = run(*(host(*[1.0] * len(of), fetching=tuple(of)) for of in waits), device="cpu")
    case: Any = SimpleNamespace(
        run=record,
        unprofiled_ms=step_ms,
        tracks=[SimpleNamespace(is_cpu=True)],
        timeline=SimpleNamespace(framework="pytorch"),
        what_if=SimpleNamespace(input_not_recorded_ms=not_recorded_ms),
    )
    return with_unprofiled_input(case, findings)


@pytest.mark.parametrize(
    ("waits", "step_ms", "gain"),
    [
        ([[5.0] * 9], 100.0, 5.0),
        ([[4.9] * 9], 100.0, None),
        ([[5.0]], 100.0, None),  # one unprofiled step is not enough
        ([[5.0] * 9], None, None),
        ([[0.0, 30.0, 0.0, 0.0, 0.0, 6.0]], 100.0, None),  # waits in two of six steps may be chance
        ([[8.0] * 9, [6.0] * 9], 100.0, 6.0),  # both ranks wait for at least 6 ms
        ([[8.0] * 9, [7.0] * 9, [1.0] * 9], 100.0, 7.0),
        ([], 100.0, None),
    ],
)
def test_unprofiled_steps_show_input_that_costs_five_percent(
    waits: list[list[float]], step_ms: float | None, gain: float | None
) -> None:
    assert [finding.recoverable_ms_per_step for finding in timed(*waits, step_ms=step_ms)] == (
        [] if gain is None else [gain]
    )


def test_unprofiled_input_names_the_ranks_that_wait_for_half_of_it() -> None:
    (one,) = timed([8.0] * 9, [10.0] * 8, [4.0] * 9, [3.9] * 9, [12.0] * 9)
    assert (one.recoverable_ms_per_step, one.ranks) == (8.0, (0, 1, 2, 4))
    assert (one.recoverable_percent, one.severity) == (8.0, "warning")
    figures = {name: of for name, of in one.evidence.items() if name != "timed_steps"}
    assert figures == {
        "input_wait_ms_without_profiling": 8.0,
        "input_wait_ms_while_profiling": 0.0,
        "step_ms_now": 100.0,
        "step_ms_if_fixed": 92.0,
    }
    assert one.evidence["timed_steps"] == 9


@pytest.mark.parametrize(("not_recorded_ms", "gain"), [(0.0, 7.0), (2.1, 8.0)])
def test_unprofiled_input_wait_replaces_a_shorter_recorded_wait(not_recorded_ms: float, gain: float) -> None:
    (found,) = timed([8.0] * 9, findings=(finding("input-bound", 7.0),), not_recorded_ms=not_recorded_ms)
    assert found.recoverable_ms_per_step == gain


def test_unprofiled_input_wait_replaces_an_equal_recorded_wait() -> None:
    def codes(*findings: Finding) -> list[tuple[str, float | None]]:
        return [(finding.code, finding.recoverable_ms_per_step) for finding in timed([8.0] * 9, findings=findings)]

    assert codes(finding("input-bound", 4.0)) == [("input-bound", 4.0)]
    assert codes(finding("input-bound", 3.9)) == [("input-bound", 8.0)]
    assert codes(finding("input-bound", None)) == [("input-bound", 8.0)]
    assert codes(finding("host-stall", 10.0)) == [("input-bound", 8.0)]
    assert codes(finding("host-stall", 10.1)) == [("host-stall", 10.1), ("input-bound", 8.0)]
    assert codes(finding("host-sync", 3.0), finding("straggler", 9.0)) == [
        ("straggler", 9.0), ("input-bound", 8.0), ("host-sync", 3.0)
    ]  # fmt: skip


@pytest.mark.parametrize(("marked", "known"), [(6.0, True), (5.0, True), (4.9, False)])
def test_mostly_marked_input_has_the_cause_loader(marked: float, *, known: bool) -> None:
    nodes = SimpleNamespace(input=np.array([2 * marked, 2 * marked]) * 1e6, before_first_op=np.array([20.0, 0.0]) * 1e6)
    what_if: Any = SimpleNamespace(graph=SimpleNamespace(host=nodes, steps=2, ranks={0: 0, 1: 1}))
    case: Any = SimpleNamespace(
        run=None,
        tracks=[SimpleNamespace(is_cpu=False, rank=9)],
        timeline=SimpleNamespace(framework="pytorch", ranks_present=(0, 1)),
    )
    one = InputBound()._describe(case, what_if, 10.0, 20.0)
    assert one.evidence == {"measured_in_loader_ms": pytest.approx(marked), "assumed_data_loading_ms": 5.0}
    assert (one.cause == "loader", one.confidence == "high", "data loading adds 10.0" in one.title) == (known,) * 3


def test_blocking_calls_are_counted_by_outermost_operator() -> None:
    """Rank 0 reads twice inside the operator `outer`, and rank 1 reads once outside of operators.

    An operator of a different thread contains none of the reads.
    """
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(6):
            trace.step(step * 1000).operator(0, 10, "early").compute(20, 500, launch=15)
            trace.by(5).operator(100, 900, "beside").by(1)
            if rank == 0:
                trace.operator(100, 900, "outer").operator(200, 800, "inner")
                trace.sync(300, 510).sync(600, 610, "cudaStreamSynchronize")
            else:
                trace.sync(300, 510)
        traces.append(trace.build())
    case = case_of(traces)
    assert case.what_if is not None
    calls, operators, frames = _calls(case, case.what_if)
    assert calls == pytest.approx({"cudaDeviceSynchronize": 1.0, "cudaStreamSynchronize": 0.5})
    assert operators == pytest.approx({"outer": 1.0})
    assert frames == {}
    one = HostSync()._describe(case, case.what_if, 3.0, 30.0)
    assert (one.cause, one.ranks, one.severity) == ("outer", (0, 1), "critical")
    assert "waits for the GPU in outer, which costs 3.0 ms" in one.title


def test_blocking_calls_are_counted_by_users_function() -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(6):
            trace.step(step * 1000).compute(20, 500, launch=15)
            trace._add(EventKind.PYTHON, "train.py(3): log", 100, 900)
            trace.sync(300, 510).sync(600, 610)
            if rank:
                trace.sync(910, 920)
        traces.append(trace.build())
    case = case_of(traces)
    assert case.what_if is not None
    calls, operators, frames = _calls(case, case.what_if)
    assert operators == {}
    assert list(calls.values()) == [pytest.approx(2.5)]
    assert list(frames.values()) == [pytest.approx(2)]
    assert HostSync()._describe(case, case.what_if, 3.0, 30.0).evidence["host_frames_per_step"] == frames


def test_only_the_five_most_frequent_calls_are_named() -> None:
    trace = TraceBuilder()
    for step in range(6):
        trace.step(step * 1000).compute(20, 100, launch=15)
        at = 110
        for name, times in zip("abcdef", (1, 3, 2, 6, 5, 4), strict=True):
            for _ in range(times):
                trace.operator(at, at + 8, name).sync(at + 1, at + 6)
                at += 10
    case = case_of([trace.build()])
    assert case.what_if is not None
    assert list(_calls(case, case.what_if)[1].items()) == [("d", 6), ("e", 5), ("f", 4), ("b", 3), ("c", 2)]


def copies(pageable: int, pinned: int) -> Finding:
    """Return the finding for a step with a pageable copy of `pageable` µs and a pinned copy of `pinned` µs.

    Each copy has 1 kB.
    """
    trace = TraceBuilder().steps(
        6,
        10_000,
        lambda trace: (
            trace.copy(
                100, 100 + pageable, "Memcpy HtoD (Pageable -> Device)", launch=(50, 110 + pageable), size_bytes=1000
            )
            .copy(4000, 4000 + pinned, "Memcpy HtoD (Pinned -> Device)", launch=3900, size_bytes=1000)
            .compute(8000, 9000, launch=3950)
        ),
    )
    case = case_of([trace.build()])
    assert case.what_if is not None
    return SlowCopy()._describe(case, case.what_if, 5.0, 50.0)


def test_copies_count_as_pageable_if_pageable_copies_take_longer() -> None:
    one, other = copies(2000, 1000), copies(1000, 1000)
    assert one.evidence == pytest.approx(
        {"pageable_ms_per_step": 2, "pinned_ms_per_step": 1, "copied_bytes_per_step": 2000, "achieved_gb_per_s": 0.0005}
    )
    assert (one.cause, other.cause) == ("pageable memory", "not hidden behind compute")
    assert len(one.advice) == len(other.advice) + 1
    assert copies(1000, 2000).evidence["achieved_gb_per_s"] == pytest.approx(0.0005)


def test_copies_of_unknown_size_have_no_rate() -> None:
    trace = TraceBuilder().steps(
        6,
        10_000,
        lambda trace: trace.copy(100, 2000, launch=50).copy(3000, 4000, launch=60, size_bytes=3000).compute(8000, 9000),
    )
    case = case_of([trace.build()])
    assert case.what_if is not None
    description = SlowCopy()._describe(case, case.what_if, 5.0, 50.0)
    assert description.evidence["copied_bytes_per_step"] == 3000
    alone = case_of([TraceBuilder().steps(6, 10_000, lambda trace: trace.copy(100, 2000).compute(8000, 9000)).build()])
    assert alone.what_if is not None
    assert "achieved_gb_per_s" not in SlowCopy()._describe(alone, alone.what_if, 5.0, 50.0).evidence


def test_launch_overhead_has_kernel_counts_and_times_as_evidence() -> None:
    """Kernels take 20, 5 and 8 µs per step on each of two ranks, whose hosts work 300 µs per step."""
    traces = [
        TraceBuilder(rank, world_size=2)
        .steps(
            6,
            1000,
            lambda trace: (
                trace.operator(0, 300).compute(10, 30, launch=5).compute(40, 45, launch=35).compute(50, 58, launch=299)
            ),
        )
        .build()
        for rank in range(2)
    ]
    case = case_of(traces)
    assert case.what_if is not None
    one = LaunchBound()._describe(case, case.what_if, 1.0, 10.0)
    assert (one.evidence["kernels_per_step"], one.evidence["median_kernel_us"]) == (3, 8)
    assert one.evidence["kernel_launch_ms_per_step"] == pytest.approx(
        float(case.what_if.corrected.busy.sum()) / 4 / 2 / 1e6
    )
    assert (one.cause, one.confidence) == ("tiny kernels", "high")


@pytest.mark.parametrize(
    ("cause", "place", "one", "several"),
    [
        ("input", "", "rank 3's data loading delays", "data loading of ranks 3 delays"),
        ("compute", "", "rank 3 computes longer, which delays", "ranks 3 compute longer, which delays"),
        ("clock", "", "rank 3 computes longer on slower GPU clocks, which", "ranks 3 compute longer on slower"),
        ("stall", "after a", "rank 3 stalls after a, which delays", "ranks 3 stall after a, which delays"),
        ("sync", "", "rank 3 waits for the GPU more often", "ranks 3 wait for the GPU more often"),
        ("operators", "in mm", "rank 3 spends longer in mm, which", "ranks 3 spend longer in mm, which"),
        ("launch", "", "rank 3 launches kernels more slowly", "ranks 3 launch kernels more slowly"),
        ("copy", "", "rank 3 copies longer", "ranks 3 copy longer"),
    ],
)
def test_late_ranks_and_their_cause_are_named_in_singular_and_plural(
    cause: str, place: str, one: str, several: str
) -> None:
    assert (_what(cause, "rank 3", place, one=True, silent=False) or "").startswith(one)
    assert (_what(cause, "ranks 3", place, one=False, silent=False) or "").startswith(several)
    assert _what("unknown", "rank 3", place, one=True, silent=False) is None


def test_unmarked_input_is_named_with_its_ranks() -> None:
    words = "unmarked time (usually loading)"
    assert _what("input", "rank 3", words, one=True, silent=True) == f"rank 3's {words} delays"
    assert _what("input", "ranks 3 and 4", words, one=False, silent=True) == (
        "unmarked time of ranks 3 and 4 (usually loading) delays"
    )


def test_last_arrivals_count_each_collective_once() -> None:
    def track(*of: tuple[int, int]) -> Any:
        instance, last = np.array(of).T
        return SimpleNamespace(collectives=SimpleNamespace(instance=instance, last_rank=last))

    case: Any = SimpleNamespace(tracks=[track((0, 1), (1, 0), (UNKNOWN, UNKNOWN)), track((0, 1), (1, 0), (2, 1))])
    assert _times_last(case) == {1: 2, 0: 1}


def stacks(*functions: dict[str, int]) -> Case:
    """Make ranks that spend time in user's functions, given as name → µs in each step of 10 ms."""
    traces = []
    for rank, times in enumerate(functions):
        trace = TraceBuilder(rank, world_size=len(functions), origin_ns=10**18 + 10**6 * rank)
        for step in range(6):
            trace.step(step * 10_000).operator(0, 1).compute(9000, 9500, launch=8990)
            at = 10
            for name, length in times.items():
                trace._add(EventKind.PYTHON, f"train.py({len(name)}): {name}", at, at + length)
                at += length + 10
        traces.append(trace.build())
    return case_of(traces)


def test_functions_slower_on_late_ranks_are_named() -> None:
    case = stacks({"log": 100, "load": 900}, {"log": 1100, "load": 900, "save": 300}, {"log": 500, "tiny": 10})
    frames_ms = {name.rpartition(" ")[2]: ms for name, ms in _frames_ms(case, (1,)).items()}
    assert frames_ms == pytest.approx({"log": 0.6, "save": 0.3})
    assert list(frames_ms) == ["log", "save"]
    assert {name.rpartition(" ")[2] for name in _frames_ms(case, (0, 1))} == {"log", "load", "save"}
    assert _frames_ms(case, (0, 1, 2)) == {}
    many = stacks({}, {f"f{'x' * at}": 1000 - 100 * at for at in range(7)})
    assert [ms for _, ms in _frames_ms(many, (1,)).items()] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])


def largest(*kinds: tuple[str, int | None, Sequence[float]], ranks: int = 0, world: int = 4) -> Any:
    """Return the largest of several kinds of collectives.

    A kind is (operation, bytes, transfer time of each collective in ns or -1 if unknown).
    """
    times = [(index, ns) for index, (_, _, each) in enumerate(kinds) for ns in each]
    arrival = np.array([UNKNOWN if ns < 0 else 50 for _, ns in times])
    table = SimpleNamespace(
        kinds=[(operation, "0", ranks, size) for operation, size, _ in kinds],
        kind=np.array([index for index, _ in times]),
        last_arrival=arrival,
        end=np.array([50 + ns for _, ns in times]),
    )
    case: Any = SimpleNamespace(
        tracks=[SimpleNamespace(collectives=table), None],
        timeline=SimpleNamespace(world_size=world),
    )
    return largest_collective(case, from_last_arrival=True)


def test_largest_collective_has_the_most_transfer_time() -> None:
    collective = largest(
        ("broadcast", 100, [1000]), ("all_reduce", 4000, [200, 400, 500, -1]), ("all_reduce", 9, [900])
    )
    assert (collective.operation, collective.size_bytes, collective.median_ns) == ("all_reduce", 4000, 400)
    assert collective.busbw_gb_per_s == 4000 / 400 * 1.5
    assert largest(("all_reduce", 4000, [400]), ranks=2).busbw_gb_per_s == 10
    assert largest(("all_reduce", 10, [100]), ("all_reduce", 20, [100])).size_bytes == 10


def test_largest_collective_has_known_size_and_cost() -> None:
    known = ("all_gather", 30, [10.0])
    for other in (
        ("all_reduce", None, [900.0]),
        ("nobody_knows", 50, [900.0]),
        ("all_reduce", 50, [-1.0]),
        ("all_reduce", 50, [0.0]),
    ):
        assert largest(other, known).operation == largest(known, other).operation == "all_gather"
    assert largest(("all_reduce", None, [900.0])) is None


@pytest.mark.parametrize(
    ("collecting", "world", "together"), [(True, 2, True), (True, 1, False), (False, 2, None), (None, 2, None)]
)
def test_common_garbage_collection_is_advised(*, collecting: bool | None, world: int, together: bool | None) -> None:
    case: Any = SimpleNamespace(timeline=SimpleNamespace(world_size=world))
    place = None if collecting is None else Place(words="after a", ms_per_step=1.0, collecting=collecting)
    advice = stall_advice(case, place)
    if together is None:
        assert advice == ELSEWHERE
    else:
        assert ("on all ranks at once" in str(advice)) == together


def test_main_location_has_half_of_the_time_and_savings() -> None:
    def main(*ms: float, gain: float = 0.0) -> bool:
        return main_place([Place(words="", ms_per_step=amount) for amount in ms], gain) is not None

    assert [main(5, 5), main(5, 3, 3), main(5, gain=10), main(5, gain=10.1), main()] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_occasionally_late_ranks_exceed_a_third_of_the_latest() -> None:
    excess = {0: (10.0, -90.0), 1: (0.0, 3.0), 2: (2.9, 0.0), 3: (-5.0, -5.0)}
    what_if: Any = SimpleNamespace(excess=excess)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "gpudiag.analysis.diagnosis.rules.straggler.excess_of", lambda of, _: SimpleNamespace(by_step=of.excess)
        )
        assert _late_in_some_steps(what_if, "launch") == (0, 1)


def test_clocks_are_the_cause_only_if_all_late_ranks_are_slowed() -> None:
    from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

    slow = machine(gpu(0), gpu(1, sm_mhz=1000), gpu(2, sm_mhz=1000, throttle_reasons=("hardware thermal slowdown",)))

    def held(*late: int, facts: Any = slow) -> dict[str, list[str]]:
        return _held_back(cast("Any", SimpleNamespace(facts=facts, run=run(None, None, None))), late)

    assert held(1) == {"1": ["clock-mismatch"]}
    assert held(1, 2).keys() == {"1", "2"}
    assert held(0) == held(0, 1) == held(7) == held(1, facts=None) == {}


def test_registry_lists_every_class_with_a_code_in_the_folder_of_rules() -> None:
    modules = [
        import_module(f"{folder.__name__}.{module.name}")
        for folder in (kernel_rules, rules)
        for module in pkgutil.iter_modules(folder.__path__)
    ]
    written = {
        value
        for module in modules
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__ and isinstance(getattr(value, "code", None), str)
    }
    assert written == set(DOCUMENTED_RULES)
    assert len(written) == len(DOCUMENTED_RULES)


def concluded(
    *percents: float | None,
    conclusive: bool = True,
    compute: float = 90.0,
    step: float = 120.0,
) -> list[str]:
    """Return the conclusions for findings that save `percents` % of a recorded step of `step` ms.

    The device computes for `compute` ms. Unless `conclusive`, data problems prevent conclusions.
    """
    case: Any = SimpleNamespace(
        step_ms=step, exposed_ms=lambda _: {0: compute - 1, 1: compute},
        timeline=SimpleNamespace(framework="pytorch"), rate=None,
    )  # fmt: skip
    findings = [finding("a", 1.0, recoverable_percent=percent) for percent in percents]
    return [one.title.partition(";")[0] for one in ComputeBound().conclude(case, findings, conclusive=conclusive)]


def test_step_without_other_large_buckets_is_compute_bound() -> None:
    assert concluded() == concluded(4.9, None) == ["compute-bound (75 %)"]
    assert concluded(5.0) == concluded(1.0, 7.0) == concluded(conclusive=False) == []
    assert concluded(compute=130.0) == ["compute-bound (100 %)"]
    assert concluded(step=100.0) == ["compute-bound (90 %)"]
    assert concluded(step=0.0) == ["compute-bound (0 %)"]


def stalled(*at: Place, gain: float = 10.0) -> Finding:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpudiag.analysis.diagnosis.rules.host_stall.stalls", lambda *_, **__: list(at))
        what_if: Any = SimpleNamespace(graph=SimpleNamespace(ranks={0: 3, 1: 1}))
        timeline = SimpleNamespace(framework="pytorch", ranks_present=(1, 3), world_size=2)
        case: Any = SimpleNamespace(timeline=timeline, run=None)
        return HostStall()._describe(case, what_if, gain, 20.0)


def test_stall_names_its_main_location_or_says_that_there_are_many() -> None:
    long, short = Place(words="after a", ms_per_step=9.0), Place(words="after b", ms_per_step=3.0)
    one = stalled(long, short)
    assert (one.title, one.place) == ("the training thread stalls after a, which costs 10.0 ms per step", "after a")
    assert (one.ranks, one.cause) == ((1, 3), "unmarked time within the step")
    assert one.evidence == {"places_ms_per_step": {"after a": 9.0, "after b": 3.0}}
    many = stalled(short, short, short)
    assert (many.title.partition(",")[0], many.place) == ("the training thread stalls at many points of the step", "")
    assert many.advice != one.advice
    nowhere = stalled()
    assert (nowhere.title.partition(",")[0], nowhere.advice) == ("the training thread stalls", one.advice)
    collecting = stalled(Place(words="after a", ms_per_step=9.0, collecting=True))
    assert collecting.title.startswith("garbage collection stalls training after a")
    assert collecting.cause == "garbage collection"
    assert "all ranks at once" in " ".join(collecting.advice)
