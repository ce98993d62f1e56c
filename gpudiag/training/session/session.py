"""`gpudiag.profile`: measures a training loop while it runs, and leaves a run directory."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from gpudiag.errors import UsageError
from gpudiag.model.job import OWN_STRATEGY
from gpudiag.model.run import ModelRecord, RankRecord, RunRecord, RunStatus, StepsFound
from gpudiag.training.session import record
from gpudiag.training.session.agreement import Agreement
from gpudiag.training.session.ending import tell_where_it_is
from gpudiag.training.session.launched import launched
from gpudiag.training.session.phases import Phases
from gpudiag.training.session.place import script_name, this_place
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.ranges import INPUT, STEP, Range, taken_input_ns
from gpudiag.training.session.runtime import Runtime, load_runtime
from gpudiag.training.session.warmup import WarmupLimits

T = TypeVar("T")

logger = logging.getLogger("gpudiag")

#: What `run.json` says from the first moment on, until something better is known.
_UNFINISHED = "the run did not finish"

#: Steps recorded unless told otherwise. The analysis leaves out the first and the last, so that four remain.
ACTIVE_STEPS = 6

#: How long rank 0 waits at the end for the other ranks' records, after success and after a failure.
_WAIT_S = 60.0
_WAIT_AFTER_FAILURE_S = 1.0


class Session:
    """Measure a training loop: how long its steps take without the profiler, and a trace of where the time goes.

        with gpudiag.profile("run-dir") as prof:
            for batch in prof.steps(loader):
                train(batch)

    A loop that something else drives calls `prof.step()` at the end of each step instead.

    Steps are left out until their times have settled, then some are timed without the profiler, then a few are
    recorded with it, first lightly and then with operators. All processes of a distributed job open the block, each
    with the same arguments; they enter the phases at the same step, and agree on it through the job's store, never by a
    collective of gpudiag's own. Afterwards `run_dir` has `run.json`, `traces/rank<r>.pt.trace.json.gz` and the light
    recordings in `traces/light/`, and `gpudiag analyze run_dir` says where the time went. What was measured is kept
    when the loop ends early, and when an exception leaves the block (which it does).

    Args:
        run_dir: the run directory; what an earlier run left there is replaced. May be left out in a function that
            `gpudiag profile module:function` runs, and is ignored there: that command has chosen one.
        steps: timed steps; by default about three seconds of them, at least 10 and at most 100.
        warmup: steps to leave out; by default found from the step times.
        active: recorded steps of each recording. The analysis leaves out the first and the last of them; at least 3.
        stop: end the loop after the recorded steps; by default only under `gpudiag profile`. Otherwise the remaining
            batches are passed through.
        model: the model, for its number of parameters, its gradient sizes and the work of a step in the record.
        batch_size: samples per process and step, for the record.
        workload: a name for the record; by default the script's.
        strategy: how gradients are exchanged, for the record.
        options: anything else for the record.
        device: the device trained on; by default the current GPU if this process uses one, else the CPU. Under
            TensorFlow the logical devices that this process drives, one or a sequence; by default those of the model's
            strategy.
        framework: `pytorch` or `tensorflow`; by default the one that the program has imported, PyTorch of both.
        timeout_s: how long to wait for a peer that does not reach the same step.

    Raises:
        UsageError: no `run_dir`, or a number out of its range.
    """

    _AGREEMENT: ClassVar[type[Agreement]] = Agreement

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
        self._loaders = load_runtime(framework).loader_watch()  # refuses a name that nothing has
        for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("active", active, 3)):
            if value is not None and value < least:
                raise UsageError(f"gpudiag.profile: {name} must be at least {least}, not {value}", "Leave it out.")
        self.run_dir = Path(run.run_dir if run is not None else run_dir or "")
        job = run.job if run is not None else None
        self._steps = job.steps if job is not None and job.steps is not None else steps
        self._warmup = job.warmup if job is not None and job.warmup is not None else warmup
        self._active = active
        self._stop = run is not None if stop is None else stop
        self._raises = run is not None
        self._batch_size = batch_size
        self._workload = workload or (job.workload if job is not None else script_name())
        self._strategy = strategy or (job.strategy if job is not None else OWN_STRATEGY)
        self._command = (job.command if job is not None else ()) or tuple(sys.argv)
        self._options = {**(job.environment_options if job is not None else {}), **(options or {})}
        self._device = device
        self._framework = framework or (job.framework if job is not None else None)
        self._runtime: Runtime | None = None
        self._devices: tuple[tuple[str, str], ...] = (("", ""),)
        longest_s = None if run is None else run.warmup_s
        self._limits = WarmupLimits() if longest_s is None else WarmupLimits(seconds=longest_s)
        self._enough = run.enough if run is not None else None
        self._recorded = run is None or run.recorded
        self._timeout_s = timeout_s
        self._created = self._run_id = ""
        self._steps_found: StepsFound | None = None
        self._model: ModelRecord | None = None
        self._software: dict[str, str] = {}
        self._error: str | None = None
        self._phases: Phases | None = None
        self._schedule: Iterator[None] | None = None
        self._awaiting, self._over, self._number = False, False, 0
        #: The steps of a loop that calls `step`, and what is put back when they are over.
        self._driven: Generator[None] | None = None
        self._marked = ExitStack()
        self._says_where = run is None
        self._place = this_place()
        self._progress = ProgressSender(self._place.rank)
        self._bare = model
        if model is not None:
            self.describe(model)

    def __enter__(self) -> Session:
        self._created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run_id = secrets.token_hex(8)
        self._place = load_runtime(self._framework).place(())
        self._progress = ProgressSender(self._place.rank)
        record.clear_rank(self.run_dir, self._place.rank)
        if self._place.rank == 0:
            record.clear_run(self.run_dir, self._place.ranks)
        self._save()
        self._progress.tell("starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status: RunStatus = "complete"
        if error is not None:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self._error = f"{type(error).__name__}: {error}"
        self.pause()
        self._marked.close()
        try:
            if self._phases is not None:
                self._phases.close()
                self._error = self._error or self._phases.problem
            else:
                self._error = self._error or "the block ended without a step: nothing was measured"
        finally:
            if self._error is not None and status == "complete":
                status = "failed"
                logger.warning("gpudiag: rank %d: %s", self._place.rank, self._error)
            if self._phases is not None:
                self._agreement.leave()
            self._save(status)
            if self._place.rank == 0:
                self._finish(status)
            if self._error is None:
                self._progress.tell("done")
            if self._says_where and self._place.rank == 0:
                tell_where_it_is(self.run_dir)

    def describe(self, model: Any, *, gradient_sizes: Sequence[int] | None = None) -> None:
        """Put the model into the record.

        Args:
            model: a `torch.nn.Module`, wrapped or not, or a Keras model.
            gradient_sizes: bytes of each piece in which gradients are exchanged, in order; by default each parameter's
                gradient, last parameter first, which is about the order in which backward makes them.
        """
        self._model = load_runtime(self._framework).describe(model, gradient_sizes or ())

    def step(self) -> bool:
        """End a step and begin the next, in a loop whose batches do not come through `steps`.

            for batch in loader:
                train(batch)
                prof.step()

        The first call begins the first step. Input is the time in loaders of torch.utils.data and in ranges named
        `input`; where there is neither, it is not told.

        Returns:
            False when all is measured and the loop is to end (`stop`).
        """
        first = self._phases is None
        self._driven = self._driven or self.steps(repeat(None))
        ended = next(self._driven, self) is self
        if first and self._phases is not None:
            self._phases.sees_input = False  # until some is seen
            self._marked.enter_context(load_runtime(self._framework).marked_loaders())
        if self._over:
            self._marked.close()
        return not ended

    def pause(self) -> None:
        """What follows in a loop that calls `step`, until its next call, is no step: validation, a checkpoint.

        The step that was under way is left out.
        """
        if self._driven is not None:
            driven, self._driven = self._driven, None
            driven.close()

    def steps(self, loader: Iterable[T]) -> Generator[T]:
        """Iterate over the loader; each round is one step, of which fetching the batch is the input.

        May be called again (for the next epoch): what passes between two loops belongs to no step.
        """
        iterator = iter(loader)
        if not self._over:
            yield from self._measured(iterator, _length(loader))
        if not (self._over and self._stop):
            yield from iterator

    def _measured(self, iterator: Iterator[T], length: int | None) -> Iterator[T]:
        """Batches until the phases are over or the loader ends."""
        phases = self._phases or self._begin()
        first, fetched = True, 0
        while True:
            if not self._awaiting:
                if not self._advance():
                    return
                self._awaiting = True
            elif first:
                self._clock.restart()  # the last loop ended, or was left, before this step was done
            first = False
            if fetched == length:
                return  # so that finding the end is no step of its own
            with Range(STEP, number=self._number):
                begin_ns = time.perf_counter_ns()
                with Range(INPUT):
                    try:
                        batch = next(iterator)
                    except StopIteration:
                        return
                fetched += 1
                fetched_ns = time.perf_counter_ns()
                taken_input_ns()
                with phases.around:
                    yield batch
                later_ns = taken_input_ns()
                if later_ns is not None:
                    phases.sees_input = True
                self._clock.host_step(begin_ns, fetched_ns + (later_ns or 0), time.perf_counter_ns())
            self._number += 1
            self._awaiting = False

    def _begin(self) -> Phases:
        """The first step is about to begin: by now the process group and the device are there."""
        runtime = self._runtime = self._runtime or load_runtime(self._framework)
        devices = runtime.devices(self._device, self._bare)
        self._place = runtime.place(devices)
        self._devices = tuple((runtime.label(device), runtime.device_name(device)) for device in devices)
        self._software = runtime.software()
        self._clock = runtime.clock(devices)
        store = runtime.store(self._place)
        self._agreement = self._AGREEMENT(self._place, store, timeout_s=self._timeout_s, run_id=self._run_id)
        trace = runtime.trace_name(self._place.first_rank)
        names = {"full": trace, "light": record.kernel_only_trace_name(trace)}
        self._phases = phases = Phases(
            clock=self._clock,
            agreement=self._agreement,
            progress=self._progress,
            changed=self._save,
            window=lambda recording: runtime.window(
                self.run_dir / names[recording], active=self._active, devices=devices, recording=recording
            ),
            on_gpu=runtime.on_gpu(devices[0]),
            steps=self._steps,
            warmup_steps=self._warmup,
            active=self._active,
            limits=self._limits,
            enough=self._enough,
            recorded=self._recorded,
            loaders=self._loaders,
            counter=runtime.flop_counter(devices, self._bare),
        )
        self._schedule = phases.run()
        self._save()
        return phases

    def _advance(self) -> bool:
        """Go on to the next step; False when the phases are over.

        A failure of the measuring itself ends the measuring and not the user's training.
        """
        assert self._schedule is not None  # noqa: S101  # set by _begin
        try:
            next(self._schedule)
        except StopIteration:
            self._over = True
        except Exception as error:
            self._over = True
            if self._raises:
                raise
            self._error = f"{type(error).__name__}: {error}"
            logger.warning("gpudiag stops measuring: %s", self._error)
        return not self._over

    def _save(self, status: RunStatus = "failed") -> None:
        """Write this rank's record, and on rank 0 the run's, so that a killed run leaves what it had."""
        phases, place, runtime = self._phases, self._place, self._runtime
        recorded = phases.recorded if phases else {}
        trace = runtime.trace_name(place.first_rank) if runtime else ""
        # Devices of one process are ranks that share its steps and its trace.
        for number, (label, name) in enumerate(self._devices):
            rank = RankRecord(
                rank=place.first_rank + number,
                local_rank=place.local_rank * place.devices + number,
                host=place.host,
                pid=place.pid,
                device=label,
                device_name=name,
                warmup=phases.warmup if phases else None,
                unprofiled=phases.unprofiled if phases else None,
                timed=phases.timed if phases else None,
                light=recorded.get("light"),
                profiled=recorded.get("full"),
                trace=trace if phases and "full" in phases.saved else None,
                light_trace=record.kernel_only_trace_name(trace) if phases and "light" in phases.saved else None,
                flops=phases.counter.found if phases and phases.counter else None,
                unmarked=phases.unmarked if phases else "",
                notes=phases.notes if phases else {},
                error=self._error if status != "complete" or self._error else None,
                run_id=self._agreement.run_id if phases else "",
            )
            record.write_rank(self.run_dir, rank)
        if self._place.rank == 0:
            self._write_run(status, self._error if status != "failed" or self._error else _UNFINISHED)

    def _finish(self, status: RunStatus) -> None:
        """On rank 0, at the end: wait for the other ranks' records and say how the run went."""
        if self._phases is not None:
            self._agreement.wait_for_all(timeout_s=_WAIT_S if status == "complete" else _WAIT_AFTER_FAILURE_S)
        error = self._error
        for other in record.read_ranks(self.run_dir, self._place.ranks, self._run_id):
            if other.error is not None and error is None:
                status, error = "failed", f"rank {other.rank}: {other.error}"
        self._write_run(status, error)

    def _write_run(self, status: RunStatus, error: str | None) -> None:
        run = RunRecord(
            created=self._created,
            command=self._command,
            workload=self._workload,
            framework=(self._runtime or load_runtime(self._framework)).framework,
            strategy=self._strategy,
            world_size=self._place.ranks,
            nodes=self._place.nodes,
            batch_size_per_device=self._batch_size,
            options=self._options,
            model=self._model,
            software=self._software,
            ranks=record.read_ranks(self.run_dir, self._place.ranks, self._run_id),
            steps_found=self._steps_found,
            status=status,
            error=error,
            run_id=self._run_id,
        )
        record.write_run(self.run_dir, run)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # an iterator, or a stream that cannot say
        return None
