"""Test the simulated cost of gradient communication against an ablation, for each strategy.

The ablation is independent of the simulation: the unprofiled step time, minus the step time of the strategy
`independent` on the same machine. VGG-16 ran on 4 H200, the GPT on 2 H100, both without peer access.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.app.analyze import analyze
from tests.conftest import WHOLE
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.analysis import Analysis

RUNS: dict[str, dict[str, Any]] = json.loads((WHOLE / "exchanges" / "runs.json").read_text(encoding="utf-8"))
#: Suffix of the name of a full trace's kernel-only trace.
KERNEL_ONLY = "-light"
RECORDED = sorted(path.stem for path in (WHOLE / "exchanges").glob("*.npz") if not path.stem.endswith(KERNEL_ONLY))
#: Least share of the communication's cost that must be in the transfer and wait buckets.
LEAST_IN_TABLE = 0.5


def timed_ms(name: str) -> float:
    return max(float(rank["unprofiled"]["mean_ms"]) for rank in RUNS[name]["ranks"] if rank.get("unprofiled"))


def cost_ms(name: str) -> float:
    return timed_ms(name) - timed_ms(f"{name.split('-', maxsplit=1)[0]}-independent")


@pytest.fixture(scope="module", params=RECORDED)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Analysis]:
    """Return (name, analysis) of a recorded job."""
    run: Path = tmp_path_factory.mktemp("exchange")
    unpack(WHOLE / "exchanges" / f"{request.param}.npz", run / "traces")
    light = WHOLE / "exchanges" / f"{request.param}{KERNEL_ONLY}.npz"
    if light.is_file():
        unpack(light, run / "traces" / "light")
    (run / "run.json").write_text(json.dumps(RUNS[request.param]), encoding="utf-8")
    return request.param, analyze([run])


pytestmark = [pytest.mark.long, pytest.mark.xdist_group("exchanges")]


def test_savings_match_the_ablation(job: tuple[str, Analysis]) -> None:
    name, analysis = job
    findings = [finding for finding in analysis.findings if finding.code == "communication-bound"]
    amount = float(findings[0].recoverable_ms_per_step or 0) if findings else 0.0
    assert amount == pytest.approx(cost_ms(name), rel=0.15, abs=1.0)


def test_communication_is_the_first_finding(job: tuple[str, Analysis]) -> None:
    name, analysis = job
    # The ablation shows what communication costs, but not what faster kernels would save.
    costing = [
        finding.code
        for finding in analysis.findings
        if finding.recoverable_ms_per_step and finding.code != "slow-compute"
    ]
    if name.endswith("-independent"):
        assert "communication-bound" not in costing
        return
    assert costing[0] == "communication-bound"
    # Communication is not reported as late input, synchronization or slow copy under any strategy.
    assert not {"input-bound", "host-sync", "slow-copy"} & set(costing)


def test_buckets_contain_half_of_the_cost(job: tuple[str, Analysis]) -> None:
    name, analysis = job
    table = [d.buckets_ms["communication_transfer"] + d.buckets_ms["communication_wait"] for d in analysis.devices]
    if name.endswith("-independent"):
        assert max(table) == 0
    else:
        assert max(table) >= LEAST_IN_TABLE * min(cost_ms(name), analysis.steps.mean_ms)
