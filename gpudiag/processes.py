"""Work done in processes forked from this one: several items at once, or something beside what this one does."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class WorkerLostError(Exception):
    """A process ended without a result: killed, most likely for the memory it took.

    Args:
        items: positions of the items it had been given.
    """

    def __init__(self, items: Sequence[int]) -> None:
        super().__init__(f"the process working on items {list(items)} was lost")
        self.items = tuple(items)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def can_fork() -> bool:
    """Whether forking is safe here: on Linux, in a process whose only Python thread is this one."""
    return sys.platform == "linux" and threading.active_count() == 1


def map_forked(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    weights: Sequence[int],
    workers: int,
    meanwhile: Callable[[], None] | None = None,
) -> list[_Result | Exception]:
    """`work` on each item, in this process and `workers - 1` forked ones; each result in its item's place.

    This process takes a share too; or, given something to do `meanwhile`, it does that and leaves all items to others.
    Forking costs 2 ms, and the children need no imports; results come back pickled in files in memory. An exception of
    `work` takes the place of its result.

    Args:
        work: what to do; must not start threads.
        items: what to do it on.
        weights: how much work each item is, in any unit, to share it evenly.
        workers: processes that work on items.
        meanwhile: called once while the forked processes work.

    Raises:
        WorkerLostError: a child died.
    """
    shares = _even_shares(weights, min(workers, len(items)))
    running: dict[int, tuple[int, list[int]]] = {}
    results: list[Any] = [None] * len(items)
    try:
        for share in shares if meanwhile else shares[1:]:
            process, file = _start(work, items, share)
            running[process] = (file, share)
        if meanwhile:
            meanwhile()
        else:
            for position in shares[0]:
                results[position] = _attempt(work, items[position])
        for process, (file, share) in list(running.items()):
            os.waitpid(process, 0)
            del running[process]
            for position, result in zip(share, _results(file, share), strict=True):
                results[position] = result
    finally:
        for process, (file, _) in running.items():
            os.close(file)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return results


class Background(Generic[_Result]):
    """A value that a process of its own works out while this one goes on.

    Where forking is not safe, or there is no second processor, it is worked out here when it is asked for.

    Args:
        work: what to do; must not start threads, and what it changes stays in that process.
        worth: False where the work takes less than forking does (some ms).
    """

    def __init__(self, work: Callable[[], _Result], *, worth: bool = True) -> None:
        self._work = work
        self._found: list[_Result] = []
        self._running: tuple[int, int] | None = None
        if worth and usable_cpus() > 1 and can_fork():
            self._running = _start(lambda _: work(), (None,), [0])

    def result(self) -> _Result:
        """The value, as soon as it is there. Raises what the work raised."""
        if not self._found:
            self._found.append(self._collected() if self._running else self._work())
        return self._found[0]

    def _collected(self) -> _Result:
        process, file = cast("tuple[int, int]", self._running)
        os.waitpid(process, 0)
        self._running = None
        try:
            found = _results(file, [0])[0]
        except WorkerLostError:  # killed, for lack of memory perhaps: then without a second process
            return self._work()
        if isinstance(found, Exception):
            raise found
        return cast("_Result", found)

    def __del__(self) -> None:
        if self._running:  # nobody asked
            process, file = self._running
            os.close(file)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _results(file: int, share: list[int]) -> list[Any]:
    """What a child that has ended left in its file."""
    with os.fdopen(file, "rb"):
        size = os.fstat(file).st_size
        if not size:
            raise WorkerLostError(share)
        with mmap.mmap(file, size, access=mmap.ACCESS_READ) as data:
            # Not foreign data: our own child wrote it, into a file without a name.
            results: list[Any] = pickle.loads(data)  # noqa: S301 - see above
    return results


def _even_shares(weights: Sequence[int], count: int) -> list[list[int]]:
    """Positions shared out evenly: the heaviest first, each to who has least so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for position in sorted(range(len(weights)), key=lambda item: -weights[item]):
        lightest = totals.index(min(totals))
        shares[lightest].append(position)
        totals[lightest] += weights[position]
    return shares


def _attempt(work: Callable[[_Item], _Result], item: _Item) -> _Result | Exception:
    try:
        return work(item)
    except Exception as error:  # noqa: BLE001 - handed to the caller, in the result's place
        return error


def _start(work: Callable[[_Item], _Result], items: Sequence[_Item], share: list[int]) -> tuple[int, int]:
    """Fork a child that works on its share; its process id and the file that its results go to."""
    file = os.memfd_create("gpudiag-results", os.MFD_CLOEXEC)
    with warnings.catch_warnings():
        # Python 3.12 warns of native threads; NumPy's BLAS has some, which survive a fork and which we never call.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _work_and_exit(work, items, share, file)
    return process, file


def _work_and_exit(work: Callable[[_Item], _Result], items: Sequence[_Item], share: list[int], file: int) -> NoReturn:
    """The child: never returns into the parent's code, whatever happens."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        results = [_attempt(work, items[position]) for position in share]
        with os.fdopen(file, "wb") as stream:
            stream.write(pickle.dumps(results, protocol=5))
    finally:
        os._exit(0)
