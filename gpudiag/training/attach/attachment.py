"""Measure one process of the command, from its first optimizer step on."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.training.attach.attached_session import OWN_PROFILER, AttachedSession
from gpudiag.training.attach.boundaries import Boundaries, OptimizerCall, StartBarrier, StartStep
from gpudiag.training.frameworks.pytorch.runtime import job_store
from gpudiag.training.session.position import ClusterPosition, independent_position
from gpudiag.training.session.progress import send_note

if TYPE_CHECKING:
    from gpudiag.training.attach.entered import EnteredProcess

#: Autograd's number for "no backward pass runs".
_NO_BACKWARD = -1

_OUT_OF_STEP = "the ranks do not take their steps together: each is measured separately"


class Attachment:
    """Receive each optimizer call, find the steps, agree with the other ranks on the first step, and measure."""

    def __init__(self, entered: EnteredProcess) -> None:
        self._entered = entered
        self._pid = os.getpid()
        self._boundaries = Boundaries()
        #: Class names of optimizers, by id.
        self._optimizers: dict[int, str] = {}
        self._steps = 0  # number of steps that have ended
        #: Number of calls of the optimizer that ends a step.
        self._ending_calls = 0
        #: True while the optimizer that ends a step has been called exactly once in each step.
        self._once = True
        self._position: ClusterPosition | None = None
        self._barrier: StartBarrier | None = None
        self._session: AttachedSession | None = None
        #: Held from scheduling a call in the main thread until that call begins, so that at most one call is scheduled.
        self._in_main = threading.Lock()
        #: Number of autograd nodes that each thread had created at its last optimizer step. A forward pass adds nodes.
        self._nodes: dict[int, int] = {}
        self._count_nodes = _node_counter()
        #: Number of the backward pass in which an optimizer stepped last.
        self._backward = _NO_BACKWARD
        self._current_backward, self._cuda = _backward_number(), _cuda()
        # The session's warnings go to the program that started the command, not into the user's log.
        log = logging.getLogger("gpudiag")
        log.addHandler(logging.NullHandler())
        log.propagate = False

    def stepped(self, optimizer: Any) -> None:
        """Receive an optimizer step, in any thread. Raises SystemExit when the command must end."""
        if os.getpid() != self._pid or (self._cuda.is_initialized() and self._cuda.is_current_stream_capturing()):
            return  # a forked process is not measured; the capture of a CUDA graph computes nothing, so it is no step
        name, number = type(optimizer).__name__, id(optimizer)
        self._ending_calls += number == self._boundaries.optimizer
        backward = self._current_backward()
        if backward != _NO_BACKWARD:
            # The optimizer stepped within backward, possibly on an autograd thread. But only the training thread may
            # control profilers, and the training thread continues when backward returns. Of all steps within a backward
            # pass only the first counts.
            if backward != self._backward:
                self._backward = backward
                from gpudiag.training.attach.main_thread import when_backward_ends  # rarely needed

                when_backward_ends(lambda: self._call_deferred(number, name))
        elif self._trains_here():
            self._call(number, name)
            self._count_quietly(direct=True)
        elif self._in_main.acquire(blocking=False):  # the main thread is assumed to train
            from gpudiag.training.attach.main_thread import in_main_thread  # rarely needed

            if not in_main_thread(lambda: self._call_in_main(number, name)):
                self._in_main.release()

    def _call_in_main(self, optimizer: int, name: str) -> None:
        self._in_main.release()
        self._call_deferred(optimizer, name)

    def _call_deferred(self, optimizer: int, name: str) -> None:
        self._call(optimizer, name)
        self._count_quietly(direct=False)

    def _trains_here(self) -> bool:
        """Return whether this thread is the main thread, or is known to have run a forward pass since its last step."""
        thread = threading.get_ident()
        if thread == threading.main_thread().ident:
            return True
        return self._count_nodes is not None and self._after_forward(thread)

    def _after_forward(self, thread: int) -> bool:
        """Return whether this thread has run a forward pass since its last optimizer step; True if that is unknown."""
        return self._count_nodes is None or self._count_nodes() > self._nodes.get(thread, 0)

    def _call(self, optimizer: int, name: str) -> None:
        """Receive a step of an optimizer, given its `id` and the name of its class, on the training thread."""
        thread = threading.get_ident()
        after_forward = self._after_forward(thread)
        self._nodes[thread] = self._count_nodes() if self._count_nodes is not None else 0
        self._optimizers.setdefault(optimizer, name)
        if not self._boundaries.ends_step(OptimizerCall(optimizer, after_forward)):
            return
        self._steps += 1
        self._entered.ours.making = True  # profilers that are created now are gpudiag's own
        try:
            if self._session is None:
                self._begin()
            if self._session is not None and not self._session.boundary():
                self._finish()
        except Exception as error:
            self._report_failure(error)
            self._detach()
            raise  # the caller (`entered` or `main_thread`) suppresses it; the training goes on
        finally:
            self._entered.ours.making = False

    def _count_quietly(self, *, direct: bool) -> None:
        """Replace the handler by a function that only counts, until the step of the start barrier's next check.

        Ranks may train for any time before all ranks are present, and must not be slowed meanwhile. So the counting
        function does as little as possible. If the optimizer that ends a step is called several times in each step,
        only the call after a forward pass ends the step. Only the training thread can detect forward passes, so the
        handler stays if another thread calls the optimizer several times in each step.

        Args:
            direct: True if the optimizer stepped on the training thread.
        """
        # `last`: the step before the next check; up to it, steps are only counted. 0: no barrier, or a session is open.
        steps, count_nodes = self._steps, self._count_nodes or (lambda: 0)
        last = self._barrier.next_step - 1 if self._barrier is not None and self._session is None else 0
        once = self._once = self._once and self._ending_calls == steps
        finds_ends = once or (direct and self._count_nodes is not None)
        if last <= steps or self._entered.handler is None or not finds_ends:  # no handler: the measurement is over
            return
        ends_step, thread = self._boundaries.optimizer, threading.get_ident()
        nodes = self._nodes[thread]

        def count(optimizer: Any) -> None:
            """Count steps up to number `last`. At the call that ends the next step, restore the handler `stepped`."""
            nonlocal steps, nodes
            if id(optimizer) != ends_step:
                return
            if not once:
                nodes_now = count_nodes()
                if nodes_now <= nodes:  # no forward pass since the counted call
                    return
                nodes = nodes_now
            if steps < last:
                steps += 1
                return
            self._steps = self._ending_calls = steps
            self._boundaries.missed_calls()
            self._entered.handler = self.stepped
            self.stepped(optimizer)

        self._entered.handler = count

    def _begin(self) -> None:
        """Open the session if this rank has reached the first step that all ranks measure."""
        position = self._position = self._position or independent_position()
        if self._barrier is None:
            self._barrier = self._make_barrier(position)
        start = self._barrier.check(self._steps) if self._barrier is not None else None
        if start is not None and self._steps >= start.step:
            self._open(position, start)

    def _make_barrier(self, position: ClusterPosition) -> StartBarrier | None:
        """Create the start barrier; return None if gpudiag already measures another process of the same rank."""
        report = self._entered.report
        report.set_position(position.rank, position.world_size)
        if not claim(Path(self._entered.settings.run_dir), position.rank):
            report.stage = "not-first"
            self._detach()
            return None
        report.stage = "waiting"
        return StartBarrier(
            rank=position.rank,
            world_size=position.world_size,
            store=job_store(position),
            own_profiler=self._entered.own_profiler,
        )

    def _open(self, position: ClusterPosition, start: StartStep) -> None:
        """Create the session, which ends at exit at the latest. A rank that has passed `start` is measured alone."""
        entered = self._entered
        late = self._steps > start.step
        if late:
            send_note(position.rank, _OUT_OF_STEP)
        entered.measuring = True
        entered.report.stage = "measuring"
        entered.report.write(entered.calls)
        if entered.stop_looking is not None:
            entered.stop_looking()  # ends the sample of `by_time`, because only one profiler can run
        session = AttachedSession(
            entered.settings,
            position,
            self._boundaries,
            optimizer=self._optimizers[self._boundaries.optimizer or 0],
            recorded=start.recorded,
            has_own_profiler=lambda: entered.own_profiler,
            late=late,
        )
        session.open()
        self._session = session
        entered.on_own_profiler = session.cancel_recording
        atexit.register(self._at_exit)
        if "multiprocessing.util" in sys.modules:  # a multiprocessing child skips atexit functions
            sys.modules["multiprocessing.util"].Finalize(None, self._at_exit, exitpriority=0)
        if not start.recorded:
            send_note(position.rank, OWN_PROFILER)

    def _finish(self) -> None:
        """End the session and write its files in the background; with `settings.stop`, write them now and exit."""
        self._entered.report.stage = "measured"
        session = self._detach()
        if session is None:
            return
        if self._entered.settings.stop:
            self._end(session)
            raise SystemExit(0)
        try:
            threading.Thread(target=self._end, args=(session,), name="gpudiag-end").start()
        except RuntimeError:  # no thread can be started when the interpreter ends
            self._end(session, at_exit=True)

    def _at_exit(self) -> None:
        session = self._detach() if os.getpid() == self._pid else None
        if session is not None:
            self._end(session, getattr(sys, "last_value", None), at_exit=True)

    def _end(self, session: AttachedSession, error: BaseException | None = None, *, at_exit: bool = False) -> None:
        """Save the measurements. If that fails, report the failure and let the command continue."""
        try:
            session.end(error, at_exit=at_exit)
        except Exception as failure:  # noqa: BLE001  # the user's training goes on
            self._report_failure(failure)

    def _report_failure(self, error: Exception) -> None:
        """Report why the measurement has ended, as a message and in this process's report."""
        sentence = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            sentence = f"the measurements could not be saved: {error.strerror or error}"
        self._entered.report.stage, self._entered.report.error = "failed", sentence
        with contextlib.suppress(Exception):
            send_note(self._position.rank if self._position is not None else 0, sentence)

    def _detach(self) -> AttachedSession | None:
        """Stop receiving optimizer steps; return the session, or None if there is none."""
        self._entered.handler = self._entered.on_own_profiler = None
        self._entered.measuring = False
        session, self._session = self._session, None
        return session


def claim(run_dir: Path, rank: int) -> bool:
    """Claim a rank by creating a file. Return False if another process has done so since the job's last restart."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    path = run_dir / "ranks" / f".rank{rank}.{attempt}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _node_counter() -> Callable[[], int] | None:
    """Return a counter of the autograd nodes that the calling thread has created; None if PyTorch has no counter."""
    from torch._C import _autograd

    count: Callable[[], int] | None = getattr(_autograd, "_get_sequence_nr", None)
    return count


def _backward_number() -> Callable[[], int]:
    """Return a function that returns the number of the current backward pass; `_NO_BACKWARD` if there is none."""
    import torch

    # PyTorch has no public function that returns this number.
    number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: _NO_BACKWARD)  # noqa: SLF001
    return number


def _cuda() -> Any:
    import torch

    return torch.cuda
