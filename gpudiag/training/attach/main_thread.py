"""Call a function in the main thread, between two instructions of its code, but not within a backward pass.

A range or profiler that starts or ends in backward's hooks would lose its state, because autograd restores its
thread's state.
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
    """The interpreter calls `PyObject_IsTrue` of this: a function in C whose failure is raised in the main thread."""

    def __bool__(self) -> bool:
        if _in_backward() and _add():
            return False
        while _waiting:
            with contextlib.suppress(Exception):
                _waiting.popleft()()
        return False


def in_main_thread(function: Callable[[], object]) -> bool:
    """Call a function in the main thread soon: as a pending call of the interpreter, as signals are handled.

    Exceptions that it raises are lost; the main thread raises the rest, such as SystemExit, at that instruction.
    Returns False if it will not be called, because the interpreter keeps few such calls.
    """
    _waiting.append(function)
    if _add():
        return True
    _waiting.remove(function)
    return False


def when_backward_ends(function: Callable[[], object]) -> None:
    """Call a function in the main thread after the current backward pass; callable on any thread of that pass.

    Autograd calls a function in C at the end, so that the interpreter first looks for pending calls when backward has
    returned.
    """
    from torch.autograd import Variable

    _waiting.append(function)
    Variable._execution_engine.queue_callback(_ADD)  # noqa: SLF001  # as DDP does


def raise_in_main_thread(error: type[BaseException]) -> None:
    """Raise an exception in the main thread at its next instruction. To be called in another thread."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _add() -> bool:
    return bool(_ADD() == 0)


def _in_backward() -> bool:
    """Return whether the interrupted code runs within a backward pass, but not if that is about to return or begin."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # there is no public way that costs as little
    while frame is not None and _is_backward(frame):
        frame = frame.f_back
    while frame is not None and not _is_backward(frame):
        frame = frame.f_back
    return frame is not None


def _is_backward(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in {"_engine_run_backward", "backward", "grad"} and "torch/autograd/" in code.co_filename


#: Kept for the life of the process, because the interpreter has only their addresses.
_PENDING, _ENTRY = _Pending(), ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_ADD = functools.partial(ctypes.pythonapi.Py_AddPendingCall, _ENTRY, ctypes.py_object(_PENDING))
