"""Test `gpudiag bandwidth --like`: all-reduces of a model's buckets between real processes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag.app.bandwidth import chosen_sizes
from gpudiag.model.benchmarks.gradient_bandwidth import ModelBuckets
from gpudiag.model.facts import Collective
from gpudiag.report.console import report_console
from gpudiag.report.facts.bandwidth import render_gradient_bandwidth
from tests.cli_process import in_this_process
from tests.exposure import run_watched
from tests.forked_jobs import with_forked_jobs

if TYPE_CHECKING:
    from pathlib import Path


def _all_reduce(transport: str, size: int, time_us: float) -> Collective:
    """Return an all-reduce of `size` bytes over `transport`."""
    busbw = size / time_us / 1e3
    return Collective(
        operation="all_reduce",
        strategy=transport,
        ranks=2,
        bytes=size,
        time_us=time_us,
        algbw_gb_per_s=busbw,
        busbw_gb_per_s=busbw,
    )


def _buckets() -> ModelBuckets:
    """Return measurements of two transports, and a reason for a strategy without measurements."""
    return ModelBuckets(
        workload="vgg16\x1b[31m",
        bucket_bytes=(1_000_000, 20_000_000, 10_000_000, 40_000_000),
        collectives=(
            _all_reduce("nccl", 1_000_000, 100.0),
            _all_reduce("nccl", 20_000_000, 1000.0),
            _all_reduce("gloo", 1_000_000, 2000.0),
        ),
        skipped={"cpu-reduce": "it could not be used here"},
    )


def test_step_time_sums_interpolated_buckets() -> None:
    """Times are interpolated between measured sizes and extrapolated in proportion: 0.1 + 1 + (0.1 + 9/19 x 0.9) + 2
    ms."""
    sizes = _buckets()
    assert sizes.step_ms("nccl") == pytest.approx(0.1 + 1.0 + (0.1 + 9 / 19 * 0.9) + 2.0)
    assert sizes.step_ms("gloo") == pytest.approx(2.0 * (1 + 20 + 10 + 40))
    assert sizes.step_ms("cpu-reduce") is None


def test_chosen_sizes_span_all_buckets() -> None:
    assert chosen_sizes((5, 3, 5), 8) == (3, 5)
    few = chosen_sizes(tuple(range(1, 101)), 8)
    assert (few[0], few[-1], len(few)) == (1, 100, 8)


def test_text_table_has_bucket_times_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    render_gradient_bandwidth(_buckets(), report_console(width=90))
    shown = capsys.readouterr().out
    assert "4 buckets, 71 MB per step" in shown
    assert "cpu-reduce: it could not be used here" in shown
    assert "\x1b[31m" not in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["20", "20", "—"] in rows
    assert ["all,", "ms", "3.6", "142.0"] in rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--like", "nonsense"), "no workload 'nonsense'"),
        (("--like", "unet3d-predict"), "does not train"),
        (("--like", "mlp", "--from", "facts.json"), "--like measures and --from does not"),
    ],
)
@pytest.mark.processes
def test_usage_errors_precede_measurement(arguments: tuple[str, ...], words: str) -> None:
    result = in_this_process("bandwidth", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "measuring" not in result.stderr


MEASURE = ("bandwidth", "--quick", "--like", "resnet20-cifar", "--json")


@pytest.mark.apart
@pytest.mark.xdist_group("training")
def test_another_account_reaches_only_gloo() -> None:
    pytest.importorskip("torch")
    watched = run_watched(sys.executable, "-m", "gpudiag", *MEASURE)
    assert watched.result.returncode == 0, watched.result.stderr
    watched.check()


@pytest.mark.xdist_group("training")
@pytest.mark.apart
def test_bandwidth_of_host_memory_and_between_processes_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    saved = tmp_path / "facts.json"
    result = with_forked_jobs(*MEASURE, "--save", str(saved))
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    sizes = answer["probes"]["like"]["bucket_bytes"]
    # ResNet-20 has 269,722 parameters of 4 bytes; all of its gradients are communicated.
    assert sum(sizes) == 4 * 269_722
    measured = {
        (collective["strategy"], collective["bytes"])
        for collective in answer["collectives"]
        if collective["bytes"] in sizes
    }
    assert {transport for transport, _ in measured} == {"gloo", "cpu-reduce"}
    assert {size for _, size in measured} == set(sizes)
    kept = json.loads(saved.read_text())
    assert kept["probes"]["like"]["workload"] == "resnet20-cifar"
    assert "measuring host memory" in result.stderr
    assert {record["path"] for record in kept["bandwidth"]} == {"host_memory"}
    assert kept["bandwidth"][0]["verified"] is True
    assert kept["probes"]["host memory"]["status"] == "ok"
    assert kept["probes"]["total"]["mode"] == "quick"
    shown = in_this_process("bandwidth", "--from", str(saved)).stdout
    assert "Host memory" in shown
    assert "data verified on" in shown
