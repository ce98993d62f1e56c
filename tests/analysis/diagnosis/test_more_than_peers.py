"""Which operators a late rank spends longer in, whether it alone needs them, and where it pauses by itself."""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.examples import DDP, Job, kernels, read_back, silence
from gpudiag.analysis.diagnosis.rules.more_than_peers import OwnPauses, own_pauses
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.timeline_builder import TraceBuilder


def late_rank(*, own: bool) -> list[TraceBuilder]:
    """Rank 1 sorts for 30 ms in three calls, or takes 50 ms for the matrix product of 20 ms."""
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
def test_a_late_ranks_own_operators_are_named_and_not_those_that_all_need(*, own: bool) -> None:
    found, _ = diagnosis_of([trace.build() for trace in late_rank(own=own)])
    finding = found["straggler"]
    assert (finding.ranks, finding.cause) == ((1,), "compute")
    ((name, ms),) = finding.evidence["operators_ms_more_than_peers"].items()
    assert name == ("aten::sort" if own else "aten::mm")
    assert ms == pytest.approx(30, rel=0.02)
    assert finding.place == ("in aten::sort" if own else "")
    assert ("rank 1 call aten::sort" in finding.advice[0]) == own


def pausing(*, own: bool) -> Job:
    """Rank 0 pauses for 1 ms 30 times: between copies that only it makes, or between launches that both make."""
    if own:
        return Job(ranks=2, step=DDP, extra={0: (read_back(0.02, megabytes=0.5), silence(1)) * 30})
    pauses = (kernels(0.1, count=1), silence(1)) * 30
    return Job(ranks=2, step=((kernels(0.1, count=1),) * 30 + DDP), own={0: pauses + DDP})


@pytest.mark.parametrize("own", [True, False])
def test_a_rank_stalls_that_pauses_between_calls_that_the_others_do_not_make(*, own: bool) -> None:
    case = case_of(pausing(own=own).traces())
    assert own_pauses(case, (0,)).total_ms == pytest.approx(30 if own else 0, rel=0.01)
    assert not own_pauses(case, (1,)).ms
    assert not own_pauses(case, (0, 1)).ms
    finding = {one.code: one for one in diagnose(case).findings}["straggler"]
    assert finding.ranks == (0,)
    assert (finding.cause == "stall") == own
    assert (finding.place == "between calls of aten::copy_") == own
    assert ("pauses_ms_more_than_peers" in finding.evidence) == own


def test_of_pauses_in_many_places_none_is_named() -> None:
    pauses = OwnPauses(ms={"after a and before b": 4.0, "after b and before c": 3.0, "between calls of d": 2.0})
    assert (pauses.words(), pauses.total_ms) == ("", 9.0)
