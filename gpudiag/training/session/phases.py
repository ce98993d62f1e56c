"""Run the phases of a session as a coroutine: warm-up, unprofiled steps, a kernel-only trace, a full trace.

At each `yield` the training loop runs one step. The code after a `yield` runs before the next step.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Literal

from gpudiag.model.run import StepTimes, UnprofiledSteps, Warmup
from gpudiag.training.session import step_counts
from gpudiag.training.session.agreement import Agreement, PhaseDecision
from gpudiag.training.session.clock import SchedulingWatch, StepClock, UnprofiledSeries, summarize
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.step_counts import PROFILER_WARMUP_STEPS, TRACE_KINDS, PhaseSettings, TraceKind

if TYPE_CHECKING:
    from gpudiag.training.session.line_log import LineLog
    from gpudiag.training.session.runtime import LoaderWatch, StepFlopCounter, Window

logger = logging.getLogger("gpudiag")

#: Number of the warm-up step whose floating-point operations are counted. In step 0 libraries still initialize.
_COUNTED_STEP = 1
#: Number of steps between a synchronization and the unprofiled steps. In these steps the host runs ahead again.
_RUN_IN_STEPS = 2
#: Maximum duration of a warm-up block (see `step_counts`), as a share of the time for unprofiled steps.
_BLOCK_SHARE = 0.1
#: Number of unprofiled steps if no warm-up step was timed, so that the step time is unknown.
_DEFAULT_STEPS = 20

_NO_DEVICE_ACTIVITY = (
    "the profiler recorded no activity of the GPU, so gpudiag cannot analyse what runs there. Another profiler may be "
    "attached (nsys, ncu, DCGM's profiling metrics), or this user may not read the GPU's counters: end the other "
    "profiler, or load the driver with NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add SYS_ADMIN), "
    "and run again"
)


class Phases:
    """Measure one rank. The attributes always contain the current results, even if the loop ends early.

    `changed` is called for each new result. `window` creates the recording of a trace. On a GPU (`on_gpu`), two untimed
    steps precede the unprofiled steps, so that the host runs ahead. `loaders` times loader workers, and `lines` times
    the user's source lines. `counter` counts the operations of one warm-up step, which is not timed.

    Attributes:
        unprofiled, timed: step times of the unprofiled steps, and the host's times in the same steps.
        unmarked: reason why no modules are marked in the last saved trace; "" if they are marked.
        recorded: step times of recorded steps, by kind of trace.
        saved: kinds of the traces that were saved.
        notes: warnings about incomplete recordings, by short code.
        sees_input: False if the time to fetch a batch is unknown, because the step's own code fetches it.
        problem: reason why the phases ended early; None if they did not.
        around: context manager for the current step's work; it is `counter` in the step whose operations are counted.
    """

    def __init__(
        self,
        settings: PhaseSettings,
        *,
        clock: StepClock,
        agreement: Agreement,
        progress: ProgressSender,
        changed: Callable[[], None],
        window: Callable[[TraceKind], Window],
        on_gpu: bool,
        loaders: LoaderWatch | None = None,
        counter: StepFlopCounter | None = None,
        lines: LineLog | None = None,
    ) -> None:
        self.warmup: Warmup | None = None
        self.unprofiled: StepTimes | None = None
        self.timed: UnprofiledSteps | None = None
        self.recorded: dict[TraceKind, StepTimes | None] = {}
        self.saved: set[TraceKind] = set()
        self.unmarked = ""
        self.notes: dict[str, str] = {}
        self.sees_input = True
        self.problem: str | None = None
        # A fixed warm-up must leave a timed step besides the first step and the counted step.
        self.counter = counter if settings.warmup is None or settings.warmup > _COUNTED_STEP + 1 else None
        self.around: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._settings, self._clock, self._agreement = settings, clock, agreement
        self._progress, self._changed = progress, changed
        self._make_window = window
        self._run_in = _RUN_IN_STEPS if on_gpu else 0
        self._loaders, self._lines = loaders, lines
        self._save_after_s = settings.save_after_s
        self._kind: TraceKind = TRACE_KINDS[0]  # kind of the current or next trace
        #: Duration of a block of warm-up steps in ms, reduced if there is little time for unprofiled steps.
        self._block_ms = step_counts.BLOCK_MS
        if settings.target is not None:
            self._block_ms = min(self._block_ms, _BLOCK_SHARE * 1e3 * settings.target.seconds)
        self._began_s = self._first_check_s = 0.0  # begin of warm-up and of its limit, in s of `perf_counter`
        self._ran = self._warmup_ran = 0  # numbers of completed steps and of completed warm-up steps
        #: Number of unprofiled steps on which the ranks have agreed so far.
        self._agreed_steps: int | None = None
        self._line_steps = 0  # number of steps that time source lines; 0 before it is known
        self._phase: Literal["warm-up", "unprofiled", "lines", "profiled", "over"] = "warm-up"
        self._window: Window | None = None
        #: On rank 0, each rank's step times in ms during warm-up, without the first step.
        self._warmup_ms: list[list[float]] = []
        self._series = UnprofiledSeries()
        self._scheduling = SchedulingWatch()

    @property
    def unprofiled_over(self) -> bool:
        """True if all unprofiled steps are over."""
        return self._phase in {"lines", "profiled", "over"}

    def run(self) -> Iterator[None]:
        """Run all phases and count the steps. Raise TimeoutError if a rank did not post its step times in time."""
        for _ in self._run_phases():
            yield
            self._ran += 1

    def _run_phases(self) -> Iterator[None]:
        """Run all phases in order, and yield before each step. End early if another rank's loop ends in the warm-up."""
        decision = yield from self._warm_up()
        if decision.ended:
            self.problem = "another rank's loop ended while this one was still warming up"
            return
        self._phase = "unprofiled"
        self._line_steps = decision.line_steps if self._lines is not None else 0
        yield from self._run_unprofiled(decision.unprofiled_steps)
        if self._settings.recorded:
            yield from self._time_lines()
            self._phase = "profiled"
            for kind in TRACE_KINDS:
                yield from self._record(kind)
        self._phase = "over"

    def close(self) -> None:
        """If the loop has ended early, keep the results of the unfinished phase and set `problem`."""
        if self._phase == "over" or self.problem is not None:
            return
        if self._phase == "warm-up":
            self._note_warmup(converged=False)
            ended = f"after {self._warmup_ran} steps, before warm-up was over: nothing was timed"
        elif self._phase == "unprofiled":
            self._end_series()
            self._note_unprofiled()
            ended = f"after {len(self._series.step_ms)} unprofiled steps: no step was profiled"
        elif self._phase == "lines":
            ended = "while the lines of the source were timed: no step was profiled"
        else:
            window = self._take_window()
            if window is not None:
                self.recorded[self._kind] = summarize(self._clock.read())
                window.stop()
                self._note_saved(window)
            times = self.recorded.get(self._kind)
            ended = f"after {len(times.step_ms) if times else 0} of {self._settings.active} profiled steps"
            if self._kind != "full":
                ended += " of the kernel-only recording"
        self.problem = f"the loop ended {ended}; {self._suggestion()}"

    def discard_window(self) -> bool:
        """Discard the current recording; return False if there is none."""
        window = self._take_window()
        if window is None:
            return False
        window.discard()
        return True

    def _suggestion(self) -> str:
        """Return a sentence on how many more steps the loop needs, and which arguments suit a loop of its length."""
        settings = self._settings
        warming = self._phase == "warm-up"
        warmup_steps = self._warmup_ran
        if warming:
            warmup_steps = step_counts.MIN_WARMUP_STEPS if settings.warmup is None else settings.warmup
        unprofiled = self._agreed_steps or settings.steps or step_counts.MIN_UNPROFILED_STEPS
        recorded = step_counts.recording_steps(settings.active) if settings.recorded else 0
        # Before the end of warm-up the step time is unknown. Then numbers of steps that depend on it are lower bounds.
        at_least = warming and (settings.warmup is None or settings.steps is None)
        if self._lines is not None:  # `line_steps` is smallest for an infinite step time, and largest for 0
            recorded += self._line_steps or step_counts.line_steps(math.inf if at_least else 0.0, unprofiled)
        needed = warmup_steps + self._run_in + unprofiled + recorded
        return settings.suggest(
            self._ran, max(1, needed - self._ran), at_least=at_least, run_in=self._run_in, lines=self._lines is not None
        )

    def _warm_up(self) -> Generator[None, None, PhaseDecision]:
        """Run warm-up steps, and return the decision of rank 0 that ends the warm-up."""
        self._began_s = time.perf_counter()
        self._clock.restart()
        warmup = self._settings.warmup
        steps = step_counts.FIRST_CHECK_STEPS if warmup is None else warmup
        while True:
            for _ in range(steps):
                if self.counter is not None and self._warmup_ran == _COUNTED_STEP:
                    self.around = self.counter
                    self._clock.exclude_step()
                yield
                self.around = contextlib.nullcontext()
                self._clock.mark()
                self._warmup_ran += 1
                self._progress.tell("warmup", self._warmup_ran, warmup, fetching_ms=self._fetching_ms)
            decision = self._agreement.decide(self._clock.read(), self._judge_warmup)
            if decision.more_warmup == 0:
                break
            self._clock.restart()
            steps = decision.more_warmup
        self._note_warmup(converged=decision.converged)
        self._changed()
        return decision

    def _judge_warmup(self, posted: list[list[float]]) -> PhaseDecision:
        """Decide on rank 0 from each rank's new step times in ms: warm-up is over when all converge, or at a limit."""
        settings = self._settings
        if not self._warmup_ms:
            # The limit does not include the first steps, which load libraries and compile.
            self._first_check_s = time.perf_counter()
            self._warmup_ms = [list(step_ms[1:]) for step_ms in posted]
        else:
            for known, new in zip(self._warmup_ms, posted, strict=True):
                known.extend(new)
        usable = [series for series in self._warmup_ms if series]
        if not usable:  # a fixed warm-up has at most one step
            steps = settings.steps or _DEFAULT_STEPS
            line_steps = step_counts.line_steps(math.inf, steps)
            return PhaseDecision(converged=settings.warmup is not None, unprofiled_steps=steps, line_steps=line_steps)
        # Only recent steps count, because steps become shorter during warm-up.
        slowest = max(usable, key=lambda series: statistics.median(series[-4:]))
        step_ms = statistics.median(slowest[-8:])  # the slowest rank determines the step time
        block = step_counts.block_length(step_ms, self._block_ms)
        converged = all(step_counts.has_converged(series, block) for series in usable)
        if settings.warmup is None and not converged and not self._at_limit():
            return PhaseDecision(more_warmup=step_counts.steps_to_next_check(slowest, self._block_ms))
        if settings.warmup is not None and len(slowest) < 2 * block:
            converged = True  # there are too few steps to decide; a trend would appear in the unprofiled steps
        steps = self._choose_steps(step_ms)
        line_steps = step_counts.line_steps(step_ms, steps)
        return PhaseDecision(converged=converged, unprofiled_steps=steps, line_steps=line_steps)

    def _at_limit(self) -> bool:
        limits = self._settings.limits
        return self._warmup_ran >= limits.steps or time.perf_counter() - self._first_check_s >= limits.seconds

    def _choose_steps(self, step_ms: float) -> int:
        """Return the number of unprofiled steps before the next decision."""
        if self._settings.steps is not None:
            return self._settings.steps
        if self._settings.target is not None:
            return step_counts.first_block(step_ms, self._settings.target)
        return step_counts.default_unprofiled_steps(step_ms)

    def _run_unprofiled(self, steps: int) -> Iterator[None]:
        """Time `steps` steps, and more until the timing target is met. If steps get faster, warm-up was too short."""
        target = self._settings.target if self._settings.steps is None else None
        while steps > 0:
            self._agreed_steps = len(self._series.step_ms) + steps
            self._scheduling.find_threads()
            self._clock.anchor()
            for _ in range(self._run_in):
                yield
            self._scheduling.begin()
            self._clock.restart()
            before, begun_s = len(self._series.step_ms), time.perf_counter()
            if self._loaders is not None and not before:  # later blocks continue the loaders' measurement
                self._loaders.begin()
            for step in range(1, steps + 1):
                yield
                self._clock.mark()
                if time.perf_counter() - begun_s >= self._save_after_s:  # see `PhaseSettings.save_after_s`
                    self._save_after_s *= 2
                    self.unprofiled = summarize([*self._series.step_ms, *self._clock.so_far()])
                    self._changed()
                self._progress.tell("timed", before + step, before + steps, fetching_ms=self._fetching_ms)
            self._end_series()
            if target is None:
                break
            steps = self._agreement.decide(self._series.step_ms, self._judge_unprofiled).unprofiled_steps
        self._note_unprofiled()
        sampled = step_counts.downsampled(self._series.step_ms)
        if self.warmup is not None and step_counts.has_trend(sampled) and sampled[-1] < sampled[0]:
            self._note_warmup(converged=False)
        self._changed()

    def _time_lines(self) -> Iterator[None]:
        """Run steps in which the lines of the user's source are timed."""
        if self._lines is None:
            return
        self._phase = "lines"
        if self._loaders is not None:
            self._loaders.time_lines()
        self._lines.begin("alone")
        for step in range(self._line_steps):
            self._progress.tell("lines", step, self._line_steps)
            yield
            self._lines.step()
        self._lines.end()

    def _end_series(self) -> None:
        self._scheduling.end()
        self._series.extend(self._clock.series())

    def _fetching_ms(self) -> float | None:
        return self._clock.fetching_ms() if self.sees_input else None

    def _judge_unprofiled(self, posted: list[list[float]]) -> PhaseDecision:
        """Decide on the number of additional unprofiled steps. For rank 0."""
        assert self._settings.target is not None  # noqa: S101  # called only if a target is set
        return PhaseDecision(unprofiled_steps=step_counts.next_block(posted, self._settings.target))

    def _record(self, kind: TraceKind) -> Iterator[None]:
        """Record one trace. If the kernel-only trace fails, run its steps anyway, so that ranks stay in one phase."""
        self._kind = kind
        active = self._settings.active
        guard: Callable[[], contextlib.AbstractContextManager[None]]
        guard = contextlib.nullcontext if kind == "full" else self._tolerating_failure
        with guard():
            window = self._make_window(kind)
            window.start()
            self._window = window
        for step in range(PROFILER_WARMUP_STEPS + active):
            recorded = step - PROFILER_WARMUP_STEPS  # number of the recorded step; negative in discarded steps
            if recorded == 0:
                if self._lines is not None:
                    self._lines.begin(kind)
                self._clock.restart()
            done = TRACE_KINDS.index(kind) * active + max(0, recorded)
            self._progress.tell("profiled", done, len(TRACE_KINDS) * active)
            yield
            if recorded >= 0:
                self._clock.mark()
                self._note_line_step(last=recorded == active - 1)
            if recorded == active - 1:
                self._clock.finish()
                if kind == TRACE_KINDS[-1]:
                    self._progress.tell("saving")
            if self._window is not None:
                with guard():
                    self._window.step()
        times = summarize(self._clock.read())
        taken = self._take_window()
        if taken is None:
            return
        with guard():
            taken.stop()
            self.recorded[kind] = times
            self._note_saved(taken)
            self._changed()

    def _note_line_step(self, *, last: bool) -> None:
        if self._lines is not None:
            self._lines.step()
            if last:
                self._lines.end()

    @contextlib.contextmanager
    def _tolerating_failure(self) -> Iterator[None]:
        """Suppress exceptions while the kernel-only trace is recorded, so that only this trace is lost."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # the profiler's private interface may raise any exception
            self.discard_window()
            self._note(
                "no-light-recording",
                f"no kernel-only recording ({type(error).__name__}: {error}): steps are recorded with operators only",
            )

    def _take_window(self) -> Window | None:
        window, self._window = self._window, None
        return window

    def _note_saved(self, window: Window) -> None:
        if window.saved:
            self.saved.add(self._kind)
            self.unmarked = window.unmarked
        if window.device_activity is False:
            self._note("missing-device-activity", _NO_DEVICE_ACTIVITY)

    def _note(self, code: str, sentence: str) -> None:
        """Report a defect of the recordings immediately, but only once per code. The run continues."""
        if code not in self.notes:
            self.notes[code] = sentence
            logger.warning("gpudiag: %s", sentence)
            self._progress.note(sentence)
            self._changed()

    def _note_unprofiled(self) -> None:
        self.unprofiled = summarize(self._series.step_ms)
        loader = self._loaders.pace() if self._loaders is not None else None
        scheduling = self._scheduling.per_step(self.unprofiled.mean_ms) if self.unprofiled is not None else None
        self.timed = self._series.record(sees_input=self.sees_input, loader=loader, scheduling=scheduling)

    def _note_warmup(self, *, converged: bool) -> None:
        seconds = self.warmup.seconds if self.warmup is not None else time.perf_counter() - self._began_s
        automatic = self._settings.warmup is None
        self.warmup = Warmup(steps=self._warmup_ran, seconds=seconds, automatic=automatic, settled=converged)
