"""A session whose steps are told one by one, by a loop that knows nothing of it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpudiag.model.run import RunStatus, StepsFound
from gpudiag.training.attach.attached_agreement import AttachedAgreement
from gpudiag.training.attach.boundaries import Boundaries
from gpudiag.training.attach.outcome.enough_steps import what_would_do
from gpudiag.training.attach.settings import Settings
from gpudiag.training.frameworks.pytorch.loaders import marked_loaders
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.frameworks.pytorch.runtime import PyTorchRuntime
from gpudiag.training.session import record
from gpudiag.training.session.place import Place
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.ranges import STEP, Range, taken_input_ns
from gpudiag.training.session.runtime import Recording
from gpudiag.training.session.session import Session

#: Timed steps are saved first after so many seconds.
_SAVE_AFTER_S = 1.0
#: Where an epoch ends in at most this share of the steps, those in which one does are left out.
_FEW_ENDS = 1 / 3

OWN_PROFILER = "the program has a profiler of its own, which is left alone: its steps were timed and not recorded"


class AttachedSession(Session):
    """Times and records as `gpudiag.profile`; each call of `boundary` ends one step and begins the next.

    Args:
        told: how the command is to be measured.
        place: of this process.
        boundaries: how its steps are found.
        optimizer: the class whose step ends them.
        recorded: False to time steps only.
        yields: whether the program has a profiler of its own by now.
        apart: this rank was past the step at which all were to begin, and is measured for itself.
    """

    _AGREEMENT = AttachedAgreement

    def __init__(
        self,
        told: Settings,
        place: Place,
        boundaries: Boundaries,
        *,
        optimizer: str,
        recorded: bool,
        yields: Callable[[], bool],
        apart: bool = False,
    ) -> None:
        super().__init__(
            told.run_dir,
            steps=told.steps,
            warmup=told.warmup,
            stop=False,
            framework="pytorch",
        )
        self.place = place
        self._apart = apart
        self._says_where = False
        self._runtime = _Runtime(self)
        self._command = told.command
        self._told_run_id = "" if place.world_size > 1 else told.run_id
        self._recorded = recorded
        self._boundaries = boundaries
        self._optimizer = optimizer
        self._yields = yields
        self._windows: list[WrittenAside] = []
        self._open: Range | None = None
        self._begun_ns = 0
        #: The thread that trains, and whether another has asked for the recording's end.
        self._thread = 0
        self._gives_up = False
        #: Steps in which a loader came to its end, and whether one has in this.
        self._ends = 0
        self._loader_ended = False
        #: Traces are written beside the training, unless its process is about to end.
        self._aside = True
        self._note_steps()

    def __enter__(self) -> AttachedSession:
        """Clear this rank's place alone: others that train for themselves may have begun before."""
        self._created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run_id = self._told_run_id or secrets.token_hex(8)
        self._place = self.place
        self._progress = ProgressSender(self._place.rank)
        record.clear_rank(self.run_dir, self._place.rank)
        self._save()
        self._progress.tell("starting")
        return self

    def boundary(self) -> bool:
        """A step ends here and the next begins. False when all is measured."""
        now_ns = time.perf_counter_ns()
        self._thread = threading.get_ident()
        if self._open is None:
            self._begin()
            if self._phases is not None:
                self._phases.sees_input = False  # until some is seen
                self._phases.advise = what_would_do
                self._phases.save_after_s = _SAVE_AFTER_S
            if self._apart and isinstance(self._agreement, AttachedAgreement):
                self._agreement.part()
            self._marked.enter_context(marked_loaders(self._saw_the_end))
        else:
            self._open.__exit__(None, None, None)
            self._ended(now_ns)
        if self._gives_up:
            self.give_up_recording()
        if not self._advance():
            if self._error is not None and OWN_PROFILER in self._error:
                self._error = OWN_PROFILER
            self._marked.close()
            self.give_up_recording()  # what failed while it recorded: another thread's end of it would crash
            return False
        self._open = Range(STEP, number=self._number)
        self._open.__enter__()
        taken_input_ns()  # what was fetched before it
        self._begun_ns = time.perf_counter_ns()
        return True

    def give_up_recording(self) -> None:
        """The program is about to make a profiler of its own, which could not start beside this one's."""
        if threading.get_ident() != self._thread:  # where ending it would crash: PyTorch records by thread
            self._gives_up = True
            return
        window = self._phases._take_window() if self._phases is not None else None  # noqa: SLF001  # one session
        if window is not None:
            window.discard()

    def end(self, error: BaseException | None = None, *, at_exit: bool = False) -> None:
        """Keep what there is. With `at_exit` the process is about to end, and threads cannot be started."""
        self._note_steps()
        self._aside = not at_exit
        for window in self._windows:
            window.join()
            if self._phases is not None and not window.saved:
                self._phases.saved.discard("full")
                lost = f"the trace could not be saved: {window.lost}"
                self._error = self._error or lost
                self._progress.note(f"rank {self._place.rank}: {lost}")
                self._progress.tell("saving")
        self.__exit__(None if error is None else type(error), error, None)

    def _ended(self, now_ns: int) -> None:
        fetching_ns = taken_input_ns()
        self._clock.host_step(self._begun_ns, self._begun_ns + (fetching_ns or 0), now_ns)
        self._number += 1
        end, self._loader_ended = self._loader_ended, False
        self._ends += end
        # What follows the end of an epoch (validation, a checkpoint, new workers) is not what every step takes.
        if end and self._ends <= max(1, self._number * _FEW_ENDS):
            self._clock.leave_out()
        if self._phases is not None:
            self._phases.sees_input = self._phases.sees_input or fetching_ns is not None
            if self._phases.timing_over:
                self._marked.close()  # the recordings have PyTorch's own marks

    def _saw_the_end(self) -> None:
        self._loader_ended |= threading.get_ident() == self._thread

    def _note_steps(self) -> None:
        self._steps_found = StepsFound(
            by="optimizer",
            optimizer=self._optimizer,
            optimizers=self._boundaries.optimizers,
            calls_per_step=self._boundaries.calls_per_step,
            closure=self._optimizer == "LBFGS",
        )

    def _finish(self, status: RunStatus) -> None:
        """The program that started the command brings the ranks' records together when it has ended."""
        self._write_run(status, self._error)

    def window(self, path: Path, *, active: int, cuda: bool, recording: Recording) -> ProfiledWindow:
        """A recording, unless the program has a profiler of its own.

        Raises:
            RuntimeError: it has.
        """
        if self._yields():
            raise RuntimeError(OWN_PROFILER)
        if recording == "light" or not self._aside:
            return ProfiledWindow(path, active=active, cuda=cuda, light=recording == "light")
        window = WrittenAside(path, active=active, cuda=cuda)
        self._windows.append(window)
        return window


