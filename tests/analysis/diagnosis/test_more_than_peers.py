"""Test which operators take longer on a late rank, whether only this rank calls them, and its additional pauses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.rules.late_cause import OwnPauses, own_pauses
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, kernels, read_back, silence
from tests.timeline_builder import TraceBuilder


def late_rank(*, own: bool) -> list[TraceBuilder]:
    """Make rank 1 sort for 30 ms in three calls, or make its matrix product take 50 instead of 20 ms."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for step in range(6):
            longer = 30_000 if rank == 1 and not own else 0
            trace.step(step * 100_000).operator(100, 20_000 + longer, "aten::mm")
            at = 20_000 + longer
            for _ in range(3 if rank == 1 and own else 0):
                trace.operator(at, at + 10_000, "aten::sort")
                at += 10_000
            trace.operator(at + 10, at + 300, "c10d::allreduce_")
            trace.gloo(at + 200, 51_000, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(51_020, 99_900, "aten::copy_")
    return ranks


@pytest.mark.parametrize("own", [True, False])
def test_additional_operators_of_a_late_rank_are_named(*, own: bool) -> None:
    found, _ = diagnosis_of([trace.build() for trace in late_rank(own=own)])
    finding = found["straggler"]
    assert (finding.ranks, finding.cause) == ((1,), "compute")
    ((name, ms),) = finding.evidence["operators_ms_more_than_peers"].items()
    assert name == ("aten::sort" if own else "aten::mm")
    assert ms == pytest.approx(30, rel=0.02)
    assert finding.place == ("in aten::sort" if own else "")
    assert ("rank 1 call aten::sort" in finding.advice[0]) == own


def pausing(*, own: bool) -> Job:
    """Make rank 0 pause 30 times for 1 ms, between copies that only rank 0 makes or launches that both ranks make."""
    if own:
        return Job(ranks=2, step=DDP, extra={0: (read_back(0.02, megabytes=0.5), silence(1)) * 30})
    pauses = (kernels(0.1, count=1), silence(1)) * 30
    return Job(ranks=2, step=((kernels(0.1, count=1),) * 30 + DDP), own={0: pauses + DDP})


@pytest.mark.parametrize("own", [True, False])
def test_pauses_between_additional_calls_are_a_stall(*, own: bool) -> None:
    case = case_of(pausing(own=own).traces())
    assert own_pauses(case, (0,)).total_ms == pytest.approx(30 if own else 0, rel=0.01)
    assert not own_pauses(case, (1,)).ms
    assert not own_pauses(case, (0, 1)).ms
    finding = {finding.code: finding for finding in diagnose(case).findings}["straggler"]
    assert finding.ranks == (0,)
    assert (finding.cause == "stall") == own
    assert (finding.place == "between calls of aten::copy_") == own
    assert ("pauses_ms_more_than_peers" in finding.evidence) == own


def test_pauses_at_many_locations_are_not_named() -> None:
    pauses = OwnPauses(ms={"after a and before b": 4.0, "after b and before c": 3.0, "between calls of d": 2.0})
    assert (pauses.words(), pauses.total_ms) == ("", 9.0)


def calling(*calls: tuple[str, int, int]) -> TraceBuilder:
    """Make steps of 20 ms in which a thread makes `calls` (name, start, end in µs) and a kernel runs at the end."""
    trace = TraceBuilder()
    for step in range(5):
        trace.step(step * 20_000)
        for name, start, end in calls:
            trace.operator(start, end, name)
        trace.compute(18_000, 19_000, launch=17_900).operator(17_950, 19_990, "update")
    return trace


def pauses_of(*ranks: tuple[tuple[str, int, int], ...], late: tuple[int, ...] = (0,)) -> dict[str, float]:
    traces = [replace(calling(*calls).build(), rank=rank, world_size=len(ranks)) for rank, calls in enumerate(ranks)]
    return own_pauses(case_of(traces), late).ms


OFTEN_TOGETHER = (("a", 0, 1000), ("b", 1001, 17_800))


@pytest.mark.parametrize(("begin", "paused"), [(1501, 0.501), (1500, None)])
def test_a_pause_is_longer_than_half_a_millisecond(begin: int, paused: float | None) -> None:
    own = pauses_of((("a", 0, 1000), ("b", begin, 17_800)), (("c", 0, 17_800),))
    assert own == ({} if paused is None else {"after a and before b": pytest.approx(paused)})


def test_pause_is_additional_if_its_calls_follow_twice_as_often() -> None:
    once = (("a", 0, 1000), ("b", 3000, 17_800))
    twice = (("a", 0, 1000), ("b", 3000, 4000), ("a", 4001, 5000), ("b", 6000, 17_800))
    assert pauses_of(once, OFTEN_TOGETHER) == {}
    assert pauses_of(twice, OFTEN_TOGETHER) == {"after a and before b": pytest.approx(3)}
    # The mean over late ranks is compared with the mean over peers. Time within a nested call does not count.
    assert pauses_of(once, OFTEN_TOGETHER, (("c", 0, 17_800),)) == {"after a and before b": pytest.approx(2)}
    inner = (("c", 0, 17_800), ("a", 10, 1000), ("b", 1001, 2000))
    assert pauses_of(once, inner) == {"after a and before b": pytest.approx(2)}
    assert pauses_of(once, (("a", 0, 17_800),), (("c", 0, 17_800),), late=(0, 1)) == {
        "after a and before b": pytest.approx(1)
    }


def test_pauses_are_named_by_surrounding_calls_longest_first() -> None:
    calls = (("a", 0, 1000), ("a", 1600, 2000), ("b", 4000, 5000), ("b", 8000, 17_800))
    pauses = pauses_of(calls, (("c", 0, 17_800),))
    assert list(pauses) == ["between calls of b", "after a and before b", "between calls of a"]
    assert list(pauses.values()) == pytest.approx([3, 2, 0.6])
