"""Which operators a late rank spends longer in, and whether it alone needs them."""

from __future__ import annotations

import pytest

from tests.analysis.diagnosis.cases import diagnosis_of
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
