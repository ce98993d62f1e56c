"""The phases of a session as one coroutine: warm-up, timed steps, a light recording, a full one.

Each `yield` lets the training loop run one step; what stands after it runs between that step and the next.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator

from gpudiag.model.run import StepTimes, UnprofiledSteps, Warmup
from gpudiag.training.session import warmup
from gpudiag.training.session.agreement import Agreement, Verdict
from gpudiag.training.session.clock import StepClock, summarize
from gpudiag.training.session.ending import recording_steps, what_would_do
from gpudiag.training.session.enough import Enough, first_block, next_block
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.runtime import RECORDINGS, WARMUP_STEPS, FlopCounter, LoaderWatch, Recording, Window
from gpudiag.training.session.timing.scheduling import SchedulingWatch
from gpudiag.training.session.timing.unprofiled_series import UnprofiledSeries

logger = logging.getLogger("gpudiag")

#: The step of the warm-up in which work is counted: in the first, modules and libraries are made ready and compiled.
_COUNTED_STEP = 1

#: Steps on a GPU between a synchronization and the first timed step: they let the host run ahead again.
_RUN_IN_STEPS = 2

#: A block of warm-up steps takes at most this share of the time in which steps are timed.
_BLOCK_SHARE = 0.1

#: Timed steps where there were no warm-up steps to choose by.
_STEPS_UNSEEN = 20

_NO_DEVICE_ACTIVITY = (
    "the profiler recorded no activity of the GPU: nothing can be said of what runs there. Another profiler may be "
    "attached (nsys, ncu, DCGM's profiling metrics), or this user may not read the GPU's counters: end the other, or "
    "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add SYS_ADMIN), and run again"
)


class Phases:
    """Measures one rank. What it has so far is always in its attributes, also when the loop ends early.

    Args:
        clock: times steps on this rank's device.
        agreement: the other ranks.
        progress: whom to tell.
        changed: called when something was measured that is worth saving.
        window: makes the window of a recording.
        on_gpu: the device works beside the host.
        steps: timed steps; None to choose by their length.
        warmup_steps: warm-up steps; None to find out.
        active: recorded steps.
        limits: where automatic warm-up ends in any case.
        enough: how well the step time is to be known; decides on the number of timed steps where given.
        recorded: False to leave out the profiled window.
        loaders: sees the processes that make batches, where there is anything that does.
        counter: counts the work of one step of the warm-up, whose time is left out; not where it has less than three.
    """

    def __init__(
        self,
        *,
        clock: StepClock,
        agreement: Agreement,
        progress: ProgressSender,
        changed: Callable[[], None],
        window: Callable[[Recording], Window],
        on_gpu: bool,
        steps: int | None,
        warmup_steps: int | None,
        active: int,
        limits: warmup.WarmupLimits,
        enough: Enough | None = None,
        recorded: bool = True,
        loaders: LoaderWatch | None = None,
        counter: FlopCounter | None = None,
    ) -> None:
        self.warmup: Warmup | None = None
        self.unprofiled: StepTimes | None = None
        self.timed: UnprofiledSteps | None = None
        #: Step times while recorded, the recordings that were saved, and what went wrong with them, by its code.
        self.recorded: dict[Recording, StepTimes | None] = {}
        self.saved: set[Recording] = set()
        self.unmarked = ""
        self.notes: dict[str, str] = {}
        #: False where the batch is fetched within the step's own work.
        self.sees_input = True
        self.done = False
        self.problem: str | None = None
        #: What would have been enough, as `what_would_do` says it.
        self.advise: Callable[..., str] = what_would_do
        #: Seconds after which the timed steps so far are saved first, and then after twice as long each time: a process
        #: that a signal ends keeps them. A save takes some ms of a step, so that it costs 0.1 % in all.
        self.save_after_s = math.inf
        self.counter = counter if warmup_steps is None or warmup_steps > _COUNTED_STEP + 1 else None
        #: What is open while a step's work is done: in one step, the counter.
        self.around: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._clock = clock
        self._agreement = agreement
        self._progress = progress
        self._changed = changed
        self._make_window = window
        self._on_gpu = on_gpu
        self._steps = steps
        self._told = warmup_steps
        self._active = active
        self._limits = limits
        self._enough = enough
        self._loaders = loaders
        self._records = recorded
        self._recording: Recording = "light"
        #: Where steps are timed for a second or two, looking for two seconds whether they have settled is too much.
        self._block_ms = min(warmup.BLOCK_MS, _BLOCK_SHARE * 1e3 * enough.seconds) if enough else warmup.BLOCK_MS
        self._began_s = self._first_look_s = 0.0
        self._ran = self._warmup_ran = 0
        #: Timed steps that were agreed on.
        self._to_time: int | None = None
        self._phase = "warm-up"
        self._window: Window | None = None
        #: Rank 0 only: step times of each rank while it warms up, its first step left out.
        self._warming: list[list[float]] = []
        self._series = UnprofiledSeries()
        self._scheduling = SchedulingWatch()

    @property
    def timing_over(self) -> bool:
        """Whether all timed steps are over: what follows is recorded."""
        return self._phase in {"profiled", "over"}

    def run(self) -> Iterator[None]:
        """The coroutine. Raises TimeoutError when a peer does not come, and whatever the profiler raises."""
        for _ in self._all():
            yield
            self._ran += 1

    def _all(self) -> Iterator[None]:
        verdict = yield from self._warm_up()
        if verdict.ended:
            self.problem = "another rank's loop ended while this one was still warming up"
            return
        self._phase = "timed"
        yield from self._time(verdict.steps)
        if self._records:
            self._phase = "profiled"
            for recording in RECORDINGS:
                yield from self._record(recording)
        self._phase = "over"
        self.done = True

    def close(self) -> None:
        """The loop is over: keep what the phase that was running has measured."""
        if self._phase == "over" or self.problem is not None:
            return
        if self._phase == "warm-up":
            self._note_warmup(settled=False)
            self.problem = (
                f"the loop ended after {self._warmup_ran} steps, before warm-up was over: nothing was timed; "
                f"{self._advice()}"
            )
            return
        if self._phase == "timed":
            self._scheduling.end()
            self._series.extend(self._clock.series())
            self._note_timed()
            timed = len(self._series.step_ms)
            self.problem = f"the loop ended after {timed} timed steps: no step was profiled; {self._advice()}"
            return
        window = self._take_window()
        if window is not None:
            self.recorded[self._recording] = summarize(self._clock.read())
            window.stop()
            self._note_saved(window)
        times = self.recorded.get(self._recording)
        steps = f"{len(times.step_ms) if times else 0} of {self._active} profiled steps"
        which = "" if self._recording == "full" else ", recorded lightly"
        self.problem = f"the loop ended after {steps}{which}; {self._advice()}"

    def _advice(self) -> str:
        run_in = _RUN_IN_STEPS if self._on_gpu else 0
        warming = self._phase == "warm-up"
        warmup_steps = (warmup.FEWEST_STEPS if self._told is None else self._told) if warming else self._warmup_ran
        timed = self._to_time or self._steps or warmup.FEWEST_UNPROFILED
        needed = warmup_steps + run_in + timed + (recording_steps(self._active) if self._records else 0)
        unsure = warming and (self._told is None or self._steps is None)
        return self.advise(self._ran, max(1, needed - self._ran), at_least=unsure, run_in=run_in)

    def _warm_up(self) -> Generator[None, None, Verdict]:
        self._began_s = time.perf_counter()
        self._clock.restart()
        look = warmup.FIRST_LOOK if self._told is None else self._told
        while True:
            for _ in range(look):
                if self.counter is not None and self._warmup_ran == _COUNTED_STEP:
                    self.around = self.counter
                    self._clock.leave_out()
                yield
                self.around = contextlib.nullcontext()
                self._clock.mark()
                self._warmup_ran += 1
                self._progress.tell("warmup", self._warmup_ran, self._told, fetching_ms=self._fetching_ms)
            verdict = self._agreement.decide(self._clock.read(), self._judge)
            if verdict.again == 0:
                break
            self._clock.restart()
            look = verdict.again
        self._note_warmup(settled=verdict.settled)
        self._changed()
        return verdict

    def _judge(self, posted: list[list[float]]) -> Verdict:
        """On rank 0: is warm-up over? It is when it is over on every rank."""
        if not self._warming:
            # What the first steps load, compile, and try out says nothing of how soon the others settle.
            self._first_look_s = time.perf_counter()
            self._warming = [list(step_ms[1:]) for step_ms in posted]
        else:
            for known, new in zip(self._warming, posted, strict=True):
                known.extend(new)
        usable = [series for series in self._warming if series]
        if not usable:
            return Verdict(settled=self._told is not None, steps=self._steps or _STEPS_UNSEEN)
        # The slowest rank sets the pace.
        slowest = max(usable, key=lambda series: statistics.median(series[-4:]))
        step_ms = statistics.median(slowest[-8:])
        block = warmup.block_length(step_ms, self._block_ms)
        settled = all(warmup.has_settled(series, block) for series in usable)
        over = (
            self._told is not None
            or settled
            or self._warmup_ran >= self._limits.steps
            or time.perf_counter() - self._first_look_s >= self._limits.seconds
        )
        if not over:
            return Verdict(again=warmup.next_look(slowest, self._block_ms))
        if self._told is not None and len(slowest) < 2 * block:
            settled = True  # too few to tell; the timed steps themselves will show a trend if there is one
        if self._enough is not None and self._steps is None:
            return Verdict(settled=settled, steps=first_block(step_ms, self._enough))
        return Verdict(settled=settled, steps=self._steps or warmup.unprofiled_steps(step_ms))

    def _time(self, steps: int) -> Iterator[None]:
        while steps > 0:
            self._to_time = len(self._series.step_ms) + steps
            self._scheduling.find_threads()
            self._clock.anchor()
            for _ in range(_RUN_IN_STEPS if self._on_gpu else 0):
                yield
            self._scheduling.begin()
            self._clock.restart()
            before, begun_s = len(self._series.step_ms), time.perf_counter()
            if self._loaders is not None and not before:
                self._loaders.begin()
            for step in range(1, steps + 1):
                yield
                self._clock.mark()
                if time.perf_counter() - begun_s >= self.save_after_s:
                    self.save_after_s *= 2
                    self._save_so_far()
                self._progress.tell("timed", before + step, before + steps, fetching_ms=self._fetching_ms)
            self._scheduling.end()
            self._series.extend(self._clock.series())
            if self._enough is None or self._steps is not None:
                break
            steps = self._agreement.decide(self._series.step_ms, self._judge_unprofiled).steps
        self._note_timed()
        outline = warmup.outline(self._series.step_ms)
        if self.warmup is not None and warmup.trending(outline) and outline[-1] < outline[0]:
            self._note_warmup(settled=False)
        self._changed()

    def _save_so_far(self) -> None:
        self.unprofiled = summarize([*self._series.step_ms, *self._clock.so_far()])
        self._changed()

    def _fetching_ms(self) -> float | None:
        return self._clock.fetching_ms() if self.sees_input else None

    def _judge_unprofiled(self, posted: list[list[float]]) -> Verdict:
        """On rank 0: how many more steps are to be timed?"""
        assert self._enough is not None  # noqa: S101  # asked only where it is given
        return Verdict(steps=next_block(posted, self._enough))

    def _record(self, recording: Recording) -> Iterator[None]:
        """One recording. Where the light one fails, its steps pass all the same: the other ranks record theirs."""
        self._recording = recording
        guard: Callable[[], contextlib.AbstractContextManager[None]]
        guard = self._failing if recording == "light" else contextlib.nullcontext
        with guard():
            started = self._make_window(recording)
            started.start()
            self._window = started
        for step in range(WARMUP_STEPS + self._active):
            recorded = step - WARMUP_STEPS
            if recorded == 0:
                self._clock.restart()
            done = RECORDINGS.index(recording) * self._active + max(0, recorded)
            self._progress.tell("profiled", done, len(RECORDINGS) * self._active)
            yield
            if recorded >= 0:
                self._clock.mark()
            if recorded == self._active - 1:
                self._clock.finish()
                if recording == RECORDINGS[-1]:
                    self._progress.tell("saving")
            if self._window is not None:
                with guard():
                    self._window.step()
        times = summarize(self._clock.read())
        window = self._take_window()
        if window is None:
            return
        with guard():
            window.stop()
            self.recorded[recording] = times
            self._note_saved(window)
            self._changed()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What is lost when the light recording fails is that recording alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever a profiler's private parts may raise
            window = self._take_window()
            if window is not None:
                window.discard()
            self._note(
                "no-light-recording",
                f"no light recording ({type(error).__name__}: {error}): steps are recorded with operators only",
            )

    def _take_window(self) -> Window | None:
        window, self._window = self._window, None
        return window

    def _note_saved(self, window: Window) -> None:
        if window.saved:
            self.saved.add(self._recording)
            self.unmarked = window.unmarked
        if window.device_activity is False:
            self._note("missing-device-activity", _NO_DEVICE_ACTIVITY)

    def _note(self, code: str, words: str) -> None:
        """Say once, at once, what does not end the run but is wrong with its recordings."""
        if code not in self.notes:
            self.notes[code] = words
            logger.warning("gpudiag: %s", words)
            self._progress.note(words)
            self._changed()

    def _note_timed(self) -> None:
        self.unprofiled = summarize(self._series.step_ms)
        loader = self._loaders.pace() if self._loaders is not None else None
        scheduling = self._scheduling.per_step(self.unprofiled.mean_ms) if self.unprofiled is not None else None
        self.timed = self._series.record(sees_input=self.sees_input, loader=loader, scheduling=scheduling)

    def _note_warmup(self, *, settled: bool) -> None:
        seconds = self.warmup.seconds if self.warmup is not None else time.perf_counter() - self._began_s
        self.warmup = Warmup(steps=self._warmup_ran, seconds=seconds, automatic=self._told is None, settled=settled)
