"""The job behind `gpudiag bandwidth --like`: all-reduces of given sizes over given transports, and nothing else."""

from __future__ import annotations

from gpudiag.errors import UsageError
from gpudiag.model.like import LIKE_FILE, LIKE_PLAN_FILE, LIKE_PLAN_SCHEMA, Like, LikePlan
from gpudiag.run_files import read_json, write_json
from gpudiag.worker.launched import launched
from gpudiag.worker.progress import ProgressSender
from gpudiag.workloads.contest import transports
from gpudiag.workloads.contest.job import save_rank
from gpudiag.workloads.contest.world import World


def run() -> None:
    """This process's share; the plan is in the launch's run directory."""
    started = launched()
    if started is None:
        raise UsageError("this job is started by gpudiag only", "Run `gpudiag bandwidth --like WORKLOAD`.")
    plan = read_json(started.run_dir / LIKE_PLAN_FILE, LikePlan, LIKE_PLAN_SCHEMA)
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    save_rank(started.run_dir, world)
    progress.tell("timed")
    found = transports.measure(world, plan.transports, plan.sizes)
    if world.rank == 0:
        write_json(started.run_dir / LIKE_FILE, Like(collectives=tuple(found)))
    world.gather(None)
    progress.tell("done")
    world.close()
