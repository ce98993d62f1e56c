"""A process of the command that trains: from its first optimizer step to the end of the measuring."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpudiag.training.attach.attached_place import attached_place
from gpudiag.training.attach.attached_session import OWN_PROFILER, AttachedSession
from gpudiag.training.attach.boundaries import Boundaries, Call
from gpudiag.training.attach.entered_process import Entered
from gpudiag.training.attach.main_thread import in_main_thread, when_backward_ends
from gpudiag.training.attach.roll_call import RollCall
from gpudiag.training.frameworks.pytorch.store import job_store
from gpudiag.training.session.place import Place
from gpudiag.training.session.progress import ProgressSender

#: What autograd says where no backward pass is under way.
_NO_TASK = -1

_OUT_OF_STEP = "the ranks do not take their steps together: each is measured for itself"


class Attachment:
    """Takes each call of an optimizer, finds the steps, agrees with the other ranks on the first, and measures."""

    def __init__(self, entered: Entered) -> None:
        self._entered = entered
        self._pid = os.getpid()
        self._boundaries = Boundaries()
        self._optimizers: dict[int, str] = {}
        self._steps = 0
        #: Calls of the optimizer that ends a step, and whether there was one in each.
        self._ending_calls, self._once = 0, True
        self._place: Place | None = None
        self._roll_call: RollCall | None = None
        self._session: AttachedSession | None = None
        self._in_main = threading.Lock()
        #: Nodes of autograd's graph that each thread has made: more of them mean a forward pass.
        self._nodes: dict[int, int] = {}
        self._nodes_made = _nodes_made()
        #: The backward pass in which an optimizer stepped last.
        self._backward = _NO_TASK
        self._graph_task, self._cuda = _graph_task(), _cuda()
        # What the session has to say goes to the program that started the command, not into the program's own log.
        log = logging.getLogger("gpudiag")
        log.addHandler(logging.NullHandler())
        log.propagate = False

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, in whichever thread. Raises SystemExit when the command is to end."""
        if os.getpid() != self._pid or (self._cuda.is_initialized() and self._cuda.is_current_stream_capturing()):
            return  # what a CUDA graph captures runs at every replay, and must not be measured
        name, number = type(optimizer).__name__, id(optimizer)
        self._ending_calls += number == self._boundaries.optimizer
        backward = self._graph_task()
        if backward != _NO_TASK:
            # Within backward, maybe on a thread of autograd's: profilers belong to the thread that trains, which goes
            # on when backward returns.
            if backward != self._backward:
                self._backward = backward
                when_backward_ends(lambda: self._returned(number, name))
        elif self._trains_here():
            self._call(number, name)
            self._count_quietly(direct=True)
        elif self._in_main.acquire(blocking=False) and not in_main_thread(lambda: self._elsewhere(number, name)):
            self._in_main.release()

    def _elsewhere(self, optimizer: int, name: str) -> None:
        self._in_main.release()
        self._returned(optimizer, name)

    def _returned(self, optimizer: int, name: str) -> None:
        self._call(optimizer, name)
        self._count_quietly(direct=False)

    def _trains_here(self) -> bool:
        thread = threading.get_ident()
        if thread == threading.main_thread().ident:
            return True
        return self._nodes_made is not None and self._after_forward(thread)

    def _after_forward(self, thread: int) -> bool:
        return self._nodes_made is None or self._nodes_made() > self._nodes.get(thread, 0)

    def _call(self, optimizer: int, name: str) -> None:
        thread = threading.get_ident()
        after_forward = self._after_forward(thread)
        self._nodes[thread] = self._nodes_made() if self._nodes_made is not None else 0
        self._optimizers.setdefault(optimizer, name)
        if not self._boundaries.ends_step(Call(optimizer, after_forward)):
            return
        self._steps += 1
        self._entered.ours.making = True
        try:
            self._step()
        except Exception as error:
            self._lost(error)
            self._over()
            raise
        finally:
            self._entered.ours.making = False

    def _count_quietly(self, *, direct: bool) -> None:
        """While nothing can happen for some steps they are counted, and that is all: a rank may never come.

        As little as can be: what runs between two steps finds nothing of its own in the processor's caches, and takes
        several times as long as in a loop by itself. The optimizer that ends a step is called once in each, or else a
        forward pass lies before the call that counts, which only the thread that trains can tell (`direct`).
        """
        steps, nodes_made = self._steps, self._nodes_made or (lambda: 0)
        last = self._roll_call.next_step - 1 if self._roll_call is not None and self._session is None else 0
        once = self._once = self._once and self._ending_calls == steps
        if last <= steps or self._entered.handler is None or not (once or (direct and self._nodes_made is not None)):
            return
        ends_step, thread = self._boundaries.optimizer, threading.get_ident()
        nodes = self._nodes[thread]

        def count(optimizer: Any) -> None:
            nonlocal steps, nodes
            if id(optimizer) != ends_step:
                return
            if not once:
                made = nodes_made()
                if made <= nodes:
                    return
                nodes = made
            if steps < last:
                steps += 1
                return
            self._steps = steps
            self._ending_calls = steps
            self._boundaries.missed_calls()
            self._entered.handler = self.stepped
            self.stepped(optimizer)

        self._entered.handler = count

    def _step(self) -> None:
        if self._session is None and not self._begins():
            return
        assert self._session is not None  # noqa: S101  # opened by _begins
        if not self._session.boundary():
            self._measured()

    def _begins(self) -> bool:
        """Is this the step at which all ranks begin? Then the session is open."""
        if self._roll_call is None:
            place = self._place = attached_place()
            self._entered.report.place(place.rank, place.world_size)
            if not claim(Path(self._entered.told.run_dir), place.rank):
                self._entered.report.stage = "not-first"
                self._over()
                return False
            self._entered.report.stage = "waiting"
            self._roll_call = RollCall(
                rank=place.rank,
                world_size=place.world_size,
                store=job_store(place),
                own_profiler=self._entered.own_profiler,
            )
        start = self._roll_call.look(self._steps)
        if start is None or self._steps < start.step:
            return False
        late = self._steps > start.step
        if late:
            self._tell(_OUT_OF_STEP)
        self._entered.measuring = True
        self._entered.report.stage = "measuring"
        self._entered.report.write(self._entered.calls)
        if self._entered.looking is not None:
            self._entered.looking()
        entered, optimizer = self._entered, self._optimizers[self._boundaries.optimizer or 0]
        assert self._place is not None  # noqa: S101  # known since the roll call was opened
        session = AttachedSession(
            entered.told,
            self._place,
            self._boundaries,
            optimizer=optimizer,
            recorded=start.recorded,
            yields=lambda: entered.own_profiler,
            apart=late,
        )
        session.__enter__()
        self._session = session
        entered.on_own_profiler = session.give_up_recording
        atexit.register(self._at_exit)
        if "multiprocessing.util" in sys.modules:  # whose children do not come to what is registered with atexit
            sys.modules["multiprocessing.util"].Finalize(None, self._at_exit, exitpriority=0)
        if not start.recorded:
            self._tell(OWN_PROFILER)
        return True

    def _measured(self) -> None:
        """All is measured: the rest is written beside the training, or before the command ends."""
        self._entered.report.stage = "measured"
        session = self._over()
        if session is None:
            return
        if self._entered.told.stop:
            self._end(session)
            raise SystemExit(0)
        try:
            threading.Thread(target=self._end, args=(session,), name="gpudiag-end").start()
        except RuntimeError:  # at the interpreter's end
            self._end(session, at_exit=True)

    def _at_exit(self) -> None:
        session = self._over() if os.getpid() == self._pid else None
        if session is not None:
            self._end(session, getattr(sys, "last_value", None), at_exit=True)

    def _end(self, session: AttachedSession, error: BaseException | None = None, *, at_exit: bool = False) -> None:
        """Save what was measured. A disk that is full is not the command's failure."""
        try:
            session.end(error, at_exit=at_exit)
        except Exception as lost:  # noqa: BLE001  # the user's training goes on
            self._lost(lost)

    def _lost(self, error: Exception) -> None:
        """Say why the measuring has ended, here and in this process's report."""
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            words = f"what was measured could not be saved: {error.strerror or error}"
        self._entered.report.stage, self._entered.report.error = "failed", words
        with contextlib.suppress(Exception):
            self._tell(words)

    def _over(self) -> AttachedSession | None:
        self._entered.handler = self._entered.on_own_profiler = None
        self._entered.measuring = False
        session, self._session = self._session, None
        return session

    def _tell(self, words: str) -> None:
        rank = self._place.rank if self._place is not None else 0
        progress = ProgressSender(rank)
        progress.note(f"rank {rank}: {words}")
        progress.tell("starting")


def claim(run_dir: Path, rank: int) -> bool:
    """Whether this process is the first of its rank, in this attempt of the job."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    path = run_dir / "ranks" / f".rank{rank}.{attempt}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _nodes_made() -> Callable[[], int] | None:
    """What tells how many nodes of autograd's graph the calling thread has made; None where this PyTorch does not."""
    from torch._C import _autograd

    count: Callable[[], int] | None = getattr(_autograd, "_get_sequence_nr", None)
    return count


def _graph_task() -> Callable[[], int]:
    """What tells the number of the backward pass that it is called in."""
    import torch

    # There is no public way to ask.
    task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: _NO_TASK)  # noqa: SLF001
    return task


def _cuda() -> Any:
    import torch

    return torch.cuda
