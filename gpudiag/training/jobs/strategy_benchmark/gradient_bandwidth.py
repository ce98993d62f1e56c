"""The job behind `gpudiag bandwidth --like`: all-reduces of given sizes over given transports, and nothing else."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.benchmarks.gradient_bandwidth import (
    GRADIENT_BANDWIDTH_FILE,
    GradientBandwidth,
    GradientBandwidthPlan,
)
from gpudiag.model.run_directory import write_json
from gpudiag.training.jobs.strategy_benchmark import transports
from gpudiag.training.jobs.strategy_benchmark.job import save_rank
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.session.progress import ProgressSender


def measure_gradient_bandwidth(plan: GradientBandwidthPlan, run_dir: Path) -> None:
    """Run this process's share; rank 0 writes the result to the run directory."""
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    save_rank(run_dir, world)
    progress.tell("timed")
    found = transports.measure(world, plan.transports, plan.sizes)
    if world.rank == 0:
        write_json(run_dir / GRADIENT_BANDWIDTH_FILE, GradientBandwidth(collectives=tuple(found)))
    world.gather(None)
    progress.tell("done")
    world.close()
