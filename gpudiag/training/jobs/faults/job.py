"""Measure and record the faults of `gpudiag selftest` in one process, for any framework.

The ablation of a fault times blocks of steps without the fault (off) and with it (on), in the order off, on, on, off,
so that drift of the machine affects off and on equally. Afterwards the job with the fault is recorded in its own run
directory. If the profiler's library stays loaded after a recording, all ablations come before the first recording.
Otherwise each fault is recorded directly after its ablation.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Generic

import gpudiag
from gpudiag.model.benchmarks.selftest import (
    ABLATION_FILE,
    FAILURE_FILE,
    Ablation,
    FaultFailure,
    FaultPlan,
    SelftestPlan,
    StepBlock,
)
from gpudiag.model.run import RankRecord, RunRecord, StepFlops, StepTimes
from gpudiag.model.run_directory import write_json
from gpudiag.training.frameworks.runtimes import load_runtime
from gpudiag.training.jobs.faults.fault import Fault, TrainerT, make_fault
from gpudiag.training.loop.launched import Launched, set_launched
from gpudiag.training.session import record
from gpudiag.training.session.clock import UnprofiledSeries, summarize
from gpudiag.training.session.progress import SOCKET_VARIABLE, ProgressSender
from gpudiag.training.session.runtime import Runtime, Window
from gpudiag.training.session.step_counts import PROFILER_WARMUP_STEPS, TRACE_KINDS, TraceKind

#: Number of untimed steps after switching a fault, in which the host runs ahead again, and stragglers take effect.
_RUN_IN_STEPS = 3
#: Minimum number of steps in a block that launches all work of a step before the device begins. Such a block has
#: a third of the usual number of steps, because the host waits for the end of each step.
_LEAST_AHEAD = 4
#: Time for which the device is blocked while the host launches the next step, as a multiple of the step time.
_HELD_STEPS = 2.0


def run_faults(
    plan: SelftestPlan,
    started: Launched,
    make_trainer: Callable[[SelftestPlan], TrainerT],
    kinds: Mapping[str, type[Fault[TrainerT]]],
) -> None:
    """Run the faults of one launch in this process.

    Args:
        plan: the faults, and how to measure them.
        started: run directory and job of the launch.
        make_trainer: makes the training loop for the plan.
        kinds: classes of the faults that can be injected, by kind.
    """
    run_dir = started.run_dir
    set_launched(None)  # sessions of faults have their own run directories
    trainer = make_trainer(plan)
    trials = FaultTrials(plan, trainer, kinds, load_runtime(started.job.framework), run_dir)
    trials.progress.tell("warmup")
    trainer.warm_up(plan.warm_up_s)
    trials.save(run_dir)
    for background in plan.background:  # costs of the clean job itself, which are timed but not recorded
        trials.progress.tell("timed", 0, len(plan.faults))
        trials.attempt(background, trials.ablate)
        trials.discard(background)
    all_first = trainer.time_all_first and plan.device == "cuda"
    for faults in [plan.faults] if all_first else [(fault,) for fault in plan.faults]:
        for fault in faults:
            trials.progress.tell("timed", plan.faults.index(fault) + 1, len(plan.faults))
            trials.attempt(fault, trials.ablate)
        # Record the faults that use a session first: a session times steps, which a loaded profiler would slow down.
        for fault in sorted(faults, key=lambda fault: not fault.marked):
            trials.progress.tell("profiled", plan.faults.index(fault) + 1, len(plan.faults))
            trials.attempt(fault, trials.profile)
            trials.progress.tell("saving")
    trials.save(run_dir)
    trials.progress.tell("done")
    trainer.close()


class FaultTrials(Generic[TrainerT]):
    """Measure, record and save the faults in one process. `kinds` are the classes of faults by kind.

    `run_dir` contains a run directory for each fault, and the record of the clean job.
    Calls of `trainer.gather(None)` exchange nothing: in them the ranks only wait for each other.
    """

    def __init__(
        self,
        plan: SelftestPlan,
        trainer: TrainerT,
        kinds: Mapping[str, type[Fault[TrainerT]]],
        runtime: Runtime,
        run_dir: Path,
    ) -> None:
        self.plan, self.trainer, self.run_dir = plan, trainer, run_dir
        self.place = trainer.place
        self.progress = ProgressSender(self.place.rank)
        self._kinds, self._runtime = kinds, runtime
        self._device_name = runtime.device_name(trainer.device)
        trace = runtime.trace_name(self.place.rank)
        self._trace_names: dict[TraceKind, str] = {"full": trace, "light": record.kernel_only_trace_name(trace)}
        #: Times of unprofiled steps with the fault, by the fault's name.
        self._faulty: dict[str, UnprofiledSeries] = {}
        self._faults: dict[str, Fault[TrainerT]] = {}  # faults that are not closed yet, by name
        self._failed: set[str] = set()  # names of faults that failed on any rank

    def attempt(self, plan: FaultPlan, trial: Callable[[FaultPlan], None]) -> None:
        """Call `trial` (`ablate` or `profile`) for a fault. After a failure on any rank, skip its later trials."""
        if plan.name in self._failed:
            return
        problem = None
        try:
            trial(plan)
        except Exception as error:  # noqa: BLE001  # a fault may need a feature that this machine lacks
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        reasons = [reason for reason in self.trainer.gather(problem) if reason is not None]
        if reasons:
            self._failed.add(plan.name)
            self.discard(plan)
            if self.place.rank == 0:
                failure = FaultFailure(fault=plan.name, why=f"failed: {reasons[0]}")
                write_json(self._directory(plan) / FAILURE_FILE, failure)

    def ablate(self, plan: FaultPlan) -> None:
        """Time blocks with and without the fault. Rank 0 writes the step times of all ranks as an `Ablation`."""
        fault = self._faults[plan.name] = make_fault(self._kinds, plan, self.trainer)
        steps = max(self.plan.least_steps, round(self.plan.block_ms / self.trainer.clean_ms))
        turns = itertools.islice(itertools.cycle((False, True, True, False)), 2 * self.plan.pairs)
        blocks, held = [], []
        faulty = self._faulty[plan.name] = UnprofiledSeries()
        try:
            for on in turns:
                self.trainer.gather(None)
                fault.switch(on=on)
                series = self.trainer.timed(steps, run_in=_RUN_IN_STEPS)
                blocks.append(self._block(on, series.step_ms))
                if on:
                    faulty.extend(series)
            if plan.job and self.trainer.holds:  # only for whole jobs, whose cost of launches is measured
                held = self._held(fault, blocks, steps)
        finally:
            fault.rest()
        if self.place.rank == 0:
            ablation = Ablation(
                fault=plan,
                workload=self.plan.workload,
                device=self.plan.device,
                device_name=self._device_name,
                world_size=self.place.world_size,
                amount_ms=plan.amount * self.trainer.clean_ms,
                blocks=tuple(blocks),
                held=tuple(held),
            )
            write_json(self._directory(plan) / ABLATION_FILE, ablation)

    def _directory(self, plan: FaultPlan) -> Path:
        directory = self.run_dir / plan.name
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _block(self, on: bool, times: list[float]) -> StepBlock:
        return StepBlock(on=on, step_ms=tuple(tuple(series) for series in self.trainer.gather(times)))

    def _held(self, fault: Fault[TrainerT], blocks: list[StepBlock], steps: int) -> list[StepBlock]:
        """Time blocks with the fault: unchanged (on), and with each step launched before the device begins it (off).

        `blocks` are the blocks of the ablation, which show the step time. A usual block has `steps` steps.
        Unchanged steps whose times are dropped precede the steps of an off block.
        """
        # `step_ms[0]` are the times of rank 0, so that all ranks hold their devices equally long.
        hold_ms = _HELD_STEPS * statistics.fmean(ms for block in blocks if block.on for ms in block.step_ms[0])
        count = max(_LEAST_AHEAD, steps // 3)
        fault.switch(on=True)
        held = []
        for on in (False, True, True, False):
            self.trainer.gather(None)
            series = self.trainer.timed(count, run_in=_RUN_IN_STEPS)
            held.append(
                self._block(on, series.step_ms if on else self.trainer.unprofiled_ahead(count, hold_ms=hold_ms))
            )
        return held

    def discard(self, plan: FaultPlan) -> None:
        """Close a fault that will not be recorded."""
        fault = self._faults.pop(plan.name, None)
        if fault is not None:
            fault.close()

    def profile(self, plan: FaultPlan) -> None:
        """Record a few steps with the fault, after its ablation."""
        directory = self.run_dir / plan.name
        fault = self._faults.pop(plan.name)
        try:
            self.trainer.gather(None)
            fault.switch(on=True)
            if plan.marked:
                self._marked_session(directory, plan)
            else:
                self._plain_windows(directory, plan)
        finally:
            fault.rest()
            fault.close()

    def _plain_windows(self, directory: Path, plan: FaultPlan) -> None:
        """Record a full and a kernel-only trace without a session. The only marks are the framework's step marks."""
        # Operations are counted only in divided jobs, because only there their number differs between ranks.
        flops = self._counted_step() if self.trainer.parallel is not None else None
        recorded: dict[TraceKind, StepTimes | None] = {}
        for recording in TRACE_KINDS:
            try:
                recorded[recording] = self._window(directory, recording)
            except Exception:
                if recording == "full":
                    raise
                traceback.print_exc()  # the full trace is enough
        self.save(directory, plan, recorded, flops)

    def _counted_step(self) -> StepFlops | None:
        """Train one step and return its number of operations; None if the framework cannot count operations."""
        counter = self._runtime.flop_counter([self.trainer.device], self.trainer.model)
        with counter or nullcontext():
            self.trainer.step()
        return None if counter is None else counter.result

    def _window(self, directory: Path, recording: TraceKind) -> StepTimes | None:
        """Record one trace of this kind, and return the times of the recorded steps.

        If the profiler fails, run the steps nevertheless, because other ranks communicate with this rank.
        """
        trainer, active = self.trainer, self.plan.active
        for _ in range(_RUN_IN_STEPS):
            trainer.step()
        window: Window | None = None
        failure: Exception | None = None
        try:
            path = directory / self._trace_names[recording]
            window = self._runtime.window(path, active=active, devices=[trainer.device], kind=recording)
            window.start()
        except Exception as error:  # noqa: BLE001  # a profiler may raise any exception
            window, failure = None, error
        trainer.clock.read()  # discard the marks of earlier steps
        for step in range(PROFILER_WARMUP_STEPS + active):
            if step == PROFILER_WARMUP_STEPS:
                trainer.clock.restart()
            with trainer.marked(step):
                trainer.step()
            if step >= PROFILER_WARMUP_STEPS:
                trainer.clock.mark()
            if step == PROFILER_WARMUP_STEPS + active - 1:
                trainer.clock.finish()  # synchronize before `window.step` saves the trace
            if window is not None:
                window.step()
        times = summarize(trainer.clock.read())
        if failure is not None:
            raise failure
        if window is not None:
            window.stop()
        return times

    def _marked_session(self, directory: Path, plan: FaultPlan) -> None:
        """Record with a session, in a loop over `prof.steps(loader)`. The session times the steps and marks fetches."""
        # Without the variable the session sends no progress messages, which would mix with the selftest's messages.
        socket = {name: os.environ.pop(name) for name in (SOCKET_VARIABLE,) if name in os.environ}
        session = gpudiag.profile(
            directory,
            steps=self.plan.least_steps,
            warmup=_RUN_IN_STEPS,
            active=self.plan.active,
            stop=True,
            model=self.trainer.model,
            batch_size=self.plan.batch_size,
            workload=self._title(plan),
            strategy=self.trainer.strategy,
            device=self.trainer.device,
            framework=self._runtime.framework,
        )
        with session as prof:
            for batch in prof.steps(self.trainer.loader):
                self.trainer.train(batch)
        os.environ.update(socket)
        self.trainer.gather(None)

    def _title(self, plan: FaultPlan | None) -> str:
        return self.plan.workload if plan is None else f"{self.plan.workload}, {plan.name}"

    def save(
        self,
        directory: Path,
        plan: FaultPlan | None = None,
        recorded: Mapping[TraceKind, StepTimes | None] | None = None,
        flops: StepFlops | None = None,
    ) -> None:
        """Write this rank's record, and on rank 0 the run's record.

        Args:
            directory: the run directory of the fault or of the clean job.
            plan: the recorded fault; None for the clean job.
            recorded: step times of the recorded steps, by kind of trace.
            flops: operations per step of this rank, if they were counted.
        """
        position, runtime, recorded = self.place, self._runtime, recorded or {}
        traces = {name: path for name, path in self._trace_names.items() if (directory / path).is_file()}
        timed = self._faulty.get(plan.name, UnprofiledSeries()) if plan is not None else UnprofiledSeries()
        rank_record = RankRecord(
            rank=position.rank,
            local_rank=position.local_rank,
            host=position.host,
            pid=position.pid,
            device=runtime.label(self.trainer.device),
            device_name=self._device_name,
            unprofiled=summarize(timed.step_ms),
            timed=timed.record(),
            light=recorded.get("light"),
            profiled=recorded.get("full"),
            trace=traces.get("full"),
            light_trace=traces.get("light"),
            flops=flops,
        )
        record.write_rank(directory, rank_record)
        self.trainer.gather(None)
        if position.rank == 0:
            run = RunRecord(
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                command=("gpudiag", "selftest"),
                workload=self._title(plan),
                framework=runtime.framework,
                strategy=self.trainer.strategy,
                world_size=position.ranks,
                nodes=position.nodes,
                batch_size_per_device=self.plan.batch_size,
                options={"precision": self.plan.precision, "memory_format": self.plan.memory_format},
                model=runtime.describe(self.trainer.model, ()),
                software=runtime.software(),
                ranks=record.read_ranks(directory, position.ranks),
                parallel=self.trainer.parallel,
                status="complete",
            )
            record.write_run(directory, run)
        self.trainer.gather(None)