class _Runtime(PyTorchRuntime):
    def __init__(self, session: AttachedSession) -> None:
        self._session = session

    def place(self, _devices: Sequence[Any]) -> Place:
        return self._session.place

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], recording: Recording = "full"
    ) -> ProfiledWindow:
        return self._session.window(path, active=active, cuda=self.on_gpu(devices[0]), recording=recording)


class WrittenAside(ProfiledWindow):
    """A last recording: nothing is measured any more when its trace is written, in a thread of its own."""

    _thread: threading.Thread | None = None
    #: Why the trace could not be saved.
    lost: str = ""

    def _save(self, profiler: Any) -> None:
        if not self._kept:
            return
        self.saved = True  # until it is known better, so that the record names it
        try:
            self._thread = threading.Thread(target=self._write, args=(profiler,), name="gpudiag-trace")
            self._thread.start()
        except RuntimeError:  # at the interpreter's end
            self._thread = None
            super()._save(profiler)

    def _write(self, profiler: Any) -> None:
        try:
            super()._save(profiler)
        except Exception as error:  # noqa: BLE001  # it is lost, and the record does not name it
            self.saved = False
            self.lost = str(getattr(error, "strerror", None) or error)
            if isinstance(error, FileNotFoundError):
                self.lost = "the profiler has written nothing; the disk may be full"

    def join(self) -> None:
        """Wait until it is written."""
        if self._thread is not None:
            self._thread.join()
