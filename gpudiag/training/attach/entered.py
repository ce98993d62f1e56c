"""Hook all optimizers and profilers in each of the command's processes that imports PyTorch.

Modules that only a measurement needs are imported later, because many processes never train. The optimizer hook is
never removed, because an optimizer may be iterating over its hooks at the moment of removal. After the measurement the
hook only counts steps for the process's report, which takes 0.1 us per step. A failure in this module ends the
measurement, but not the command.
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

from gpudiag.training.attach.command_process import ProcessReporter, Settings, may_train, read_settings

#: A process may be training if its main thread uses at least this share of a core's time. A launcher that only polls
#: its processes ten times a second uses a tenth of this share.
_MIN_BUSY_SHARE = 0.01


class EnteredProcess:
    """State of this process, shared by the optimizer hook, the watch thread, and the measurement.

    Attributes:
        settings: how to measure the command.
        handler: called with each optimizer that has stepped; None when the measurement is over.
        measuring: True while optimizer steps are measured.
        own_profiler: True if the program has created a profiler.
        on_own_profiler: called when the program creates a profiler; None if nothing is recorded.
        stop_looking: ends the current sample of the main thread's operators; None if no sample is being taken.
        stepped: True if an optimizer has stepped since the watch thread last set `stepped` to False.
        last_step_s: time at which the watch thread last saw an optimizer step, in seconds of `time.monotonic`.
        calls: number of optimizer steps so far.
        report: this process's report.
        ours: thread-local; its attribute `making` is True while profilers that the thread creates are gpudiag's own.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.handler: Callable[[Any], None] | None = self._first_step
        self.measuring = self.own_profiler = False
        self.on_own_profiler: Callable[[], None] | None = None
        self.stop_looking: Callable[[], None] | None = None
        self.stepped = False
        self.last_step_s = time.monotonic()
        self.calls = 0
        self.report = ProcessReporter(settings.reports)
        self.ours = threading.local()

    def _first_step(self, optimizer: Any) -> None:
        """Handle the first optimizer step: import `attachment`, and pass this step and all later steps to it."""
        from gpudiag.training.attach.attachment import Attachment

        self.handler = Attachment(self).stepped
        self.handler(optimizer)


_entered: EnteredProcess | None = None


def enter() -> None:
    """Install the hooks once, after `torch` has been imported."""
    global _entered  # noqa: PLW0603  # the hooks are installed once per process
    settings = read_settings()
    if settings is None or _entered is not None:
        return
    _entered = EnteredProcess(settings)
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_stepped)
    _watch_profilers()
    _watch_closures()
    with contextlib.suppress(Exception):  # private modules of PyTorch, which other versions may move
        from gpudiag.training.frameworks.pytorch.dataloader import watch_workers

        # Time DataLoader workers. This must be requested before workers exist.
        watch_workers(os.path.join(settings.run_dir, "lines"))  # noqa: PTH118
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_report_end)
    _entered.report.write(0)
    _watch_for_loops(_entered)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Receive a call of `optimizer.step` with its arguments, of which the first is the optimizer itself."""
    entered = _entered
    if entered is None:
        return
    # Without arguments there is no closure, and the search is skipped.
    if (len(args) > 1 or kwargs) and any(isinstance(value, _CountingClosure) for value in (*args, *kwargs.values())):
        return  # `_CountingClosure` has already counted each evaluation of the closure as a step
    _step(entered, optimizer)


def _step(entered: EnteredProcess, optimizer: Any) -> None:
    """Count a step of an optimizer, and pass it to the handler."""
    entered.calls += 1
    if entered.calls >= entered.report.next_calls and not entered.measuring:  # writing a file would lengthen the step
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


# torch.compile must not compile the hook. No graph break is added, because optimizer hooks break the graph anyway.
setattr(_stepped, "_torchdynamo_disable", True)  # noqa: B010  # as `torch._dynamo.disable` does


def _watch_closures() -> None:
    """Count each evaluation of L-BFGS's closure as a step.

    A call of L-BFGS evaluates the closure about twenty times, each time with a forward and a backward pass. So one call
    does the work of twenty steps of other optimizers, and a job often has too few calls for a measurement.
    """
    from torch.optim import LBFGS

    original = LBFGS.__init__

    @functools.wraps(original)
    def initialize(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        with contextlib.suppress(Exception):
            optimizer.register_step_pre_hook(_before_step)

    LBFGS.__init__ = initialize  # type: ignore[method-assign, assignment]


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Return (args, kwargs) of `step` with the closure in a `_CountingClosure`; None to leave them unchanged."""
    if _entered is None or _entered.handler is None:
        return None
    counting = (args[0], *(_counting(optimizer, value) for value in args[1:]))
    return counting, {name: _counting(optimizer, value) for name, value in kwargs.items()}


