from __future__ import annotations

from gpudiag.model.analysis import BUCKETS
from gpudiag.report.rank_rows import MOST_ROWS, rows_of
from tests.builders import device, many_ranks


def test_a_machines_worth_of_ranks_are_all_drawn() -> None:
    rows, note = rows_of([device(rank, compute=10.0) for rank in range(MOST_ROWS)])
    assert [row.label for row in rows] == [f"rank {rank}" for rank in range(MOST_ROWS)]
    assert note == ""


def test_of_many_alike_the_median_is_drawn() -> None:
    rows, note = rows_of([device(rank, compute=10.0 + 0.01 * rank) for rank in range(9)])
    assert [row.label for row in rows] == ["median"]
    assert rows[0].buckets_ms["compute"] == 10.04
    assert "the median of 9 ranks, all alike" in note


def test_those_unlike_the_median_are_drawn_with_it() -> None:
    rows, note = rows_of(many_ranks(64, late=17).devices)
    assert [row.label for row in rows] == ["median", "rank 17"]
    assert "--all-ranks" in note


def test_the_slowest_and_the_fastest_are_drawn_when_steps_differ() -> None:
    devices = [device(rank, compute=10.0) for rank in range(20)]
    devices[3], devices[11] = device(3, compute=10.3), device(11, compute=9.9)
    assert [row.label for row in rows_of(devices)[0]] == ["median", "rank 3", "rank 11"]


def test_when_many_are_unlike_the_rest_is_counted() -> None:
    devices = [device(rank, compute=10.0, idle=0.0 if rank % 2 else 8.0) for rank in range(40)]
    rows, note = rows_of(devices)
    assert len(rows) == MOST_ROWS
    assert "more are unlike it" in note


def test_every_rank_when_asked() -> None:
    rows, note = rows_of(many_ranks(64).devices, all_ranks=True)
    assert len(rows) == 64
    assert note == ""


def test_devices_of_one_rank_are_told_apart() -> None:
    rows, _ = rows_of([device(0, ordinal="cuda:0", compute=1.0), device(0, ordinal="cuda:1", compute=1.0)])
    assert [row.label for row in rows] == ["rank 0 cuda:0", "rank 0 cuda:1"]


def test_rows_have_every_bucket_and_no_figure_that_cannot_be_drawn() -> None:
    rows, _ = rows_of([device(0, compute=float("nan"), copy=-1.0, idle=float("inf"))])
    assert rows[0].buckets_ms == dict.fromkeys(BUCKETS, 0.0)
