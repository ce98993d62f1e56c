"""Test times of DataLoader workers, with real loaders in separate processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpudiag.model.source_lines.log import STEP, find_line_logs
from gpudiag.training.frameworks.pytorch import dataloader
from gpudiag.training.frameworks.pytorch.dataloader import WorkerTimes, watch_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpudiag.model.run import LoaderPace

EACH_S = 0.02


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        time.sleep(EACH_S)
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for sample in range(6):
            time.sleep(EACH_S)
            yield sample


def pace(loader: DataLoader[int], *, used: int = 0) -> LoaderPace | None:
    """Return how fast the workers load batches, measured after the first `used` batches."""
    watch_workers()
    times = WorkerTimes()
    batches = iter(loader)
    for _ in range(used):
        next(batches)
    times.begin()
    list(batches)
    return times.pace()


@pytest.mark.parametrize(("workers", "size"), [(1, 1), (2, 2)])
def test_worker_batches_are_counted_and_timed(workers: int, size: int) -> None:
    made = pace(DataLoader(Slow(), batch_size=size, num_workers=workers, multiprocessing_context="fork"))
    assert made is not None
    assert (made.workers, made.batches) == (workers, 12 // size)
    assert made.batch_ms >= 1000 * EACH_S * size


def test_batches_before_begin_do_not_count() -> None:
    made = pace(DataLoader(Slow(), batch_size=1, num_workers=1, multiprocessing_context="fork"), used=6)
    assert made is not None
    assert 1 <= made.batches <= 6


def test_iterable_datasets_are_timed() -> None:
    made = pace(DataLoader(Stream(), batch_size=3, num_workers=1, multiprocessing_context="fork"))
    assert made is not None
    assert (made.batches >= 2, made.batch_ms >= 1000 * EACH_S) == (True, True)


@pytest.mark.parametrize(("workers", "how"), [(0, None), pytest.param(1, "spawn", marks=pytest.mark.processes)])
def test_pace_is_unknown_without_forked_workers(workers: int, how: str | None) -> None:
    assert pace(DataLoader(Slow(), batch_size=6, num_workers=workers, multiprocessing_context=how)) is None


def test_workers_time_lines_after_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "_lines_dir", "")
    (tmp_path / "run.json").write_text("{}")
    watch_workers(str(tmp_path / "lines"))
    batches = iter(DataLoader(Slow(), batch_size=1, num_workers=2, sampler=[0] * 120, multiprocessing_context="fork"))
    next(batches)
    assert find_line_logs([tmp_path]).workers == ()
    WorkerTimes().time_lines()
    assert len(list(batches)) == 119
    logs = find_line_logs([tmp_path])
    assert (logs.ranks, logs.unread, {log.parent for log in logs.workers}) == ({}, (), {os.getpid()})
    assert len(logs.workers) == 2
    for log in logs.workers:
        assert "Slow.__getitem__" in {code.function for code in log.codes if code.own}
        (section,) = log.sections
        # A section has 4 to 12 batches. One mark begins the first batch, and a mark ends each batch.
        assert 1 + 4 <= section.events.value.count(STEP) <= 1 + 12


def _counted(batches: int, told: multiprocessing.queues.Queue[tuple[int, int]]) -> None:
    made = pace(DataLoader(Slow(), batch_size=12 // batches, num_workers=1, multiprocessing_context="fork"))
    assert made is not None
    told.put((batches, made.batches))


def test_forked_ranks_see_only_their_workers() -> None:
    pace(DataLoader(Slow(), batch_size=12, num_workers=1, multiprocessing_context="fork"))
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    ranks = [fork.Process(target=_counted, args=(batches, answers)) for batches in (2, 4)]
    for rank in ranks:
        rank.start()
    assert sorted(answers.get(timeout=60) for _ in ranks) == [(2, 2), (4, 4)]
    for rank in ranks:
        rank.join()
