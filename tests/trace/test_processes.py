"""Test reading several files in parallel: traces are in order, errors are raised, and no reading process remains."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.errors import UnreadableInputError
from gpudiag.trace import ReadLimits, parallel, read, read_traces
from gpudiag.trace.readers.kineto.document import read_kineto
from tests.trace.documents import TRACES, document, event, write

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace


@pytest.fixture
def always_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_MIN_PARALLEL_BYTES", 0)
    if not parallel.can_fork():
        pytest.skip("forking needs Linux and a single thread")


@pytest.mark.usefixtures("always_fork")
def test_several_processes_read_the_same_traces_as_one() -> None:
    several = read_traces([TRACES / "vgg_p2poff"], limits=ReadLimits(workers=3))
    alone = read_traces([TRACES / "vgg_p2poff"], limits=ReadLimits(workers=1))
    assert [trace.rank for trace in several] == [0, 1, 2, 3]
    for trace, other in zip(several, alone, strict=True):
        assert trace.collectives == other.collectives
        assert trace.events.names == other.events.names
        for name, column in trace.events.columns().items():
            assert np.array_equal(column, getattr(other.events, name))


@pytest.mark.usefixtures("always_fork")
def test_broken_file_is_named_by_any_reader(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", document(event("cpu_op", "a", 1, 1)))
    write(tmp_path / "rank1.json", '{"traceEvents": [')
    with pytest.raises(UnreadableInputError, match=r"rank1\.json is cut short"):
        read_traces([tmp_path], limits=ReadLimits(workers=2))


@pytest.mark.usefixtures("always_fork")
def test_killed_reader_is_an_error_that_names_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", document(event("cpu_op", "a", 1, 1)))
    parent = os.getpid()

    def killed(path: Path, shown: str, limits: ReadLimits) -> Trace:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_kineto(path, shown, limits)

    monkeypatch.setattr("gpudiag.trace.readers.kineto.read_kineto", killed)
    with pytest.raises(UnreadableInputError, match=r"a process that read one of .*rank0\.json.*rank1\.json was killed"):
        read_traces([tmp_path], limits=ReadLimits(workers=2))
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("always_fork")
def test_interrupt_ends_the_children_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", document(event("cpu_op", "a", 1, 1)))
    parent = os.getpid()

    def slow(path: Path, shown: str, limits: ReadLimits) -> Trace:
        if path.name == "rank0.json":
            os.kill(parent, signal.SIGINT)
        time.sleep(600)
        return read_kineto(path, shown, limits)

    monkeypatch.setattr("gpudiag.trace.readers.kineto.read_kineto", slow)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read_traces([tmp_path], limits=ReadLimits(workers=2))
    assert time.monotonic() - began < 300
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("always_fork")
def test_interrupt_that_a_native_thread_receives_while_forking_ends_the_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt arrives after the fork, before the reader is registered."""
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", document(event("cpu_op", "a", 1, 1)))
    start = ForkProcess.start

    def interrupted(process: ForkProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    monkeypatch.setattr(ForkProcess, "start", interrupted)
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lock.acquire, ())  # as a native thread, `threading` does not count it
    try:
        with pytest.raises(KeyboardInterrupt):
            read_traces([tmp_path], limits=ReadLimits(workers=2))
        assert not multiprocessing.active_children()
    finally:
        lock.release()


class Large:
    """An object of 400 MB that creates a file when it is pickled."""

    def __init__(self, pickled: Path) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self._pickled.touch()
        return bytes, (bytes(400_000_000),)


@pytest.mark.usefixtures("always_fork")
def test_error_in_one_file_ends_readers_that_are_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1's error ends the readers while rank 0 still sends its result.

    Meanwhile nobody receives the error of rank 1 and the result of rank 2. When the parent gets the error, it kills the
    readers, which interrupts rank 2 in the middle of its message.
    """
    for rank in (0, 2):
        write(tmp_path / f"rank{rank}.json", document(event("cpu_op", "a", 1, 1)))
    write(tmp_path / "rank1.json", '{"traceEvents": [')
    pickled = tmp_path / "pickled"

    def large(path: Path, shown: str, limits: ReadLimits) -> Any:
        """Return a large result for ranks 0 and 2, and raise the error of rank 1 while rank 0 sends."""
        if path.name == "rank0.json":
            return Large(pickled)
        while not pickled.exists():
            time.sleep(0.001)
        if path.name == "rank2.json":
            time.sleep(0.05)
            return Large(pickled)
        return read_kineto(path, shown, limits)

    monkeypatch.setattr("gpudiag.trace.readers.kineto.read_kineto", large)
    outcome: list[BaseException] = []

    def attempt() -> None:
        try:
            read_traces([tmp_path], limits=ReadLimits(workers=3))
        except UnreadableInputError as error:
            outcome.append(error)

    monkeypatch.setattr(read, "can_fork", lambda: True)
    reading = threading.Thread(target=attempt, daemon=True)
    reading.start()
    reading.join(20)
    assert not reading.is_alive()
    assert "rank1.json is cut short" in str(outcome[0])
    assert not multiprocessing.active_children()


def test_processes_with_other_threads_do_not_fork() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert not parallel.can_fork()
    finally:
        stop.set()
        other.join()
