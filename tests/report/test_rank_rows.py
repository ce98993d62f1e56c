from __future__ import annotations

from gpudiag.model.analysis import BUCKETS
from gpudiag.report.rank_rows import MOST_ROWS, rows_of
from tests.builders import device, many_ranks


def test_ranks_of_one_machine_are_all_shown() -> None:
    rows, note = rows_of([device(rank, compute=10.0) for rank in range(MOST_ROWS)])
    assert [row.label for row in rows] == [f"rank {rank}" for rank in range(MOST_ROWS)]
    assert note == ""


def test_many_equal_ranks_are_reduced_to_the_median() -> None:
    rows, note = rows_of([device(rank, compute=10.0 + 0.01 * rank) for rank in range(9)])
    assert [row.label for row in rows] == ["median"]
    assert rows[0].buckets_ms["compute"] == 10.04
    assert "the median of 9 ranks; all ranks are alike" in note


def test_ranks_unlike_the_median_are_shown_with_it() -> None:
    rows, note = rows_of(many_ranks(64, late=17).devices)
    assert [row.label for row in rows] == ["median", "rank 17"]
    assert "--all-ranks" in note


def test_slowest_and_fastest_rank_are_shown_if_steps_differ() -> None:
    devices = [device(rank, compute=10.0) for rank in range(20)]
    devices[3], devices[11] = device(3, compute=10.3), device(11, compute=9.9)
    assert [row.label for row in rows_of(devices)[0]] == ["median", "rank 3", "rank 11"]


def test_omitted_outliers_are_counted() -> None:
    devices = [device(rank, compute=10.0, idle=0.0 if rank % 2 else 8.0) for rank in range(40)]
    rows, note = rows_of(devices)
    assert len(rows) == MOST_ROWS
    assert "more differ" in note


def test_all_ranks_are_shown_on_request() -> None:
    rows, note = rows_of(many_ranks(64).devices, all_ranks=True)
    assert len(rows) == 64
    assert note == ""


def test_devices_of_one_rank_have_distinct_labels() -> None:
    rows, _ = rows_of([device(0, ordinal="cuda:0", compute=1.0), device(0, ordinal="cuda:1", compute=1.0)])
    assert [row.label for row in rows] == ["rank 0 cuda:0", "rank 0 cuda:1"]


def test_rows_have_every_bucket_and_only_valid_times() -> None:
    rows, _ = rows_of([device(0, compute=float("nan"), copy=-1.0, idle=float("inf"))])
    assert rows[0].buckets_ms == dict.fromkeys(BUCKETS, 0.0)
