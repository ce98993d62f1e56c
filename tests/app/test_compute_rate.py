"""Test FLOPs per step and utilization, from a user-defined loop to every report."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import gpudiag
from gpudiag.analysis.attribution.compute_rate import compute_rate
from gpudiag.app.analyze import analyze
from gpudiag.app.table import table
from gpudiag.model.compute_rates import peak_tflops
from gpudiag.model.run import RankRecord, RunRecord, StepFlops
from gpudiag.model.run_directory import write_json
from gpudiag.report.page.run import run_part
from gpudiag.report.text.run import to_markdown
from gpudiag.training.session.clock import summarize
from tests.training.session.test_session import run_record

TRACES = Path(__file__).parents[1] / "traces" / "clean"
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.training.frameworks.pytorch.flops._why_not", lambda _: None)


def train(run_dir: Path, *, driven: bool = False, times: int = 1, **arguments: Any) -> StepFlops | None:
    """Train a layer of 32 weights on 5 samples in each batch; return the counted FLOPs of a step.

    A step has `times` batches. If `driven` is true, the loop calls `prof.step()`, otherwise it iterates `prof.steps`.
    """
    model = nn.Linear(8, 4)

    def step() -> None:
        for _ in range(times):
            model(torch.ones(5, 8)).sum().backward()

    with gpudiag.profile(run_dir, model=model, **{"warmup": 3, "steps": 4, "active": 3, **arguments}) as prof:
        if driven:
            while prof.step():
                step()
        else:
            for _ in prof.steps(range(40)):
                step()
    return run_record(run_dir).ranks[0].flops


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("times", [1, 4])
def test_user_defined_loop_reports_its_compute_rate(tmp_path: Path, times: int, driven: bool) -> None:
    run = train(tmp_path, driven=driven, times=times, **({"stop": True} if driven else {}))
    assert run == StepFlops(by_precision={"fp32": times * 2 * 2 * 5 * 32})
    analysis = analyze([tmp_path])
    rate = analysis.compute
    assert rate is not None
    assert rate.flops_per_step == times * 2 * 2 * 5 * 32
    assert analysis.steps.unprofiled_mean_ms is not None
    assert rate.tflops_per_s == pytest.approx(rate.flops_per_step / analysis.steps.unprofiled_mean_ms / 1e9)
    assert (rate.peak_tflops, rate.mfu_percent) == (None, None)
    assert "CPU" in rate.reasons["peak_tflops"]
    assert f"Compute: {'640' if times == 1 else '2.56 k'}" in to_markdown(analysis)


def test_counted_step_is_a_warm_up_step(tmp_path: Path) -> None:
    """A warm-up of normal length counts FLOPs and keeps its length; a warm-up of one step counts nothing."""
    train(tmp_path)
    (rank,) = run_record(tmp_path).ranks
    assert rank.warmup is not None
    assert rank.warmup.steps == 3
    assert rank.unprofiled is not None
    assert len(rank.unprofiled.step_ms) == 4
    assert train(tmp_path, warmup=2) is None
    assert analyze([tmp_path]).compute is None
    automatic = train(tmp_path, warmup=None, steps=None)
    assert automatic is not None


def test_nothing_is_counted_without_a_model_or_for_several_devices(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, warmup=3, steps=4, active=3) as prof:
        for _ in prof.steps(range(40)):
            torch.ones(3, 3) @ torch.ones(3, 3)
    assert run_record(tmp_path).ranks[0].flops is None
    assert train(tmp_path, device=["cpu", "cpu"]) is None


def rank_of(flops: StepFlops | None, *, rank: int = 0, name: str = H100, step_ms: float = 100.0) -> RankRecord:
    """Return the record of a rank with `flops` and unprofiled steps of `step_ms` on the GPU `name`."""
    return RankRecord(
        rank=rank,
        local_rank=rank,
        host="a",
        pid=1,
        device=f"cuda:{rank}",
        device_name=name,
        unprofiled=summarize([step_ms] * 4),
        flops=flops,
    )


def run_of(*ranks: RankRecord) -> RunRecord:
    """Return the record of a run with the given ranks."""
    return RunRecord(
        created="2026-01-01T00:00:00Z",
        command=("gpudiag", "profile"),
        workload="gpt",
        framework="pytorch",
        strategy="nccl",
        world_size=len(ranks),
        nodes=1,
        batch_size_per_device=4,
        ranks=ranks,
        status="complete",
    )


def test_utilization_is_mean_flops_over_the_slowest_step() -> None:
    """Check the worked example in the docstring of `compute_rate`."""
    more = StepFlops(by_precision={"fp32": 10**12, "bf16": 39 * 10**12}, recomputed=6 * 10**12)
    run = run_of(rank_of(more), rank_of(StepFlops(by_precision={"bf16": 20 * 10**12}), rank=1, step_ms=90.0))
    rate = compute_rate(run)
    assert rate is not None
    assert (rate.flops_per_step, rate.recomputed_flops_per_step) == (30 * 10**12, 3 * 10**12)
    assert list(rate.by_precision) == ["bf16", "fp32"]
    assert (rate.precision, rate.peak_tflops) == ("bf16", 989)
    assert rate.tflops_per_s == pytest.approx(300)
    assert rate.mfu_percent == pytest.approx(100 * 300 / 989)


def test_unknown_figures_are_missing_with_a_reason() -> None:
    some = StepFlops(by_precision={"bf16": 10**12})
    assert compute_rate(run_of(rank_of(None))) is None
    partly = compute_rate(run_of(rank_of(some), rank_of(None, rank=1)))
    assert partly is not None
    assert partly.flops_per_step is None
    assert "not every rank" in partly.reasons["flops_per_step"]
    compiled = compute_rate(run_of(rank_of(StepFlops(reason="it is compiled"))))
    assert compiled is not None
    assert compiled.reasons == {"flops_per_step": "it is compiled"}
    for name in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD Instinct MI300X", "Tesla V100-SXM2-32GB"):
        rate = compute_rate(run_of(rank_of(some, name=name)))
        assert rate is not None
        assert rate.tflops_per_s == pytest.approx(10)
        assert rate.mfu_percent is None
        assert name in rate.reasons["peak_tflops"]


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("NVIDIA A100-SXM4-80GB", (19.5, 156, 312, 312)),
        ("NVIDIA A10", (31.2, 62.5, 125, 125)),
        ("NVIDIA A10G", (None, None, None, None)),
        ("NVIDIA H100 PCIe", (51, 378, 756, 756)),
        ("NVIDIA H200", (67, 494, 989, 989)),
        ("NVIDIA L4", (30.3, 60, 121, 121)),
        ("NVIDIA L40S", (91.6, 183, 362, 362)),
        ("Tesla V100-PCIE-16GB", (14, 14, 112, None)),
        ("Tesla T4", (8.1, 8.1, 65, None)),
        ("Tesla P100-PCIE-16GB", (9.3, 9.3, 18.7, None)),
        ("NVIDIA GeForce RTX 3090", (35.6, 35.6, 71, 71)),
        ("NVIDIA GeForce RTX 3090 Ti", (None, None, None, None)),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (None, None, None, None)),
        ("NVIDIA GeForce GTX 1080 Ti", (11.3, 11.3, None, None)),
    ],
)
def test_peak_flops_are_found_by_driver_names(name: str, peaks: tuple[float | None, ...]) -> None:
    found_peaks = [peak_tflops(name, precision) for precision in ("fp32", "tf32", "fp16", "bf16")]
    assert tuple(None if peak is None else peak[0] for peak in found_peaks) == peaks
    assert all(peak is None or peak[1].startswith("NVIDIA ") for peak in found_peaks)
    assert peak_tflops(name, "fp64") is None


def test_very_large_step_is_counted(tmp_path: Path) -> None:
    """Use a step of one minute on a GPU of 2 PFLOP/s."""
    write_json(tmp_path / "run.json", run_of(rank_of(StepFlops(by_precision={"bf16": 12 * 10**16}), step_ms=6e4)))
    rate = compute_rate(run_record(tmp_path))
    assert rate is not None
    assert rate.tflops_per_s == pytest.approx(2000)


def test_every_report_shows_the_compute_rate(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(TRACES, run_dir / "traces")
    counted = StepFlops(by_precision={"bf16": 30 * 10**12}, unknown=("flash_attn.forward",))
    run = run_of(*(rank_of(counted, rank=rank, name="NVIDIA H200") for rank in range(4)))
    write_json(run_dir / "run.json", run)
    analysis = analyze([run_dir])
    line = "MFU at least 30.3 % of the peak of 989 TFLOP/s"
    assert line in to_markdown(analysis)
    page = run_part(analysis, None)
    assert any(line in text for text in page["subtitle"])
    assert ("model FLOPs utilization (MFU)", "30.3 %") in page["cards"]
    assert json.loads(msgspec.json.encode(analysis))["compute"]["mfu_percent"] == pytest.approx(30.33, abs=0.01)
    markdown, rows = tmp_path / "table.md", tmp_path / "table.csv"
    table([str(run_dir)], markdown=markdown, csv=rows)
    assert "30.3 %" in markdown.read_text(encoding="utf-8")
    (row,) = csv.DictReader(rows.read_text(encoding="utf-8").splitlines())
    assert float(row["tflops_per_s"]) == pytest.approx(300)
    assert float(row["mfu_percent"]) == pytest.approx(30.33, abs=0.01)
