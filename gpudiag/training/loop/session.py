"""Implement `gpudiag.profile`: measure a training loop while it runs, and write a run directory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpudiag.errors import UsageError
from gpudiag.model.job import Job
from gpudiag.model.run_directory import LINES_DIR
from gpudiag.training.frameworks.runtimes import load_runtime
from gpudiag.training.loop.launched import Launched, launched
from gpudiag.training.loop.turns import own_turns
from gpudiag.training.session.agreement import Agreement
from gpudiag.training.session.measurement import RankMeasurement, RunDescription
from gpudiag.training.session.phases import Phases
from gpudiag.training.session.ranges import INPUT, STEP, Range, take_input_ns
from gpudiag.training.session.record import print_next_command
from gpudiag.training.session.step_counts import ACTIVE_STEPS, MIN_ACTIVE_STEPS, PhaseSettings, WarmupLimits

if TYPE_CHECKING:
    from gpudiag.training.session.runtime import Runtime

T = TypeVar("T")


class Session:
    """Measure a training loop: time its steps without the profiler, and record traces.

        with gpudiag.profile("run-dir") as prof:
            for batch in prof.steps(loader):
                train(batch)

    If other code iterates over the batches, the program calls `prof.step()` at the end of each step instead.

    A session skips steps until step times have converged, and then times steps without the profiler. Finally it records
    a kernel-only trace (without operators) and a full trace (with operators). All processes of a distributed job must
    open the block with the same arguments. All processes enter each phase at the same step. They agree on this step
    through the job's key-value store, so gpudiag adds no collective. Afterwards `run_dir` contains `run.json`, the full
    traces in `traces/`, and the kernel-only traces in `traces/light/`. `gpudiag analyze run_dir`
    reports where the time goes. If the loop ends early or the block raises an exception, the measurements are kept.

    Args:
        run_dir: the run directory; files of an earlier run are replaced. In a function that `gpudiag profile
            module:function` runs, `run_dir` may be omitted and is ignored, because the command chooses the directory.
        steps: number of unprofiled steps; by default as many as take about three seconds, at least 10 and at most 100.
        warmup: number of steps to skip; by default until step times have converged.
        active: number of steps in each trace, at least 3. The analysis ignores the first and the last of these steps.
        stop: True to end the loop after the recorded steps, False to continue with the remaining batches. By default
            the loop ends only under `gpudiag profile`.
        model: the model. Its parameters, gradient sizes and floating-point operations per step are recorded.
        batch_size: number of samples per process and step, for the record.
        workload: name of the training in the record; by default the script's name.
        strategy: how gradients are communicated, for the record.
        options: further values for the record.
        device: device of the training; by default the current GPU if this process uses one, else the CPU. Under
            TensorFlow one or several logical devices that this process drives; by default the devices of the model's
            strategy.
        framework: `pytorch` or `tensorflow`; by default the framework that the program has imported, or PyTorch if it
            has imported both or neither.
        timeout_s: maximum seconds that a rank waits for another rank to reach the same step.

    Raises:
        UsageError: `run_dir` is missing, or a number is out of its range.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        steps: int | None = None,
        warmup: int | None = None,
        active: int = ACTIVE_STEPS,
        stop: bool | None = None,
        model: Any = None,
        batch_size: int | None = None,
        workload: str | None = None,
        strategy: str | None = None,
        options: Mapping[str, str] | None = None,
        device: Any = None,
        framework: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        run = launched()
        if run is None and run_dir is None:
            raise UsageError(
                "gpudiag.profile was given no run directory",
                'Write gpudiag.profile("run-dir"), or start the function with `gpudiag profile module:function`.',
            )
        self.run_dir = Path(run.run_dir if run is not None else run_dir or "")
        # This call also raises UsageError for an unknown framework.
        self._loaders = load_runtime(framework).loader_watch(str(self.run_dir.absolute() / LINES_DIR))
        for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("active", active, MIN_ACTIVE_STEPS)):
            if value is not None and value < least:
                raise UsageError(f"gpudiag.profile: {name} must be at least {least}, not {value}", "Leave it out.")
        self._run = run
        #: The turns of this loop if several loops of this process train alternately, else None. With turns, steps are
        #: only timed.
        self._turns = own_turns()
        self._stop = run is not None if stop is None else stop
        self._device, self._framework = device, framework
        self._model, self._timeout_s = model, timeout_s
        description = RunDescription(command=tuple(sys.argv), batch_size=batch_size)
        settings = PhaseSettings(steps=steps, warmup=warmup, active=active, lines=True)
        if run is not None:
            self._framework = framework or run.job.framework
            description = _launched_description(run.job, batch_size)
            settings = _launched_settings(run, settings)
        description.workload = workload or description.workload
        description.strategy = strategy or description.strategy
        description.options |= options or {}
        self._measurement = RankMeasurement(self.run_dir, description, settings)
        #: Whether the phases have advanced to the current step, and the number of the current step.
        self._prepared, self._number = False, 0
        #: In a loop that calls `step`, the generator of its steps.
        self._driven: Generator[None] | None = None
        #: In a loop that calls `step`, the context in which fetches from DataLoaders are marked.
        self._marked = ExitStack()
        if model is not None:
            self.describe(model)

    def __enter__(self) -> Session:
        if self._turns is not None:
            return self
        runtime = self._runtime()
        self._measurement.open(runtime, runtime.position(()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turns is not None:
            return
        self.pause()
        self._marked.close()
        self._measurement.close(error)
        if self._run is None and self._measurement.position.rank == 0:  # else `gpudiag profile` prints the next command
            print_next_command(self.run_dir)

    @property
    def first(self) -> bool:
        """True if this process is rank 0, which writes the run's record."""
        return self._measurement.position.rank == 0

    def describe(self, model: Any, *, gradient_sizes: Sequence[int] | None = None) -> None:
        """Add the model to the record.

        Args:
            model: a `torch.nn.Module`, wrapped or not, or a Keras model.
            gradient_sizes: bytes of each message of gradients, in the order of communication. By default each
                parameter's gradient is one message, and the last parameter comes first, as in backward.
        """
        self._measurement.run.model = self._runtime().describe(model, gradient_sizes or ())

    def step(self) -> bool:
        """End a step and begin the next step, in a loop that does not iterate over `steps`.

            for batch in loader:
                train(batch)
                prof.step()

        The first call begins the first step. The time in DataLoaders of torch.utils.data and in ranges named `input`
        counts as waiting for input. In a loop that has neither, the time of waiting for input is unknown.

        Returns:
            False when everything is measured and the loop should end (`stop`), else True.
        """
        first = self._measurement.phases is None
        self._driven = self._driven or self.steps(repeat(None))
        ended = next(self._driven, self) is self  # `self` as the default value marks the end
        if first and self._measurement.phases is not None:
            self._measurement.phases.sees_input = False  # until a range named `input` is seen
            self._marked.enter_context(self._runtime().marked_loaders())
        if self._measurement.over:
            self._marked.close()
        return not ended

    def pause(self) -> None:
        """Exclude the current step and the time until the next call of `step`, for example for validation."""
        if self._driven is not None:
            driven, self._driven = self._driven, None
            driven.close()

    def steps(self, loader: Iterable[T]) -> Generator[T]:
        """Iterate over the loader. Each iteration is one step. Fetching the batch counts as input in this step.

        Call the method again for each epoch. The time between two epochs belongs to no step.
        """
        if self._turns is not None:
            runtime = self._runtime()
            yield from self._turns.steps(loader, runtime.clock(runtime.devices(self._device, self._model)))
            return
        iterator = iter(loader)
        if not self._measurement.over:
            yield from self._measured(iterator, _length(loader))
        if not (self._measurement.over and self._stop):
            yield from iterator

    def _measured(self, iterator: Iterator[T], length: int | None) -> Iterator[T]:
        """Yield batches until the phases are over or the loader, which has `length` batches (None: unknown), ends."""
        phases = self._measurement.phases or self._begin()
        clock = self._measurement.clock
        if self._prepared:
            clock.restart()  # the loop over another loader ended within this step, whose time would include the pause
        fetched = 0
        while True:
            if not self._prepared:
                # If gpudiag started this program to measure, a failed measurement ends the program.
                if not self._measurement.advance(raises=self._run is not None):
                    return
                self._prepared = True
            if fetched == length:
                return  # another `next`, which finds the end of the loader, would count as a step
            with Range(STEP, number=self._number):
                self._measurement.mark_lines()
                begin_ns = time.perf_counter_ns()
                with Range(INPUT):
                    try:
                        batch = next(iterator)
                    except StopIteration:
                        return
                fetched += 1
                fetched_ns = time.perf_counter_ns()
                take_input_ns()  # discard the range `INPUT` above; the rest of the step may contain further ranges
                with phases.around:
                    yield batch
                later_ns = take_input_ns()
                if later_ns is not None:  # these ranges count as if they preceded the rest of the step
                    phases.sees_input = True
                clock.host_step(begin_ns, fetched_ns + (later_ns or 0), time.perf_counter_ns())
            self._number += 1
            self._prepared = False

    def _begin(self) -> Phases:
        # The first step calls this method, when the program has chosen its device.
        return self._measurement.begin(
            self._runtime(),
            device=self._device,
            model=self._model,
            loaders=self._loaders,
            agreement=partial(Agreement, timeout_s=self._timeout_s),
        )

    def _runtime(self) -> Runtime:
        """Return the runtime. Find the framework at each call, because the program may import it after `__init__`."""
        return load_runtime(self._framework)


def _launched_description(job: Job, batch_size: int | None) -> RunDescription:
    """Return the description of a run that gpudiag started."""
    return RunDescription(
        command=job.command or tuple(sys.argv),
        workload=job.workload,
        strategy=job.strategy,
        batch_size=batch_size,
        options=job.environment_options,
        parallel=job.parallel,
    )


def _launched_settings(run: Launched, settings: PhaseSettings) -> PhaseSettings:
    """Return the settings of a run that gpudiag started. The job's options override the session's arguments."""
    return PhaseSettings(
        steps=settings.steps if run.job.steps is None else run.job.steps,
        warmup=settings.warmup if run.job.warmup is None else run.job.warmup,
        active=settings.active,
        limits=WarmupLimits() if run.warmup_s is None else WarmupLimits(seconds=run.warmup_s),
        target=run.target,
        recorded=run.recorded,
        lines=":" in run.job.workload,  # only `module:function` has lines of the user
    )


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # an iterator, or a stream of unknown length
        return None
