"""Record source lines in the worker processes of a DataLoader, over a few batches of each."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from source_lines.line_times import LineRecorder
from source_lines.records import WORKER_LINES, LineTimes

#: The first batch of a worker that is recorded, counted from 0: earlier ones open files and fill caches.
_FIRST = 2
#: Batches that are recorded, or fewer once they have taken this many seconds.
_BATCHES = 8
_SECONDS = 2.0


class WorkerLines:
    """Records the lines below a worker's fetching of batches, and saves them once.

    Args:
        directory: where the file of this process goes; it must exist.
        rank: of the process that started the worker.
        keep_source: False to leave out the text of lines.
    """

    def __init__(self, directory: Path, rank: int, *, keep_source: bool = True) -> None:
        self._path = directory / WORKER_LINES.format(rank=rank, pid=os.getpid())
        self._keep_source = keep_source
        self._batches = 0
        self._recorder: LineRecorder | None = None
        self._began_s = 0.0

    def before(self) -> None:
        """Note that a batch is about to be fetched."""
        if self._batches == _FIRST:
            self._recorder = LineRecorder(keep_source=self._keep_source, loop=False)
            self._began_s = time.perf_counter()
        if self._recorder is not None and self._batches == _FIRST:
            self._recorder.step()

    def after(self) -> None:
        """Note that a batch was fetched."""
        self._batches += 1
        if self._recorder is None:
            return
        self._recorder.step()
        recorded = self._batches - _FIRST
        if recorded == _BATCHES or (recorded > 1 and time.perf_counter() - self._began_s > _SECONDS):
            self._recorder.stop()
            times, self._recorder = self._recorder.times(), None
            if times is not None:
                self._save(times)

    def _save(self, times: LineTimes) -> None:
        import msgspec  # noqa: PLC0415  # a worker that records nothing does without

        # Nothing here may disturb the worker: without its file, its lines are unknown.
        with contextlib.suppress(OSError):
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(msgspec.json.encode(times))
            partial.replace(self._path)
