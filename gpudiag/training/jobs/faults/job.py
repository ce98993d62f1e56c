"""The fault job, whatever trains: `gpudiag selftest` has each training process run it.

First the ablation of every fault: blocks of steps without it and with it, by turns in the order off on on off, so that
a drift of the machine hits both alike. Each fault is then recorded, in a run directory of its own: where the profiler
leaves its library loaded only when all have been timed, else at once, while the machine is as it was.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic

import gpudiag
from gpudiag.model.benchmarks.selftest import (
    ABLATION_FILE,
    FAILURE_FILE,
    Ablation,
    Block,
    Failure,
    FaultPlan,
    SelftestPlan,
)
from gpudiag.model.run import RankRecord, RunRecord, StepTimes
from gpudiag.model.run_directory import write_json
from gpudiag.training.jobs.faults.fault import Fault, TrainerT, make_fault
from gpudiag.training.session import record
from gpudiag.training.session.clock import summarize
from gpudiag.training.session.launched import Launched, set_launched
from gpudiag.training.session.progress import SOCKET_VARIABLE, ProgressSender
from gpudiag.training.session.runtime import RECORDINGS, WARMUP_STEPS, Recording, Runtime, Window, load_runtime
from gpudiag.training.session.timing.unprofiled_series import UnprofiledSeries

#: Steps after a switch that are not timed: the host runs ahead again, and late ranks show.
_RUN_IN_STEPS = 3
#: Fewer of a block's steps are timed with all work launched ahead, as each is waited for: a third, and these at least.
_LEAST_AHEAD = 4
#: How long the device is held, in steps, so that the host has launched the next one meanwhile.
_HELD_STEPS = 2.0


def run_faults(
    plan: SelftestPlan,
    started: Launched,
    make_trainer: Callable[[SelftestPlan], TrainerT],
    kinds: Mapping[str, type[Fault[TrainerT]]],
) -> None:
    """Run this process's share of one launch.

    Args:
        plan: the faults, and how to measure them.
        started: the launch.
        make_trainer: makes the training loop of the plan.
        kinds: the faults that can be put into it.
    """
    run_dir = started.run_dir
    set_launched(None)  # sessions in here have run directories of their own
    trainer = make_trainer(plan)
    job = _Job(plan, trainer, kinds, load_runtime(started.job.framework), run_dir)
    job.progress.tell("warmup")
    trainer.warm_up(plan.warm_up_s)
    job.save(run_dir)
    for background in plan.background:
        job.progress.tell("timed", 0, len(plan.faults))
        job.attempt(background, job.ablate)
        job.forget(background)
    all_first = trainer.time_all_first and plan.device == "cuda"
    for together in [plan.faults] if all_first else [(fault,) for fault in plan.faults]:
        for fault in together:
            job.progress.tell("timed", plan.faults.index(fault) + 1, len(plan.faults))
            job.attempt(fault, job.ablate)
        # A session times its steps too, so it comes before the profiler's library is loaded: launches take longer then.
        for fault in sorted(together, key=lambda fault: not fault.marked):
            job.progress.tell("profiled", plan.faults.index(fault) + 1, len(plan.faults))
            job.attempt(fault, job.profile)
            job.progress.tell("saving")
    job.save(run_dir)
    job.progress.tell("done")
    trainer.close()


class _Job(Generic[TrainerT]):
    """The measurements of one process."""

    def __init__(
        self,
        plan: SelftestPlan,
        trainer: TrainerT,
        kinds: Mapping[str, type[Fault[TrainerT]]],
        runtime: Runtime,
        run_dir: Path,
    ) -> None:
        self.plan = plan
        self.trainer = trainer
        self.run_dir = run_dir
        self.place = trainer.place
        self.progress = ProgressSender(self.place.rank)
        self._kinds = kinds
        self._runtime = runtime
        self._device_name = runtime.device_name(trainer.device)
        trace = runtime.trace_name(self.place.rank)
        self._trace_names: dict[Recording, str] = {"full": trace, "light": record.kernel_only_trace_name(trace)}
        #: Of each fault the steps that were timed with it.
        self._faulty: dict[str, UnprofiledSeries] = {}
        self._faults: dict[str, Fault[TrainerT]] = {}
        self._failed: set[str] = set()

    def attempt(self, plan: FaultPlan, do: Callable[[FaultPlan], None]) -> None:
        """Do it, unless this fault has failed on any rank: then it is left out, and the others go on."""
        if plan.name in self._failed:
            return
        why = None
        try:
            do(plan)
        except Exception as error:  # noqa: BLE001  # one fault of many, which may need what this machine lacks
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
        reasons = [reason for reason in self.trainer.gather(why) if reason is not None]
        if reasons:
            self._failed.add(plan.name)
            self.forget(plan)
            if self.place.rank == 0:
                directory = self.run_dir / plan.name
                directory.mkdir(parents=True, exist_ok=True)
                write_json(directory / FAILURE_FILE, Failure(fault=plan.name, why=f"failed: {reasons[0]}"))

    def ablate(self, plan: FaultPlan) -> None:
        """Time blocks with and without the fault; rank 0 writes all ranks' times down."""
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
            if plan.job and self.trainer.holds:
                held = self._held(fault, blocks, steps)
        finally:
            fault.rest()
        if self.place.rank == 0:
            directory = self.run_dir / plan.name
            directory.mkdir(parents=True, exist_ok=True)
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
            write_json(directory / ABLATION_FILE, ablation)

    def _block(self, on: bool, times: list[float]) -> Block:
        return Block(on=on, step_ms=tuple(tuple(series) for series in self.trainer.gather(times)))

    def _held(self, fault: Fault[TrainerT], blocks: list[Block], steps: int) -> list[Block]:
        """The whole job as it is, and with its launches ahead of the device, by turns."""
        hold_ms = _HELD_STEPS * statistics.fmean(ms for block in blocks if block.on for ms in block.step_ms[0])
        few = max(_LEAST_AHEAD, steps // 3)
        fault.switch(on=True)
        held = []
        for on in (False, True, True, False):
            self.trainer.gather(None)
            run_in = self.trainer.timed(few, run_in=_RUN_IN_STEPS)
            held.append(self._block(on, run_in.step_ms if on else self.trainer.unprofiled_ahead(few, hold_ms=hold_ms)))
        return held

    def forget(self, plan: FaultPlan) -> None:
        """Give back what was only to be timed."""
        fault = self._faults.pop(plan.name, None)
        if fault is not None:
            fault.close()

    def profile(self, plan: FaultPlan) -> None:
        """Record a few steps with the fault, whose ablation is done."""
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
        """As in most users' loops, the framework's own step marks and nothing else; recorded as a session records."""
        recorded: dict[Recording, StepTimes | None] = {}
        for recording in RECORDINGS:
            try:
                recorded[recording] = self._window(directory, recording)
            except Exception:
                if recording == "full":
                    raise
                traceback.print_exc()  # what is lost is that recording alone
        self.save(directory, plan, recorded)

    def _window(self, directory: Path, recording: Recording) -> StepTimes | None:
        """Where the window fails, its steps pass all the same: the other ranks record theirs."""
        trainer, active = self.trainer, self.plan.active
        for _ in range(_RUN_IN_STEPS):
            trainer.step()
        window: Window | None = None
        failure: Exception | None = None
        try:
            path = directory / self._trace_names[recording]
            window = self._runtime.window(path, active=active, devices=[trainer.device], recording=recording)
            window.start()
        except Exception as error:  # noqa: BLE001  # whatever a profiler's private parts may raise
            window, failure = None, error
        trainer.clock.read()
        for step in range(WARMUP_STEPS + active):
            if step == WARMUP_STEPS:
                trainer.clock.restart()
            with trainer.marked(step):
                trainer.step()
            if step >= WARMUP_STEPS:
                trainer.clock.mark()
            if step == WARMUP_STEPS + active - 1:
                trainer.clock.finish()
            if window is not None:
                window.step()
        times = summarize(trainer.clock.read())
        if failure is not None:
            raise failure
        if window is not None:
            window.stop()
        return times

    def _marked_session(self, directory: Path, plan: FaultPlan) -> None:
        """As in a loop over `prof.steps(loader)`: the session times the steps itself, and the loader is marked."""
        # The session would tell its own progress, which is none of the whole's.
        heard = {name: os.environ.pop(name) for name in (SOCKET_VARIABLE,) if name in os.environ}
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
        os.environ.update(heard)
        self.trainer.gather(None)

    def _title(self, plan: FaultPlan | None) -> str:
        return self.plan.workload if plan is None else f"{self.plan.workload}, {plan.name}"

    def save(
        self,
        directory: Path,
        plan: FaultPlan | None = None,
        recorded: Mapping[Recording, StepTimes | None] | None = None,
    ) -> None:
        """Write this rank's record of a run directory and, on rank 0 once all ranks have, the run's."""
        place, runtime, recorded = self.place, self._runtime, recorded or {}
        traces = {name: path for name, path in self._trace_names.items() if (directory / path).is_file()}
        timed = self._faulty.get(plan.name, UnprofiledSeries()) if plan is not None else UnprofiledSeries()
        mine = RankRecord(
            rank=place.rank,
            local_rank=place.local_rank,
            host=place.host,
            pid=place.pid,
            device=runtime.label(self.trainer.device),
            device_name=self._device_name,
            unprofiled=summarize(timed.step_ms),
            timed=timed.record(),
            light=recorded.get("light"),
            profiled=recorded.get("full"),
            trace=traces.get("full"),
            light_trace=traces.get("light"),
        )
        record.write_rank(directory, mine)
        self.trainer.gather(None)
        if place.rank == 0:
            run = RunRecord(
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                command=("gpudiag", "selftest"),
                workload=self._title(plan),
                framework=runtime.framework,
                strategy=self.trainer.strategy,
                world_size=place.ranks,
                nodes=place.nodes,
                batch_size_per_device=self.plan.batch_size,
                options={"precision": self.plan.precision, "memory_format": self.plan.memory_format},
                model=runtime.describe(self.trainer.model, ()),
                software=runtime.software(),
                ranks=record.read_ranks(directory, place.ranks),
                status="complete",
            )
            record.write_run(directory, run)
        self.trainer.gather(None)
