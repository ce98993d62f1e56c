"""Measure the steps of a user's command. An optimizer hook reports the end of each step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import StepsFound
from gpudiag.training.attach.boundaries import Boundaries
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.frameworks.pytorch.dataloader import marked_loaders
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.frameworks.pytorch.runtime import PyTorchRuntime
from gpudiag.training.session.agreement import SplittableAgreement
from gpudiag.training.session.measurement import RankMeasurement, RunDescription
from gpudiag.training.session.position import ClusterPosition
from gpudiag.training.session.ranges import STEP, Range, take_input_ns
from gpudiag.training.session.step_counts import (
    ACTIVE_STEPS,
    PhaseSettings,
    fewest_steps,
    recording_steps,
    split_short_loop,
)

if TYPE_CHECKING:
    from gpudiag.training.session.phases import Phases
    from gpudiag.training.session.step_counts import TraceKind

#: Seconds until the unprofiled steps are saved for the first time.
_SAVE_AFTER_S = 1.0
#: A step in which an epoch ends is excluded from the step times while epochs end in at most this share of all steps. If
#: epochs end more often, the work after an epoch is part of the usual steps.
_MAX_EPOCH_ENDS = 1 / 3
#: Smallest suggested values of `--warmup` and `--steps`.
MIN_ADVISED_WARMUP, MIN_ADVISED_STEPS = 1, 2
#: Largest suggested value of `--steps`, which is also the largest default.
_MAX_ADVISED_STEPS = 100

OWN_PROFILER = "the program uses its own profiler, so its steps were timed and not recorded"


class AttachedSession:
    """Measure steps as `gpudiag.profile` does. Each call of `boundary` ends one step and begins the next.

    Args:
        settings, position: settings of the measurement, and cluster position of this process.
        boundaries: provides the number of optimizers and of their calls per step, for the record.
        optimizer: class name of the optimizer that ends a step, for the record.
        recorded: False to time steps without profiling.
        has_own_profiler: returns whether the program has created a profiler so far.
        late: True if this rank has passed the first step that the other ranks measure, and so is measured separately.
    """

    def __init__(
        self,
        settings: Settings,
        position: ClusterPosition,
        boundaries: Boundaries,
        *,
        optimizer: str,
        recorded: bool,
        has_own_profiler: Callable[[], bool],
        late: bool = False,
    ) -> None:
        self._position, self._boundaries, self._optimizer = position, boundaries, optimizer
        self._has_own_profiler, self._late = has_own_profiler, late
        self._run_id = "" if position.world_size > 1 else settings.run_id  # "": the ranks agree on a random id
        self._runtime = _AttachedRuntime(position, self._make_window)
        self._loaders = self._runtime.loader_watch()
        self._measurement = RankMeasurement(
            Path(settings.run_dir),
            RunDescription(command=settings.command),
            PhaseSettings(
                steps=settings.steps,
                warmup=settings.warmup,
                recorded=recorded,
                lines=True,
                suggest=suggest_options,
                save_after_s=_SAVE_AFTER_S,
            ),
        )
        self._marked = ExitStack()  # while it is open, fetches from DataLoaders are marked
        self._windows: list[BackgroundWindow] = []
        self._range: Range | None = None  # range of the current step
        self._begun_ns = self._number = 0  # begin of the current step in ns of `perf_counter_ns`, and its number
        #: Identifier of the training thread.
        self._thread = 0
        #: True if another thread has requested the end of the recording.
        self._recording_cancelled = False
        #: Number of steps in which a DataLoader ran out of batches.
        self._epoch_ends = 0
        #: True if a DataLoader has run out of batches in the current step.
        self._loader_ended = False
        #: True if traces are written in the background; False when the process is about to end.
        self._background = True
        self._note_steps()

    def open(self) -> None:
        """Remove this rank's files of an earlier run. Keep the other ranks' files, which may belong to this run."""
        self._measurement.open(self._runtime, self._position, run_id=self._run_id, clear_run=False)

    def boundary(self) -> bool:
        """End a step (except in the first call), and begin the next step. Return False when the measurement is over."""
        now_ns = time.perf_counter_ns()
        self._thread = threading.get_ident()
        phases = self._measurement.phases
        if phases is None or self._range is None:  # the first call
            self._begin()
        else:
            self._range.__exit__(None, None, None)
            self._end_step(phases, now_ns)
        if self._recording_cancelled:
            self.cancel_recording()
        if not self._measurement.advance():
            if self._measurement.error is not None and OWN_PROFILER in self._measurement.error:
                self._measurement.error = OWN_PROFILER  # without the class of the exception
            self._marked.close()
            # After a failure a recording may still run. Ending the recording later, in another thread, would crash.
            self._discard_recording()
            return False
        self._range = Range(STEP, number=self._number)
        self._range.__enter__()
        self._measurement.mark_lines()  # the log of source lines notes that a step begins
        take_input_ns()  # discard the time of fetches before this step
        self._begun_ns = time.perf_counter_ns()
        return True

    def cancel_recording(self) -> None:
        """Discard the recording, because the program creates a profiler, and only one profiler can run at a time."""
        # Only the thread that began a PyTorch recording can end the recording: another thread would crash.
        if threading.get_ident() != self._thread:
            self._recording_cancelled = True
        elif self._discard_recording():
            self._measurement.error = self._measurement.error or OWN_PROFILER

    def _discard_recording(self) -> bool:
        """Discard the current recording; return False if there is none."""
        phases = self._measurement.phases
        return phases is not None and phases.discard_window()

    def end(self, error: BaseException | None = None, *, at_exit: bool = False) -> None:
        """Save the measurements. `error` is the exception that ended the program, or None.

        Pass `at_exit` when the process is about to end: then no thread is started, because threads can no longer start.
        """
        measurement = self._measurement
        self._note_steps()
        self._background = not at_exit
        for window in self._windows:
            window.join()
            if measurement.phases is not None and window.failure:  # a discarded window has no failure
                measurement.phases.saved.discard("full")  # the only kind of trace that is written in the background
                sentence = f"the trace could not be saved: {window.failure}"
                measurement.error = measurement.error or sentence
                measurement.progress.note(f"rank {self._position.rank}: {sentence}")
                measurement.progress.tell("saving")  # sends the note
        self._marked.close()
        # `run_command` combines the ranks' records when the command has ended.
        measurement.close(error, wait_for_others=False)

    def _begin(self) -> None:
        """Begin the phases of the measurement (warm-up first), on the training thread."""
        # `SplittableAgreement` computes the time that it waits from the step time, so `timeout_s` is not used.
        phases = self._measurement.begin(
            self._runtime, loaders=self._loaders, agreement=partial(SplittableAgreement, timeout_s=0.0)
        )
        phases.sees_input = False  # until a batch is fetched from a marked loader
        agreement = self._measurement.agreement
        if self._late and isinstance(agreement, SplittableAgreement):
            agreement.decide_alone()  # the other ranks are at other steps
        self._marked.enter_context(marked_loaders(self._on_loader_end))

    def _end_step(self, phases: Phases, now_ns: int) -> None:
        """Report the host times of the step that ended at `now_ns`. A step in which an epoch ended may be excluded."""
        fetching_ns = take_input_ns()
        clock = self._measurement.clock
        clock.host_step(self._begun_ns, self._begun_ns + (fetching_ns or 0), now_ns)
        self._number += 1
        epoch_ended, self._loader_ended = self._loader_ended, False
        self._epoch_ends += epoch_ended
        # The work after an epoch (validation, a checkpoint, new workers) is not part of every step. One such step
        # may be excluded even if there are few steps.
        if epoch_ended and self._epoch_ends <= max(1, self._number * _MAX_EPOCH_ENDS):
            clock.exclude_step()
        phases.sees_input = phases.sees_input or fetching_ns is not None
        if phases.unprofiled_over:
            self._marked.close()  # PyTorch's profiler marks fetches itself

    def _on_loader_end(self) -> None:
        self._loader_ended |= threading.get_ident() == self._thread

    def _note_steps(self) -> None:
        """Describe for the record how the ends of steps were found."""
        self._measurement.run.steps_found = StepsFound(
            by="optimizer",
            optimizer=self._optimizer,
            optimizers=self._boundaries.optimizers,
            calls_per_step=self._boundaries.calls_per_step,
            closure=self._optimizer == "LBFGS",
        )

    def _make_window(self, path: Path, *, active: int, cuda: bool, kind: TraceKind, shapes: bool) -> ProfiledWindow:
        """Create a recording; raise RuntimeError if the program has a profiler.

        Only the full trace, which takes seconds to write, is written in the background. The kernel-only trace must be
        complete before the full trace begins.

        Args:
            path: path of the trace.
            active: number of recorded steps.
            cuda: record device activity too.
            kind: `light` for a kernel-only trace, `full` for a full trace.
            shapes: record the shapes of operators' inputs.
        """
        if self._has_own_profiler():
            raise RuntimeError(OWN_PROFILER)
        if kind == "light" or not self._background:
            return ProfiledWindow(path, active=active, cuda=cuda, kernel_only=kind == "light", shapes=shapes)
        window = BackgroundWindow(path, active=active, cuda=cuda, shapes=shapes)
        self._windows.append(window)
        return window


class _AttachedRuntime(PyTorchRuntime):
    """PyTorch runtime whose cluster position is known, and whose windows the session creates."""

    def __init__(self, position: ClusterPosition, make_window: Callable[..., ProfiledWindow]) -> None:
        self._position, self._make_window = position, make_window

    def position(self, devices: Sequence[Any]) -> ClusterPosition:  # noqa: ARG002  # the position is known already
        return self._position

    def window(
        self, path: Path, *, active: int, devices: Sequence[Any], kind: TraceKind = "full", shapes: bool = False
    ) -> ProfiledWindow:
        return self._make_window(path, active=active, cuda=self.on_gpu(devices[0]), kind=kind, shapes=shapes)


class BackgroundWindow(ProfiledWindow):
    """A recording whose trace is written in another thread while the training continues."""

    _thread: threading.Thread | None = None
    #: Reason why the trace could not be saved; "" if there was no failure.
    failure: str = ""

    def _save(self, profiler: Any) -> None:
        """Write the trace of `profiler`, which has stopped, in another thread, or here if no thread can be started."""
        if not self._kept:  # the recording was discarded
            return
        self.saved = True  # the rank's record names the trace unless writing it fails
        try:
            self._thread = threading.Thread(target=self._write, args=(profiler,), name="gpudiag-trace")
            self._thread.start()
        except RuntimeError:  # no thread can be started when the interpreter ends
            self._thread = None
            super()._save(profiler)

    def _write(self, profiler: Any) -> None:
        try:
            super()._save(profiler)
        except Exception as error:  # noqa: BLE001  # the record does not name the lost trace
            self.saved = False
            self.failure = str(getattr(error, "strerror", None) or error) or type(error).__name__
            if isinstance(error, FileNotFoundError):  # PyTorch's profiler does not report a failed write
                self.failure = "the profiler has written nothing; the disk may be full"

    def join(self) -> None:
        """Wait until the trace is written."""
        if self._thread is not None:
            self._thread.join()


def suggest_options(ran: int, missing: int, *, at_least: bool, run_in: int, lines: bool) -> str:
    """Say how many more steps a command needs, and suggest options, if there are any, with which its steps are enough.

    Args:
        ran: number of steps of the command.
        missing: number of missing steps; a lower bound if `at_least` is True.
        run_in: number of steps between the warm-up and the unprofiled steps.
        lines: True if some steps time source lines.

    Worked example. A command has 29 steps; `run_in` is 0. Two recordings of 2 discarded and 6 recorded steps leave 13.
    Of these, 3 warm up, 7 are unprofiled and 3 time lines: `--warmup 3 --steps 7`.
    """
    remaining = ran - recording_steps(ACTIVE_STEPS) - run_in
    # `+ 1`: `fewest_steps` counts one unprofiled step, but the suggested `--steps` is at least `MIN_ADVISED_STEPS` (2).
    fits = remaining >= fewest_steps(lines=lines) + 1
    needed = f"{'at least' if at_least else 'about'} {missing} more step{'s are' if missing != 1 else ' is'} needed"
    if at_least and fits:  # the suggested options replace a number of which only a lower bound is known
        needed = "more steps are needed until their times have converged"
    if not fits:
        return needed
    warmup, steps = split_short_loop(remaining, lines=lines)
    return f"{needed}, or --warmup {warmup} --steps {min(_MAX_ADVISED_STEPS, steps)}"
