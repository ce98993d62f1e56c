"""Several files at once: results in their places, errors as errors, and no process left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.errors import UnreadableInputError
from gpudiag.processes import WorkerLostError, can_fork, map_forked
from gpudiag.readers import ReadLimits, read, read_traces
from gpudiag.readers.kineto import read_kineto
from tests.readers.documents import TRACES, document, event, write

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace


@pytest.fixture
def always_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_WORTH_FORKING_JSON_BYTES", 0)
    if not can_fork():
        pytest.skip("forking needs Linux and a single thread")


def test_results_come_in_the_order_of_the_items_from_several_processes() -> None:
    def work(item: int) -> tuple[int, int]:
        return item * item, os.getpid()

    results = [done for done in map_forked(work, range(7), [1, 9, 2, 8, 3, 7, 4], 3) if not isinstance(done, Exception)]
    assert [square for square, _ in results] == [item * item for item in range(7)]
    assert len({process for _, process in results}) == 3


def test_errors_take_the_place_of_results() -> None:
    def work(item: int) -> int:
        if item % 2:
            raise UnreadableInputError(f"item {item}", "a remedy")
        return item

    results = map_forked(work, range(4), [1] * 4, 2)
    assert results[::2] == [0, 2]
    errors = [error for error in results if isinstance(error, UnreadableInputError)]
    assert [(str(error), error.hint) for error in errors] == [("item 1", "a remedy"), ("item 3", "a remedy")]


def test_a_killed_child_is_an_error_and_none_is_left() -> None:
    parent = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(WorkerLostError, match="items"):
        map_forked(work, range(4), [1] * 4, 2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interrupt_ends_the_children_at_once() -> None:
    parent = os.getpid()

    def work(item: int) -> int:
        if os.getpid() == parent:
            raise KeyboardInterrupt
        time.sleep(60)
        return item

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        map_forked(work, range(2), [1] * 2, 2)
    assert time.monotonic() - began < 30
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_no_fork_beside_other_threads() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert not can_fork()
    finally:
        stop.set()
        other.join()


@pytest.mark.usefixtures("always_fork")
def test_traces_read_by_several_processes_are_those_read_by_one() -> None:
    several = read_traces([TRACES / "vgg_p2poff"], limits=ReadLimits(workers=3))
    alone = read_traces([TRACES / "vgg_p2poff"], limits=ReadLimits(workers=1))
    assert [trace.rank for trace in several] == [0, 1, 2, 3]
    for one, other in zip(several, alone, strict=True):
        assert one.collectives == other.collectives
        assert one.events.names == other.events.names
        for column in ("kind", "name", "start_ns", "end_ns", "thread", "device", "correlation", "size_bytes"):
            assert np.array_equal(getattr(one.events, column), getattr(other.events, column))


@pytest.mark.usefixtures("always_fork")
def test_a_broken_file_is_named_whoever_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", document(event("cpu_op", "a", 1, 1)))
    write(tmp_path / "rank1.json", '{"traceEvents": [')
    with pytest.raises(UnreadableInputError, match=r"rank1\.json is cut short"):
        read_traces([tmp_path], limits=ReadLimits(workers=2))


@pytest.mark.usefixtures("always_fork")
def test_a_reader_that_is_killed_is_an_error_that_names_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", document(event("cpu_op", "a", 1, 1)))
    parent = os.getpid()

    def killed(path: Path, shown: str, limits: ReadLimits) -> Trace:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_kineto(path, shown, limits)

    monkeypatch.setattr(read, "read_kineto", killed)
    with pytest.raises(UnreadableInputError, match=r"the process that read .*rank[01]\.json was killed"):
        read_traces([tmp_path], limits=ReadLimits(workers=2))
