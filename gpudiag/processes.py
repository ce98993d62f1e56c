"""Work done in processes forked from this one: several items at once, or something beside what this one does."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LENGTH = struct.Struct("=Q")
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
    Forking costs 2 ms, and the children need no imports; results come back in files in memory, pickled but for their
    arrays. An exception of `work` takes the place of its result.

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
            _, status = os.waitpid(process, 0)
            del running[process]
            for position, result in zip(share, _results(file, share, status), strict=True):
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
        _, status = os.waitpid(process, 0)
        self._running = None
        try:
            found = _results(file, [0], status)[0]
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


def _results(file: int, share: list[int], status: int) -> list[Any]:
    """What a child that has ended with this status left in its file; arrays stay where they lie in it."""
    with os.fdopen(file, "rb"):
        if status:
            raise WorkerLostError(share)
        size = os.fstat(file).st_size
        # Given back when the last array in it goes. All pages at once: to meet them one by one takes longer.
        data = memoryview(mmap.mmap(file, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)))
    (count,) = _LENGTH.unpack_from(data, size - _LENGTH.size)
    ends = struct.unpack_from(f"={count}Q", data, size - (count + 1) * _LENGTH.size)
    parts = [data[_aligned(begin) : end] for begin, end in pairwise((0, *ends))]
    # Not foreign data: our own child wrote it, into a file without a name.
    results: list[Any] = pickle.loads(parts[-1], buffers=parts[:-1])  # noqa: S301 - see above
    return results


def _leave_results(results: list[Any], file: int) -> None:
    """Write what `_results` reads: arrays as they are, the pickled rest, where each of them ends, and their number."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(results, protocol=5, buffer_callback=arrays.append)
    end, ends = 0, []
    with os.fdopen(file, "wb", buffering=0) as stream:
        for part in (*(array.raw() for array in arrays), memoryview(rest)):
            stream.seek(_aligned(end))
            left = part
            while left:
                left = left[stream.write(left) :]
            end = _aligned(end) + part.nbytes
            ends.append(end)
        stream.seek(end)
        stream.write(struct.pack(f"={len(ends) + 1}Q", *ends, len(ends)))


def _aligned(position: int) -> int:
    """The next multiple of what the widest vector instructions want."""
    return -(-position // 64) * 64


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
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        results = [_attempt(work, items[position]) for position in share]
        _leave_results(results, file)
        status = 0
    finally:
        os._exit(status)
