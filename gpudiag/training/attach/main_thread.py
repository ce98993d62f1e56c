"""Calling a function in the main thread, between two instructions of whatever it runs, but for a backward pass.

What starts or ends within backward, in its hooks, would lose its state when autograd puts that of the thread back.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType

_waiting: deque[Callable[[], object]] = deque()


class _Pending:
    """What the interpreter calls is `PyObject_IsTrue` of this: a function in C whose failure the main thread raises."""

    def __bool__(self) -> bool:
        if _in_backward() and _add():
            return False
        while _waiting:
            with contextlib.suppress(Exception):
                _waiting.popleft()()
        return False


def in_main_thread(function: Callable[[], object]) -> bool:
    """Have it called there soon: a pending call of the interpreter, as signals are handled.

    Of what it raises, exceptions are lost and the main thread raises the rest, such as SystemExit, at that instruction.
    False where it will not be called: the interpreter keeps few such calls.
    """
    _waiting.append(function)
    if _add():
        return True
    _waiting.remove(function)
    return False


def when_backward_ends(function: Callable[[], object]) -> None:
    """Called within backward, on any of its threads: have it called in the main thread, whose backward it is, after it.

    What autograd calls at the end is in C, so that the interpreter first looks for calls when backward has returned.
    """
    from torch.autograd import Variable

    _waiting.append(function)
    Variable._execution_engine.queue_callback(_ADD)  # noqa: SLF001  # as DDP does


def raise_in_main_thread(error: type[BaseException]) -> None:
    """The main thread raises it at its next instruction. To be called in another: it would be raised in here."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _add() -> bool:
    return bool(_ADD() == 0)


def _in_backward() -> bool:
    """Does what was interrupted run within a backward pass? Not where that pass is about to return, or to begin."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # there is no public way that costs as little
    while frame is not None and _is_backward(frame):
        frame = frame.f_back
    while frame is not None and not _is_backward(frame):
        frame = frame.f_back
    return frame is not None


def _is_backward(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in {"_engine_run_backward", "backward", "grad"} and "torch/autograd/" in code.co_filename


#: For the life of the process: the interpreter knows both by address only.
_PENDING, _ENTRY = _Pending(), ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_ADD = functools.partial(ctypes.pythonapi.Py_AddPendingCall, _ENTRY, ctypes.py_object(_PENDING))
