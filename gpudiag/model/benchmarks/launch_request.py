"""Define the launcher's request to each training process that it starts."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.gradient_bandwidth import GradientBandwidthPlan
from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.model.benchmarks.strategy_benchmark import StrategyBenchmarkPlan
from gpudiag.model.benchmarks.sweep import SweepPlan
from gpudiag.model.benchmarks.tries import TriesPlan
from gpudiag.model.job import Job

#: Arguments of gpudiag's own training programs. The type determines the program.
ProgramPlan = StrategyBenchmarkPlan | GradientBandwidthPlan | SweepPlan | SelftestPlan | TriesPlan


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a training process.

    Attributes:
        program: the program to run; None to train the job's workload.
    """

    job: Job
    program: ProgramPlan | None = None
