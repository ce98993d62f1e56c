"""In every process of the command that has imported PyTorch: a hook on all optimizers, and an eye on other profilers.

What it costs a process that never trains is this module, the standard library alone. The hook stays for the life of the
process, as an optimizer may be walking through its hooks whenever one is to be removed, and does nothing once all is
measured (0.1 us a step). Whatever fails here is the measuring's end and not the command's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpudiag.training.attach.entered_process import Entered
from gpudiag.training.attach.outcome.process_report import may_train
from gpudiag.training.attach.settings import Settings, settings

#: A main thread that computes less than this share of the time waits for others, as a launcher's does. (Polling ten
#: times a second takes a tenth of it.)
_COMPUTES = 0.01


def _made(told: Settings) -> Entered:
    """A process of which nothing is known yet: with the first step of an optimizer all else is imported."""
    entered = Entered(told)

    def first(optimizer: Any) -> None:
        from gpudiag.training.attach.attachment import Attachment

        entered.handler = Attachment(entered).stepped
        entered.handler(optimizer)

    entered.handler = first
    return entered


_entered: Entered | None = None


def enter() -> None:
    """Called once, when `torch` has been imported. Does nothing where it was called before."""
    global _entered  # noqa: PLW0603  # one process is entered once
    told = settings()
    if told is None or _entered is not None:
        return
    _entered = _made(told)
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_stepped)
    _see_other_profilers()
    _see_closures()
    with contextlib.suppress(Exception):  # private parts of PyTorch, which may be elsewhere
        from gpudiag.training.frameworks.pytorch.loader_workers import watch_workers

        watch_workers()  # before there are any
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_say_ended)
    _entered.report.write(0)
    _watch(_entered)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    entered = _entered
    if entered is None:
        return
    if (len(args) > 1 or kwargs) and _sees_closure(args, kwargs):
        return  # each evaluation has counted
    _step(entered, optimizer)


def _step(entered: Entered, optimizer: Any) -> None:
    """Count a step of an optimizer, and hand it on."""
    entered.calls += 1
    if entered.calls >= entered.report.next_calls and not entered.measuring:
        entered.report.due(entered.calls)
    if (handler := entered.handler) is None:
        return
    entered.stepped = True
    try:
        handler(optimizer)
    except Exception as error:  # noqa: BLE001  # the user's training goes on
        entered.handler = None
        if entered.report.stage != "failed":
            entered.report.stage, entered.report.error = "failed", f"{type(error).__name__}: {error}"


# A compiled step calls it as it is, where its graph breaks for the optimizer's own hooks in any case.
setattr(_stepped, "_torchdynamo_disable", True)  # noqa: B010  # as PyTorch marks them itself


def _see_closures() -> None:
    """L-BFGS evaluates its closure some twenty times a step, with a forward and a backward pass each.

    Such a step takes as long as twenty of other optimizers, and a job has few of them, so that each evaluation counts.
    """
    from torch.optim import LBFGS

    LBFGS.__init__ = _hooked(LBFGS.__init__)  # type: ignore[method-assign]


def _hooked(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        with contextlib.suppress(Exception):
            optimizer.register_step_pre_hook(_about_to_step)

    return made


def _about_to_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Replace the closure by one that counts; None to leave the arguments as they are."""
    if _entered is None or _entered.handler is None:
        return None
    counting = (args[0], *(_counting(optimizer, each) for each in args[1:]))
    return counting, {name: _counting(optimizer, each) for name, each in kwargs.items()}


class _Counting:
    """A closure that counts its evaluations."""

    def __init__(self, optimizer: Any, closure: Callable[[], Any]) -> None:
        self._optimizer, self._closure = optimizer, closure

    def __call__(self) -> Any:
        loss = self._closure()
        if _entered is not None:
            _step(_entered, self._optimizer)
        return loss


def _counting(optimizer: Any, closure: Any) -> Any:
    return _Counting(optimizer, closure) if callable(closure) else closure


def _sees_closure(args: Any, kwargs: Any) -> bool:
    return any(isinstance(each, _Counting) for each in (*args, *kwargs.values()))


def _say_ended() -> None:
    if _entered is not None and (_entered.calls or may_train()):
        _entered.report.write(_entered.calls, ended=True)


def _forked() -> None:
    """A fork begins anew: it may train, and what its parent measures is not its own."""
    global _entered  # noqa: PLW0603
    if _entered is not None:
        _entered = _made(_entered.told)


def _see_other_profilers() -> None:
    """Two profilers cannot record at once: when the program makes one, gpudiag's own ends."""
    from torch.autograd.profiler import profile as inner
    from torch.profiler.profiler import _KinetoProfile

    for kind in (_KinetoProfile, inner):
        kind.__init__ = _noticed(kind.__init__)  # type: ignore[method-assign]


def _noticed(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> None:
        entered = _entered
        if entered is not None and not getattr(entered.ours, "making", False):
            entered.own_profiler = entered.report.own_profiler = True
            for end in (entered.looking, entered.on_own_profiler):
                with contextlib.suppress(Exception):
                    if end is not None:
                        end()
        make(*args, **kwargs)

    return made


def _watch(entered: Entered) -> None:
    """A thread that sleeps, and is no thread to `threading`: programs count those."""
    import _thread

    with contextlib.suppress(RuntimeError):  # no more threads
        _thread.start_new_thread(_watching, (entered,))


def _watching(entered: Entered) -> None:
    while entered.handler is not None and not entered.measuring and _entered is entered:
        pause_s, before_s = max(0.1, entered.told.patience_s / 4), _computed_s()
        time.sleep(pause_s)
        if entered.stepped:
            entered.stepped, entered.last_step_s = False, time.monotonic()
        silent_s = time.monotonic() - entered.last_step_s
        computes = _computed_s() - before_s >= _COMPUTES * pause_s
        if silent_s < entered.told.patience_s or not computes or not may_train():
            continue
        try:
            from gpudiag.training.attach.by_time import record_for_a_while

            record_for_a_while(entered)
        except Exception:  # noqa: BLE001  # the user's program goes on
            return


def _computed_s() -> float:
    """Seconds of CPU time of the main thread; of the process where one thread's cannot be asked for (macOS)."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
