"""Calling a function in the main thread, between two instructions of whatever it runs, but for a backward pass.

What starts or ends within backward, in its hooks, would lose its state when autograd puts that of the thread back.
"""

from __future__ import annotations

import contextlib
import ctypes
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


def raise_in_main_thread(error: type[BaseException]) -> None:
    """The main thread raises it at its next instruction. To be called in another: it would be raised in here."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _add() -> bool:
    return bool(ctypes.pythonapi.Py_AddPendingCall(_ENTRY, ctypes.py_object(_PENDING)) == 0)


def _in_backward() -> bool:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # there is no public way that costs as little
    while frame is not None:
        code = frame.f_code
        if code.co_name in {"_engine_run_backward", "backward", "grad"} and "torch/autograd/" in code.co_filename:
            return True
        frame = frame.f_back
    return False


#: For the life of the process: the interpreter knows both by address only.
_PENDING, _ENTRY = _Pending(), ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
