"""The fault job, whatever trains: `gpudiag selftest` has each training process run it, as a user's function.

First the ablation of every fault: blocks of steps without it and with it, by turns in the order off on on off, so that
a drift of the machine hits both alike. Each fault is then recorded, in a run directory of its own: where the profiler
leaves its library loaded only when all have been timed, else at once, while the machine is as it was.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.selftest import (
    ABLATION_FILE,
    PLAN_FILE,
    PLAN_SCHEMA,
    Ablation,
    Block,
    FaultPlan,
    SelftestPlan,
)
from gpudiag.model.run import RankRecord, RunRecord, StepTimes
from gpudiag.model.run_directory import read_json, write_json
from gpudiag.training.jobs.faults.fault import Fault, TrainerT, make_fault
from gpudiag.training.session import record
from gpudiag.training.session.clock import summarize
from gpudiag.training.session.launched import launched, set_launched
from gpudiag.training.session.progress import SOCKET_VARIABLE, ProgressSender
from gpudiag.training.session.runtime import WARMUP_STEPS, Runtime, load_runtime

#: Steps after a switch that are not timed: the host runs ahead again, and late ranks show.
_RUN_IN_STEPS = 3


def run_faults(make_trainer: Callable[[SelftestPlan], TrainerT], kinds: Mapping[str, type[Fault[TrainerT]]]) -> None:
    """This process's share of one launch; the plan is in the launch's run directory.

    Args:
        make_trainer: makes the training loop of the plan.
        kinds: the faults that can be put into it.
    """
    started = launched()
    if started is None:
        raise UsageError("the fault job is started by gpudiag only", "Run `gpudiag selftest`.")
    run_dir = started.run_dir
    plan = read_json(run_dir / PLAN_FILE, SelftestPlan, PLAN_SCHEMA)
    set_launched(None)  # sessions in here have run directories of their own
    trainer = make_trainer(plan)
    job = _Job(plan, trainer, kinds, load_runtime(started.job.framework), run_dir)
    job.progress.tell("warmup")
    trainer.warm_up(plan.warm_up_s)
    job.save(run_dir)
    for background in plan.background:
        job.progress.tell("timed", 0, len(plan.faults))
        job.ablate(background)
        job.forget(background)
    all_first = trainer.time_all_first and plan.device == "cuda"
    for together in [plan.faults] if all_first else [(fault,) for fault in plan.faults]:
        for fault in together:
            job.progress.tell("timed", plan.faults.index(fault) + 1, len(plan.faults))
            job.ablate(fault)
        # A session times its steps too, so it comes before the profiler's library is loaded: launches take longer then.
        for fault in sorted(together, key=lambda fault: not fault.marked):
            job.progress.tell("profiled", plan.faults.index(fault) + 1, len(plan.faults))
            job.profile(fault)
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
        self._faulty: dict[str, StepTimes | None] = {}
        self._faults: dict[str, Fault[TrainerT]] = {}

    def ablate(self, plan: FaultPlan) -> None:
        """Time blocks with and without the fault; rank 0 writes all ranks' times down."""
        fault = self._faults[plan.name] = make_fault(self._kinds, plan, self.trainer)
        steps = max(self.plan.least_steps, round(self.plan.block_ms / self.trainer.clean_ms))
        turns = itertools.islice(itertools.cycle((False, True, True, False)), 2 * self.plan.pairs)
        blocks = []
        try:
            for on in turns:
                self.trainer.gather(None)
                fault.switch(on=on)
                times = self.trainer.timed(steps, run_in=_RUN_IN_STEPS)
                blocks.append(Block(on=on, step_ms=tuple(tuple(series) for series in self.trainer.gather(times))))
        finally:
            fault.rest()
        self._faulty[plan.name] = summarize(
            [ms for block in blocks if block.on for ms in block.step_ms[self.place.rank]]
        )
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
            )
            write_json(directory / ABLATION_FILE, ablation)

    def forget(self, plan: FaultPlan) -> None:
        """Give back what was only to be timed."""
        self._faults.pop(plan.name).close()

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
                self._plain_window(directory, plan)
        finally:
            fault.rest()
            fault.close()

    def _plain_window(self, directory: Path, plan: FaultPlan) -> None:
        """As in most users' loops: the framework's own step marks and nothing else."""
        trainer, active = self.trainer, self.plan.active
        path = directory / self._runtime.trace_name(self.place.rank)
        for _ in range(_RUN_IN_STEPS):
            trainer.step()
        window = self._runtime.window(path, active=active, devices=[trainer.device])
        window.start()
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
            window.step()
        self.save(directory, plan, summarize(trainer.clock.read()))

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

    def save(self, directory: Path, plan: FaultPlan | None = None, profiled: StepTimes | None = None) -> None:
        """Write this rank's record of a run directory and, on rank 0 once all ranks have, the run's."""
        place, runtime = self.place, self._runtime
        trace = runtime.trace_name(place.rank)
        mine = RankRecord(
            rank=place.rank,
            local_rank=place.local_rank,
            host=place.host,
            pid=place.pid,
            device=runtime.label(self.trainer.device),
            device_name=self._device_name,
            unprofiled=self._faulty.get(plan.name) if plan is not None else None,
            profiled=profiled,
            trace=trace if (directory / trace).is_file() else None,
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
