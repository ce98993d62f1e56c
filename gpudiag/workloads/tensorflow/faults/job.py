"""The fault job: `gpudiag selftest --framework tensorflow` starts `run` in each training process.

As for PyTorch: first the ablation of a fault, blocks of steps without it and with it in the order off on on off, then a
recording of it in a run directory of its own.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

import tensorflow as tf

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.run import RankRecord, RunRecord
from gpudiag.model.selftest import ABLATION_FILE, PLAN_FILE, PLAN_SCHEMA, Ablation, Block, SelftestPlan
from gpudiag.run_files import read_json, write_json
from gpudiag.worker import record
from gpudiag.worker.launched import launched, set_launched
from gpudiag.worker.progress import SOCKET_VARIABLE, ProgressSender
from gpudiag.worker.tensorflow.profiler import WARMUP_STEPS, TensorflowWindow
from gpudiag.worker.tensorflow.runtime import RUNTIME
from gpudiag.worker.timing import summarize
from gpudiag.workloads.tensorflow.faults.kinds import make_fault
from gpudiag.workloads.tensorflow.faults.trainer import STRATEGY, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.run import StepTimes
    from gpudiag.model.selftest import FaultPlan

#: Steps after a switch that are not timed: late ranks show, and the host runs ahead again.
_RUN_IN_STEPS = 3


def run() -> None:
    """This process's share of one launch; the plan is in the launch's run directory."""
    started = launched()
    if started is None:
        raise UsageError("the fault job is started by gpudiag only", "Run `gpudiag selftest`.")
    run_dir = started.run_dir
    plan = read_json(run_dir / PLAN_FILE, SelftestPlan, PLAN_SCHEMA)
    set_launched(None)  # sessions in here have run directories of their own
    trainer = Trainer(plan)
    job = _Job(plan, trainer, run_dir)
    job.progress.tell("warmup")
    trainer.warm_up(plan.warm_up_s)
    job.save(run_dir)
    for background in plan.background:
        job.progress.tell("timed", 0, len(plan.faults))
        switch, _ = job.ablate(background)
        switch(True)  # as the clean job is
    for number, fault in enumerate(plan.faults, 1):
        job.progress.tell("timed", number, len(plan.faults))
        job.measure(fault)
    job.save(run_dir)
    job.progress.tell("done")


class _Job:
    """The measurements of one process."""

    def __init__(self, plan: SelftestPlan, trainer: Trainer, run_dir: Path) -> None:
        self.plan = plan
        self.trainer = trainer
        self.place = trainer.place
        self.run_dir = run_dir
        self.progress = ProgressSender(self.place.rank)
        self._name = RUNTIME.device_name(trainer.device)

    def ablate(self, plan: FaultPlan) -> tuple[Callable[[bool], None], StepTimes | None]:
        """Time a fault by ablation: its switch, and this process's steps with it."""
        switch = make_fault(plan, self.trainer)
        steps = max(self.plan.least_steps, round(self.plan.block_ms / self.trainer.clean_ms))
        blocks = []
        for on in itertools.islice(itertools.cycle((False, True, True, False)), 2 * self.plan.pairs):
            self.trainer.together.gather(None)
            switch(on)
            times = self.trainer.timed(steps, run_in=_RUN_IN_STEPS)
            blocks.append(Block(on=on, step_ms=tuple(tuple(one) for one in self.trainer.together.gather(times))))
        directory = self.run_dir / plan.name
        if self.place.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            ablation = Ablation(
                fault=plan,
                workload=self.plan.workload,
                device=self.plan.device,
                device_name=self._name,
                world_size=self.place.world_size,
                amount_ms=plan.amount * self.trainer.clean_ms,
                blocks=tuple(blocks),
            )
            write_json(directory / ABLATION_FILE, ablation)
        return switch, summarize([ms for block in blocks if block.on for ms in block.step_ms[self.place.rank]])

    def measure(self, plan: FaultPlan) -> None:
        """Time a fault by ablation, and record a few steps with it."""
        switch, faulty = self.ablate(plan)
        directory = self.run_dir / plan.name
        self.progress.tell("profiled")
        self.trainer.together.gather(None)
        switch(True)
        if plan.marked:
            self._marked_session(directory, plan)
        else:
            self._plain_window(directory, plan, faulty)
        switch(False)

    def _plain_window(self, directory: Path, plan: FaultPlan, faulty: StepTimes | None) -> None:
        """As in most users' loops: TensorFlow's own step marks and nothing else."""
        trainer, active = self.trainer, self.plan.active
        path = directory / record.tensorflow_trace_name(self.place.rank)
        window = TensorflowWindow(path, active=active, on_gpu=RUNTIME.on_gpu(trainer.device))
        for _ in range(_RUN_IN_STEPS):
            trainer.step()
        window.start()
        trainer.clock.read()
        for step in range(WARMUP_STEPS + active):
            if step == WARMUP_STEPS:
                trainer.clock.restart()
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                trainer.step()
            if step >= WARMUP_STEPS:
                trainer.clock.mark()
            if step == WARMUP_STEPS + active - 1:
                trainer.clock.finish()
            window.step()
        profiled = summarize(trainer.clock.read()[-active:])
        self.save(directory, plan, faulty=faulty, profiled=profiled)

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
            strategy=STRATEGY,
            device=self.trainer.device,
            framework="tensorflow",
        )
        with session as prof:
            for batch in prof.steps(self.trainer.loader):
                self.trainer.train(batch)
        os.environ.update(heard)
        self.trainer.together.gather(None)

    def _title(self, plan: FaultPlan | None) -> str:
        return self.plan.workload if plan is None else f"{self.plan.workload}, {plan.name}"

    def save(
        self,
        directory: Path,
        plan: FaultPlan | None = None,
        *,
        faulty: StepTimes | None = None,
        profiled: StepTimes | None = None,
    ) -> None:
        """Write this process's record of a run directory and, on rank 0 once all have, the run's."""
        place = self.place
        trace = record.tensorflow_trace_name(place.rank)
        mine = RankRecord(
            rank=place.rank,
            local_rank=place.local_rank,
            host=place.host,
            pid=place.pid,
            device=self.trainer.device,
            device_name=self._name,
            unprofiled=faulty,
            profiled=profiled,
            trace=trace if (directory / trace).is_file() else None,
        )
        record.write_rank(directory, mine)
        self.trainer.together.gather(None)
        if place.rank == 0:
            run = RunRecord(
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                command=("gpudiag", "selftest"),
                workload=self._title(plan),
                framework="tensorflow",
                strategy=STRATEGY,
                world_size=place.ranks,
                nodes=place.nodes,
                batch_size_per_device=self.plan.batch_size,
                options={"precision": self.plan.precision, "memory_format": self.plan.memory_format},
                model=RUNTIME.describe(self.trainer.model, ()),
                software=RUNTIME.software(),
                ranks=record.read_ranks(directory, place.ranks),
                status="complete",
            )
            record.write_run(directory, run)
        self.trainer.together.gather(None)
