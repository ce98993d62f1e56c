"""Call a function in the main thread, between two instructions of its code, but not within a backward pass.

A range or a profiler must not start or end within backward, because autograd restores the thread's earlier state
afterwards.
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

#: Functions to call in the main thread.
_waiting: deque[Callable[[], object]] = deque()


class _Pending:
    """Object whose conversion to bool calls the functions in `_waiting`.

    The C function that the interpreter is asked to call is `PyObject_IsTrue`, with this object as its argument. An
    exception in the conversion is raised in the main thread.
    """

    def __bool__(self) -> bool:
        if _in_backward() and _add():  # another pending call will try again
            return False
        while _waiting:
            with contextlib.suppress(Exception):
                _waiting.popleft()()
        return False


def in_main_thread(function: Callable[[], object]) -> bool:
    """Let the main thread call a function soon; return False if the interpreter's queue of pending calls is full.

    Pending calls run between two instructions, as signal handlers do. If the function raises a subclass of Exception,
    the exception is ignored. Other exceptions, for example SystemExit, are raised in the main thread.
    """
    _waiting.append(function)
    if _add():
        return True
    _waiting.remove(function)
    return False


def when_backward_ends(function: Callable[[], object]) -> None:
    """Call `function` in the main thread after the current backward pass. Any thread of this pass may call this.

    At the end of the pass autograd calls `_ADD`, which adds a pending call. `_ADD` is a C function: a Python function
    would let the interpreter run pending calls before backward has returned.
    """
    from torch.autograd import Variable

    _waiting.append(function)
    Variable._execution_engine.queue_callback(_ADD)  # noqa: SLF001  # as DDP does


def raise_in_main_thread(error: type[BaseException]) -> None:
    """Raise an exception in the main thread at its next instruction. Call this only from another thread."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _add() -> bool:
    """Add the pending call; return False if the interpreter's queue is full."""
    return bool(_ADD() == 0)


def _in_backward() -> bool:
    """Return whether a backward pass has called the interrupted code, for example a hook.

    Interrupted Python code of autograd itself does not count: there the pass has not begun yet, or is over. The
    interrupted code is the caller of `_Pending.__bool__`, which is two frames up.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # public functions are slower
    while frame is not None and _is_backward(frame):
        frame = frame.f_back
    while frame is not None and not _is_backward(frame):
        frame = frame.f_back
    return frame is not None


def _is_backward(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in {"_engine_run_backward", "backward", "grad"} and "torch/autograd/" in code.co_filename


#: Objects that must live as long as the process, because the interpreter stores only their addresses.
_PENDING, _ENTRY = _Pending(), ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_ADD = functools.partial(ctypes.pythonapi.Py_AddPendingCall, _ENTRY, ctypes.py_object(_PENDING))
