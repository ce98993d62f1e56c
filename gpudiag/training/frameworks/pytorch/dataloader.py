"""Mark each fetch of a batch from PyTorch's DataLoader, and time the worker processes that make batches.

The training thread's wait for a batch shows how late the batch is, but not how long a worker took to make it. Suppose
that the workers of ranks A and B are equally slow, and by chance A's batch comes later. Then A waits for input, and B
waits for A in a collective. Meanwhile B's batches become ready, so B never waits for input. Only times measured in the
workers show that both loaders are equally slow.

Each forked worker adds its times to a table in memory that it shares with the training process. Adding takes 0.7 us per
batch. Spawned workers share no memory with the training process, so their times are unknown.

Once the file `REQUEST` exists, every worker times the lines of the user's dataset during a few batches.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported late, because every process of a command that imports PyTorch loads this module
    from gpudiag.model.run import LoaderPace

#: Number of rows of the table. A worker's row is its process id modulo this number. Two workers may share a row.
_ROWS = 4096

_NS_PER_MS = 1e6

#: File in the directory of line logs that asks workers to time lines.
REQUEST = "request"
#: Limits of a worker's timing of lines: minimum number of batches, minimum seconds, and maximum number of batches.
_MIN_LINE_BATCHES, _MIN_LINES_S, _MAX_LINE_BATCHES = 4, 0.5, 12


class _WorkerTable:
    """Table in shared memory with two cells per row: number of batches made, and their total time in ns."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.cells = memoryview(mmap.mmap(-1, 16 * _ROWS)).cast("q")

    def add(self, took_ns: int) -> None:
        row = 2 * (os.getpid() % _ROWS)
        self.cells[row] += 1
        self.cells[row + 1] += took_ns


#: The table of the process that starts workers. Forked workers inherit it.
_table: _WorkerTable | None = None
#: True if methods of PyTorch's classes have been replaced.
_watched = False
#: Directory of line logs; "" if no lines are timed. Forked workers inherit it.
_lines_dir = ""


def watch_workers(lines_dir: str = "") -> None:
    """Time the workers that this process starts from now on. If `lines_dir` is "", keep that of an earlier call."""
    global _watched, _lines_dir  # noqa: PLW0603  # PyTorch's classes are changed once per process
    _lines_dir = lines_dir or _lines_dir
    if _watched:
        return
    from torch.utils.data import _utils, dataloader

    _watched = True
    # PyTorch has no hook, so methods of its classes are wrapped.
    loader: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001
    loader.__init__ = _sharing(loader.__init__)
    fetchers: Any = _utils.fetch
    for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):  # noqa: SLF001
        kind.fetch = _timed(kind.fetch)


class WorkerTimes:
    """Times of this process's workers since the call of `begin`."""

    def __init__(self) -> None:
        self._before: list[int] = []

    def begin(self) -> None:
        """Begin a new measurement, without the batches made so far."""
        self._before = _cells()

    def time_lines(self) -> None:
        """Ask the workers to time the lines of the user's dataset."""
        if _lines_dir:
            with contextlib.suppress(OSError):
                Path(_lines_dir).mkdir(parents=True, exist_ok=True)
                (Path(_lines_dir) / REQUEST).touch()

    def pace(self) -> LoaderPace | None:
        """Return the mean time per batch since `begin`; None if no watched worker has made a batch."""
        before = self._before or [0] * (2 * _ROWS)
        # Before any worker has started, there is no table, and `_cells` is empty.
        increases = [now - then for now, then in zip(_cells(), before, strict=False)]  # batches and ns alternate
        batches = [count for count in increases[::2] if count > 0]
        if not batches:
            return None
        from gpudiag.model.run import LoaderPace

        took_ms = sum(increases[1::2]) / _NS_PER_MS / sum(batches)
        return LoaderPace(workers=len(batches), batches=sum(batches), batch_ms=round(took_ms, 6))


@contextlib.contextmanager
def marked_loaders(ended: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the block, mark every `next` of a DataLoader's iterator as a range named `input`.

    The class of the iterators is changed during the block, because PyTorch has no hook and iterators may exist already.

    Args:
        ended: called when a DataLoader has no more batches, in the thread that asked for a batch.
    """
    from torch.utils.data import dataloader

    from gpudiag.training.session.ranges import INPUT, Range

    kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  # the base of all iterators of DataLoader
    fetch = kind.__next__

    @functools.wraps(fetch)
    def marked(iterator: Any) -> Any:
        with Range(INPUT):
            try:
                return fetch(iterator)
            except StopIteration:
                ended()
                raise

    kind.__next__ = marked
    try:
        yield
    finally:
        if kind.__next__ is marked:  # otherwise later code has wrapped `marked`, and still calls it
            kind.__next__ = fetch


def _cells() -> list[int]:
    return _table.cells.tolist() if _table is not None and _table.pid == os.getpid() else []


def _sharing(make: Callable[..., None]) -> Callable[..., None]:
    """Wrap an iterator's `__init__`, so that this process has a table before it starts workers."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> None:
        global _table  # noqa: PLW0603  # forked workers inherit it
        if _table is None or _table.pid != os.getpid():
            _table = _WorkerTable()
        make(*args, **kwargs)

    return made


def _timed(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a fetcher's `fetch`, so that a worker records the time of each batch, and times lines on request."""
    from torch.utils.data import get_worker_info

    lines = _WorkerLines()

    @functools.wraps(fetch)
    def timed(fetcher: Any, wanted: Any) -> Any:
        if get_worker_info() is None:  # the training process makes its batches itself
            return fetch(fetcher, wanted)
        if lines.wanted():
            lines.begin_batch()
        begin_ns = time.perf_counter_ns()
        batch = fetch(fetcher, wanted)
        if _table is not None and _table.pid != os.getpid():  # the table of the training process, inherited by a fork
            _table.add(time.perf_counter_ns() - begin_ns)
        lines.end_batch()
        return batch

    return timed


class _WorkerLines:
    """Time the lines of the user's dataset in a worker, as one section of a line log. Each batch is a step."""

    def __init__(self) -> None:
        self._log: Any = None
        self._batches, self._begun_s = 0, 0.0
        self._over = False

    def wanted(self) -> bool:
        """Return whether to time lines now: the file `REQUEST` exists, and this worker has not finished timing."""
        return not self._over and bool(_lines_dir) and Path(_lines_dir, REQUEST).exists()

    def begin_batch(self) -> None:
        """Begin to time lines at the first call."""
        if self._log is None:
            from gpudiag.training.session.line_log import LineLog

            self._log, self._begun_s = LineLog(), time.monotonic()
            self._log.begin("alone", in_loop=False)

    def end_batch(self) -> None:
        """End a batch. After enough batches, end the timing of lines and save the log."""
        if self._log is None or self._over:
            return
        self._log.step()
        self._batches += 1
        enough = self._batches >= _MIN_LINE_BATCHES and time.monotonic() - self._begun_s >= _MIN_LINES_S
        if enough or self._batches >= _MAX_LINE_BATCHES:
            self._over = True
            self._log.end()
            with contextlib.suppress(Exception):  # without the log, the report only lacks the dataset's lines
                from gpudiag.training.session.line_log import worker_log_name, write_lines

                write_lines(Path(_lines_dir) / worker_log_name(), self._log.encode())
