"""Test that training processes decode the request and the program that the launcher encodes."""

from __future__ import annotations

import msgspec
import pytest

from gpudiag.model.benchmarks.gradient_bandwidth import GradientBandwidthPlan
from gpudiag.model.benchmarks.launch_request import LaunchRequest, ProgramPlan
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.benchmarks.selftest import FaultPlan, SelftestPlan
from gpudiag.model.benchmarks.strategy_benchmark import Entry, StrategyBenchmarkPlan
from gpudiag.model.benchmarks.sweep import SweepEntry, SweepPlan
from gpudiag.model.job import Job

JOB = Job(workload="mlp", strategy="gloo", device="cpu")
GLOO = Candidate(strategy="gloo")


@pytest.mark.parametrize(
    "program",
    [
        None,
        StrategyBenchmarkPlan(device="cpu", devices=2, entries=(Entry(workload="mlp", candidates=(GLOO,)),)),
        GradientBandwidthPlan(device="cpu", transports={"gloo": GLOO}, sizes=(4, 8)),
        SweepPlan(
            entries=(SweepEntry(directory="points/a", job=JOB, ranks=(0,), accuracy=0.1, seconds=1.0, warmup_s=1.0),)
        ),
        SelftestPlan(
            workload="mlp",
            device="cpu",
            batch_size=8,
            precision="fp32",
            memory_format="nchw",
            faults=(FaultPlan(name="none", kind="none"),),
            pairs=2,
            block_ms=100.0,
            least_steps=4,
            active=4,
            warm_up_s=1.0,
        ),
    ],
    ids=lambda program: type(program).__name__,
)
def test_request_survives_encoding(program: ProgramPlan | None) -> None:
    request = LaunchRequest(job=JOB, program=program)
    assert msgspec.json.decode(msgspec.json.encode(request), type=LaunchRequest) == request