class _CountingClosure:
    """A closure that counts each of its evaluations as an optimizer step."""

    def __init__(self, optimizer: Any, closure: Callable[[], Any]) -> None:
        self._optimizer, self._closure = optimizer, closure

    def __call__(self) -> Any:
        loss = self._closure()
        if _entered is not None:
            _step(_entered, self._optimizer)
        return loss


def _counting(optimizer: Any, closure: Any) -> Any:
    return _CountingClosure(optimizer, closure) if callable(closure) else closure


def _report_end() -> None:
    if _entered is not None and (_entered.calls or may_train()):
        _entered.report.write(_entered.calls, ended=True)


def _forked() -> None:
    """Create a new state in a forked process, which may train, but must not continue its parent's measurement."""
    global _entered  # noqa: PLW0603
    if _entered is not None:
        _entered = EnteredProcess(_entered.settings)


def _watch_profilers() -> None:
    """When the program creates a profiler, end gpudiag's own, because only one profiler can record at a time."""
    from torch.autograd.profiler import profile as autograd_profile
    from torch.profiler.profiler import _KinetoProfile

    for profiler_class in (_KinetoProfile, autograd_profile):
        profiler_class.__init__ = _watched_init(profiler_class.__init__)  # type: ignore[method-assign]


def _watched_init(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap a profiler's `__init__`: first end gpudiag's own profiler, unless gpudiag is the caller."""

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        entered = _entered
        if entered is not None and not getattr(entered.ours, "making", False):
            entered.own_profiler = entered.report.own_profiler = True
            for end in (entered.stop_looking, entered.on_own_profiler):
                with contextlib.suppress(Exception):
                    if end is not None:
                        end()
        original(*args, **kwargs)

    return initialize


def _watch_for_loops(entered: EnteredProcess) -> None:
    """Start the watch thread. Do not use `threading`, because some programs count the threads of that module."""
    import _thread

    with contextlib.suppress(RuntimeError):  # the system allows no more threads
        _thread.start_new_thread(_watching, (entered,))


def _watching(entered: EnteredProcess) -> None:
    """Record for a fixed time if no optimizer has stepped for `patience_s` seconds and the main thread computes.

    Check this four times per `patience_s`, until the process is recorded or its optimizer steps are measured.
    """
    patience_s = entered.settings.patience_s
    while entered.handler is not None and not entered.measuring and _entered is entered:
        pause_s, before_s = max(0.1, patience_s / 4), _cpu_s()
        time.sleep(pause_s)
        if entered.stepped:
            entered.stepped, entered.last_step_s = False, time.monotonic()
        computes = _cpu_s() - before_s >= _MIN_BUSY_SHARE * pause_s
        if time.monotonic() - entered.last_step_s < patience_s or not computes or not may_train():
            continue
        try:
            from gpudiag.training.attach.by_time import record_for_a_while

            record_for_a_while(entered)
        except Exception:  # noqa: BLE001  # the user's program goes on
            return


def _cpu_s() -> float:
    """Return the CPU time of the main thread in seconds; on macOS, return the CPU time of the whole process."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
