"""Switch each divided job and its fault on and off on one rank, and report how long its layers wait in a step.

    python switch_divided_jobs.py RANK WORLD MEETING null

For each kind of job, the answer has three sums of waits in ms per step: with the fault off, with the fault on, and
after `rest()`, which makes the job train as by default. The answer's entry `KIND layout` has the job's layout. The
program adds up the requested durations instead of waiting.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec

from gpudiag.model.benchmarks.selftest import FaultPlan, SelftestPlan
from gpudiag.training.frameworks.pytorch.meeting import meet_through_files
from gpudiag.training.jobs.faults.fault import make_fault
from gpudiag.training.jobs.faults.parallel_layouts import PARALLEL_WORKLOAD, slow_ranks
from gpudiag.training.jobs.faults.pytorch.parallel_faults import PARALLEL_KINDS
from gpudiag.training.jobs.faults.pytorch.parallel_trainer import ParallelTrainer
from gpudiag.training.session.agreement import STORE_VARIABLE
from tests.training.strategies.processes import tell


def main(rank: str, world: str, meeting: str, _: str) -> None:
    """Run one rank with `time.sleep` replaced, and print the waits."""
    os.environ |= {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    os.environ[STORE_VARIABLE] = meeting
    meet_through_files()
    plan = SelftestPlan(
        workload=PARALLEL_WORKLOAD,
        device="cpu",
        batch_size=1,
        precision="fp32",
        memory_format="nchw",
        faults=(),
        pairs=1,
        block_ms=1.0,
        least_steps=1,
        active=3,
        warm_up_s=0.0,
    )
    waits: list[float] = []
    time.sleep = lambda seconds: waits.append(float(seconds))
    trainer = ParallelTrainer(plan)

    def waited_ms() -> float:
        waits.clear()
        trainer.train(None)
        return 1e3 * sum(waits)

    trainer.clean_ms = 100.0
    answer: dict[str, Any] = {}
    for kind in PARALLEL_KINDS:
        fault = make_fault(
            PARALLEL_KINDS, FaultPlan(name=kind, kind=kind, amount=1.0, ranks=slow_ranks(kind, int(world))), trainer
        )
        answer[kind] = []
        for on in (False, True):
            fault.switch(on=on)
            answer[kind].append(waited_ms())
        answer[f"{kind} layout"] = msgspec.to_builtins(trainer.parallel)
        fault.rest()
        answer[kind].append(waited_ms())
        fault.close()
        del fault
    trainer.close()
    tell(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
