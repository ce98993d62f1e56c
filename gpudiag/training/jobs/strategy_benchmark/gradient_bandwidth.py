"""The job behind `gpudiag bandwidth --like`: all-reduces of given sizes over given transports, and nothing else."""

from __future__ import annotations

from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.gradient_bandwidth import (
    GRADIENT_BANDWIDTH_FILE,
    GRADIENT_BANDWIDTH_PLAN_FILE,
    GRADIENT_BANDWIDTH_PLAN_SCHEMA,
    GradientBandwidth,
    GradientBandwidthPlan,
)
from gpudiag.model.run_directory import read_json, write_json
from gpudiag.training.jobs.strategy_benchmark import transports
from gpudiag.training.jobs.strategy_benchmark.job import save_rank
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.loop.launched import launched
from gpudiag.training.session.progress import ProgressSender


def run() -> None:
    """This process's share; the plan is in the launch's run directory."""
    started = launched()
    if started is None:
        raise UsageError("this job is started by gpudiag only", "Run `gpudiag bandwidth --like WORKLOAD`.")
    plan = read_json(
        started.run_dir / GRADIENT_BANDWIDTH_PLAN_FILE, GradientBandwidthPlan, GRADIENT_BANDWIDTH_PLAN_SCHEMA
    )
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    save_rank(started.run_dir, world)
    progress.tell("timed")
    found = transports.measure(world, plan.transports, plan.sizes)
    if world.rank == 0:
        write_json(started.run_dir / GRADIENT_BANDWIDTH_FILE, GradientBandwidth(collectives=tuple(found)))
    world.gather(None)
    progress.tell("done")
    world.close()
