"""Work on several files at once, in processes forked from this one."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

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


def can_fork() -> bool:
    """Whether forking is safe here: on Linux, in a process whose only Python thread is this one."""
    return hasattr(os, "fork") and os.uname().sysname == "Linux" and threading.active_count() == 1


def map_forked(
    work: Callable[[_Item], _Result], items: Sequence[_Item], weights: Sequence[int], workers: int
) -> list[_Result | Exception]:
    """`work` on each item, in this process and `workers - 1` forked ones; each result in its item's place.

    This process takes a share too. Forking costs 2 ms, and the children need no imports; results come back pickled
    through pipes. An exception of `work` takes the place of its result.

    Args:
        work: what to do; must not start threads.
        items: what to do it on.
        weights: how much work each item is, in any unit, to share it evenly.
        workers: processes in all, this one included.

    Raises:
        WorkerLostError: a child died.
    """
    shares = _even_shares(weights, min(workers, len(items)))
    children: list[tuple[int, BinaryIO, list[int]]] = []
    results: list[Any] = [None] * len(items)
    try:
        for share in shares[1:]:
            process, stream = _start(work, items, share)
            children.append((process, stream, share))
        for position in shares[0]:
            results[position] = _attempt(work, items[position])
        while children:
            process, stream, share = children[0]
            data = stream.read()
            children.pop(0)
            stream.close()
            os.waitpid(process, 0)
            if not data:
                raise WorkerLostError(share)
            # Not foreign data: our own child wrote it into a pipe that nobody else holds.
            for position, result in zip(share, pickle.loads(data), strict=True):  # noqa: S301 - see above
                results[position] = result
    finally:
        for process, stream, _ in children:
            stream.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
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


def _start(work: Callable[[_Item], _Result], items: Sequence[_Item], share: list[int]) -> tuple[int, BinaryIO]:
    """Fork a child that works on its share; its process id and the stream on which its results come."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of native threads; NumPy's BLAS has some, which survive a fork and which we never call.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _work_and_exit(work, items, share, reading, writing)
    os.close(writing)
    return process, os.fdopen(reading, "rb")


def _work_and_exit(
    work: Callable[[_Item], _Result], items: Sequence[_Item], share: list[int], reading: int, writing: int
) -> NoReturn:
    """The child: never returns into the parent's code, whatever happens."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reading)
        data = pickle.dumps([_attempt(work, items[position]) for position in share], protocol=5)
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    finally:
        os._exit(0)
