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
from typing import Any

_waiting: deque[Callable[[], object]] = deque()


def in_main_thread(function: Callable[[], object]) -> bool:
    """Have it called there soon: a pending call of the interpreter, as signals are handled. What it raises is lost.

    False where it will not be called: the interpreter keeps few such calls.
    """
    _waiting.append(function)
    if ctypes.pythonapi.Py_AddPendingCall(_entry, None) == 0:
        return True
    _waiting.remove(function)
    return False


def raise_in_main_thread(error: type[BaseException]) -> None:
    """Where a pending call could only be ignored: the main thread raises it at its next instruction."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _pending(_: Any) -> int:
    if _in_backward() and ctypes.pythonapi.Py_AddPendingCall(_entry, None) == 0:
        return 0
    with contextlib.suppress(Exception):
        _waiting.popleft()()
    return 0


def _in_backward() -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # there is no public way that costs as little
    while frame is not None:
        code = frame.f_code
        if code.co_name in {"_engine_run_backward", "backward", "grad"} and "torch/autograd/" in code.co_filename:
            return True
        frame = frame.f_back
    return False


#: For the life of the process: the interpreter knows it by address only.
_entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_pending)
