"""How long the worker processes of a DataLoader take to make a batch.

What the training thread waits for a batch says how late it is, and not how long it took to make. Where the workers of
two ranks are equally slow, those of one are a little later by chance: its rank waits for nearly all of a batch, and the
other, whose batches lie ready by the time the first has come, for nothing. Only what the workers take tells such a
rank from one that is late by itself.

Each worker adds what it takes to a table in memory that it shares with the process that started it, as children that
are forked do (workers that are spawned do not, and of them nothing is known). It costs a worker 0.7 us a batch.
"""

from __future__ import annotations

import functools
import mmap
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported late: this is loaded into every process of a command that has imported PyTorch
    from gpudiag.model.run import LoaderPace

#: Workers find their places in the table by the number of their process; two at the same would count as one.
_PLACES = 4096

_NS_PER_MS = 1e6


class _Table:
    """By place: how many batches were made, and in how many nanoseconds."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.cells = memoryview(mmap.mmap(-1, 16 * _PLACES)).cast("q")

    def add(self, took_ns: int) -> None:
        place = 2 * (os.getpid() % _PLACES)
        self.cells[place] += 1
        self.cells[place + 1] += took_ns


#: Of the process that last made workers: of this one, or in a worker of the one that started it.
_table: _Table | None = None
_watched = False


def watch_workers() -> None:
    """From now on the workers that this process forks are seen. May be called again."""
    global _watched  # noqa: PLW0603  # classes are changed once
    if _watched:
        return
    from torch.utils.data import _utils, dataloader

    _watched = True
    # There is no hook: the classes are changed, and what they do is not.
    loader: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001
    loader.__init__ = _sharing(loader.__init__)
    fetchers: Any = _utils.fetch
    for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):  # noqa: SLF001
        kind.fetch = _timed(kind.fetch)


class WorkerTimes:
    """What the workers of this process have made since `begin`."""

    def __init__(self) -> None:
        self._before: list[int] = []

    def begin(self) -> None:
        """Forget what was made before."""
        self._before = _made()

    def pace(self) -> LoaderPace | None:
        """None where no worker was seen to make any."""
        before = self._before or [0] * (2 * _PLACES)
        more = [now - then for now, then in zip(_made(), before, strict=False)]
        batches = [count for count in more[::2] if count > 0]
        if not batches:
            return None
        from gpudiag.model.run import LoaderPace

        took_ms = sum(more[1::2]) / _NS_PER_MS / sum(batches)
        return LoaderPace(workers=len(batches), batches=sum(batches), batch_ms=round(took_ms, 6))


def _made() -> list[int]:
    return _table.cells.tolist() if _table is not None and _table.pid == os.getpid() else []


def _sharing(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> None:
        global _table  # noqa: PLW0603  # children find it here
        if _table is None or _table.pid != os.getpid():
            _table = _Table()
        make(*args, **kwargs)

    return made


def _timed(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(fetch)
    def timed(fetcher: Any, wanted: Any) -> Any:
        if _table is None or _table.pid == os.getpid():  # no worker: this process fetches its batches itself
            return fetch(fetcher, wanted)
        begin_ns = time.perf_counter_ns()
        batch = fetch(fetcher, wanted)
        _table.add(time.perf_counter_ns() - begin_ns)
        return batch

    return timed
