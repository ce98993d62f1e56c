"""Test locating untraced host time: between which operators, or in which range, the training thread stalls."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.places import stalls
from gpudiag.model.run import Scheduling, UnprofiledSteps
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.analysis.diagnosis.records import run_of
from tests.timeline_builder import TraceBuilder


def logging(*, marked: bool) -> TraceBuilder:
    """Make steps of 30 ms (times in µs): an operator that launches 5 ms of kernels, and 29 ms of untraced host time."""
    trace = TraceBuilder(0)
    for step in range(7):
        trace.step(step * 30_000)
        trace.operator(0, 40, "aten::mm").compute(50, 5_000, launch=(10, 20))
        if marked:
            trace.annotation(1_000, 28_000, "gpudiag.logging")
        trace.operator(29_000, 29_020, "aten::add").compute(29_050, 29_100, launch=(29_005, 29_010))
    return trace


def test_stall_is_located_between_operators() -> None:
    (place,) = stalls(case_of([logging(marked=False).build()]), {0})
    assert place.words == "after aten::mm and before aten::add"
    assert not place.collecting


def test_range_around_a_stall_names_it() -> None:
    (place,) = stalls(case_of([logging(marked=True).build()]), {0})
    assert "gpudiag.logging" in place.words


def two_ranks(own: tuple[int, ...], shared: tuple[int, ...]) -> list[TraceBuilder]:
    """Make steps of two CPU processes with pauses of `own` and `shared` µs, each after an operator of 2 ms.

    Only rank 0 has the `own` pauses.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for step in range(6):
            trace.step(step * 100_000).operator(0, 2_000, "aten::mm")
            at = 2_000
            for name, pause in [*enumerate(shared), *((f"own{i}", ms) for i, ms in enumerate(own) if rank == 0)]:
                trace.operator(at + pause, at + pause + 2_000, f"aten::after_{name}")
                at += pause + 2_000
            done = 3_000 + sum((*own, *shared)) + 2_000 * len((*own, *shared))
            trace.operator(at, at + 300, "c10d::allreduce_")
            trace.gloo(at + 200, done, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(done + 20, 99_900, "aten::copy_")
    return ranks


def test_stall_of_one_rank_has_no_common_location() -> None:
    case = case_of([trace.build() for trace in two_ranks((40_000,), (10_000,))])
    assert stalls(case, {0, 1})[0].words.endswith("aten::after_own0")
    (place,) = (place for place in stalls(case, {0, 1}, common=True) if place.ms_per_step > 1)
    assert "own" not in place.words


def test_location_is_named_if_it_has_most_of_the_stall() -> None:
    for shared, named in (((20_000, 5_000, 5_000), True), ((10_000, 9_000, 8_000), False)):
        found, _ = diagnosis_of([trace.build() for trace in two_ranks((), shared)])
        assert (found["host-stall"].place != "") == named
        assert ("at many points" in found["host-stall"].title) != named
        assert ("Look for Python in hooks" in " ".join(found["host-stall"].advice)) != named
        assert "give each process separate cores" not in " ".join(found["host-stall"].advice)


@pytest.mark.parametrize(("share", "lost"), [(0.4, False), (0.6, True)])
def test_cores_are_advised_if_threads_waited_for_them(share: float, *, lost: bool) -> None:
    case = case_of([trace.build() for trace in two_ranks((), (10_000, 9_000, 8_000))])
    gain = (
        next(finding for finding in diagnose(case).findings if finding.code == "host-stall").recoverable_ms_per_step
        or 0.0
    )
    case = run_of(case, [case.slowest_ms] * 9 + [case.slowest_ms * 1.01])
    assert case.run is not None
    waited = Scheduling(involuntary_switches=9.0, run_queue_wait_ms=share * gain, cpu_ms=1.0)
    ranks = tuple(
        msgspec.structs.replace(rank, timed=UnprofiledSteps(host_ms=(1.0,) * 10, scheduling=waited))
        for rank in case.run.ranks
    )
    timed = replace(case, run=msgspec.structs.replace(case.run, ranks=ranks))
    found = next(finding for finding in diagnose(timed).findings if finding.code == "host-stall")
    assert ("give each process separate cores" in " ".join(found.advice)) == lost


def test_time_before_a_marked_fetch_is_no_input() -> None:
    """After the update rank 0 saves for 30 ms, and then both ranks fetch for 2 ms."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for step in range(6):
            late = 30_000 if rank == 0 else 0
            trace.step(step * 62_000).loader(late + 10, late + 2_000).operator(late + 2_100, late + 30_000, "aten::mm")
            trace.operator(late + 30_100, late + 30_400, "c10d::allreduce_")
            trace.gloo(late + 30_200, 61_000, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(61_020, 61_900, "aten::copy_")
    found, _ = diagnosis_of([trace.build() for trace in ranks])
    assert found["straggler"].ranks == (0,)
    assert found["straggler"].cause == "stall"
    assert "before enumerate(DataLoader)" in found["straggler"].place


@pytest.mark.parametrize("ranks", [1, 2])
def test_garbage_collection_gets_specific_advice(ranks: int) -> None:
    traces = [TraceBuilder(rank, world_size=ranks) for rank in range(ranks)]
    for rank, trace in enumerate(traces):
        for step in range(6):
            paused = 30_000 if rank == 0 else 0
            trace.step(step * 52_000).operator(0, 10_000, "aten::mm")
            if paused:
                trace.annotation(10_010, 39_990, "gpudiag.gc")
            trace.operator(paused + 10_000, paused + 12_000, "aten::add")
            if ranks > 1:
                trace.operator(paused + 12_010, paused + 12_300, "c10d::allreduce_")
                trace.gloo(paused + 12_200, 43_000, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(43_020, 51_900, "aten::copy_")
    finding = next(iter(diagnosis_of([trace.build() for trace in traces])[0].values()))
    assert finding.code == ("host-stall" if ranks == 1 else "straggler")
    (line,) = finding.advice
    assert "gc.freeze()" in line
    assert ("all ranks" in line) == (ranks > 1)


@pytest.mark.parametrize("thread", [0, 5])
def test_other_threads_give_no_location(thread: int) -> None:
    trace = logging(marked=False)
    for step in range(7):
        trace.step(step * 30_000, mark=None).by(thread)
        trace.operator(100, 200, "aten::copy_").annotation(6_000, 20_000, "writer").operator(
            28_900, 28_990, "aten::cat"
        )
    (place,) = stalls(case_of([trace.build()]), {0})
    assert place.words == "after aten::mm and before aten::add"
