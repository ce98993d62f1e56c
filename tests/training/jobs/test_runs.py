"""Test workloads and data sources in complete runs of two processes."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpudiag.analysis.scaling.forecast import durations
from gpudiag.app.table import read_points
from gpudiag.model.benchmarks.scale_request import Wanted
from gpudiag.training.jobs.volume.storage import Volume
from tests.cli_process import SECONDS, environment, in_this_process
from tests.forked_jobs import with_forked_jobs

SHORT = ("--steps", "3", "--warmup", "2")

pytestmark = pytest.mark.xdist_group("processes")


def run(
    run_dir: Path, *words: str, devices: int = 2, short: tuple[str, ...] = SHORT
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `gpudiag profile` with `words` and the options `short`; return the analysis and the run record."""
    many = ("--devices", str(devices))
    words = ("profile", *words, *many, *short, "--output", str(run_dir), "--json")
    result = with_forked_jobs(*words, CUDA_VISIBLE_DEVICES="")
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (run_dir / "logs").glob("*.log"))
    assert result.returncode == 0, f"{result.stderr}\n{logs}"
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "complete"
    assert len(record["ranks"]) == devices
    return json.loads(result.stdout), record


def batch_servers(run_dir: Path) -> list[str]:
    """Return the command lines of the living batch servers of a run."""
    results = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text(errors="replace") if entry.name.isdecimal() else ""
        except OSError:
            continue
        if "gpudiag.training.jobs.data.batch_server" in line and str(run_dir) in line:
            results.append(line)
    return results


@pytest.mark.apart
def test_zmq_batches_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))  # the temporary directory identifies the servers' command lines
    analysis, record = run(tmp_path / "run", "cnn-cifar", "--data", "zmq", "--batch-size", "5")
    assert (record["options"]["data"], record["options"]["loader_workers"]) == ("zmq", "1")
    assert record["model"]["parameters"] == 1_250_858
    assert analysis["devices"][0]["buckets_ms"]["compute"] > 0
    assert not batch_servers(temporary)
    assert not list(temporary.glob("gpudiag*"))


@pytest.mark.measured
def test_divided_model_is_trained_in_more_processes_than_cores(tmp_path: Path) -> None:
    analysis, record = run(tmp_path, "gpt", "--parallel", "pp=2,dp=2,microbatches=2", devices=4)
    assert record["parallel"]["pp"] == record["parallel"]["dp"] == record["parallel"]["microbatches"] == 2
    assert record["parallel"]["schedule"] == "1f1b"
    assert record["strategy"] == "gloo"
    assert record["batch_size_per_device"] == 1  # two sequences for each pair of stages
    assert record["options"]["sequences_per_replica"] == "2"
    assert len(analysis["devices"]) == 4
    with gzip.open(tmp_path / "traces" / "rank3.pt.trace.json.gz") as trace:
        groups = json.load(trace)["distributedInfo"]["pg_config"]
    ranks = {group["pg_desc"]: group["ranks"] for group in groups}
    assert (ranks["mesh_pp"], ranks["mesh_dp"]) == ([1, 3], [2, 3])


def test_model_none_times_input_only(tmp_path: Path) -> None:
    analysis, record = run(tmp_path, "resnet50", "--model", "none", "--batch-size", "32")
    assert record["options"]["model"] == "none"
    assert record["workload"] == "resnet50 (input only)"
    assert record["model"] is None
    buckets = [device["buckets_ms"] for device in analysis["devices"]]
    spent = {name: sum(device[name] for device in buckets) for name in buckets[0]}
    assert max(spent, key=lambda name: spent[name]) == "input"
    assert all(device["compute"] == 0 and device["communication_transfer"] == 0 for device in buckets)
    slowest = max(rank["unprofiled"]["mean_ms"] for rank in record["ranks"])
    assert analysis["source"]["samples_per_s"] == pytest.approx(2 * 32 * 1000 / slowest)
    assert (analysis["findings"], analysis["source"]["input_only"]) == ([], True)
    page = (tmp_path / "report.html").read_text()
    assert "Data loading alone delivers" in page
    assert "Faster kernels" not in page


@pytest.mark.measured  # slow; test_unet3d.py tests predictions with a small network
def test_two_processes_predict_each_voxel_once(tmp_path: Path) -> None:
    volume = (5, 40, 36)
    words = ("unet3d-predict", "--volume", ",".join(map(str, volume)), "--keep-prediction")
    analysis, record = run(tmp_path, *words, short=("--steps", "2", "--warmup", "0"))  # a step takes half a second
    assert record["options"]["volume"] == "5,40,36"
    figures = json.loads((tmp_path / "inference.json").read_text())
    assert figures["blocks"] == 2 * 2 * 1
    assert sum(rank["voxels"] for rank in figures["ranks"]) == figures["voxels"] == np.prod(volume)
    assert [rank["blocks"] for rank in figures["ranks"]] == [2, 2]
    assert figures["predicted"] == 4 * np.prod(figures["seen"])
    assert figures["mvox_per_s"] == pytest.approx(np.prod(volume) / figures["seconds"] / 1e6)
    assert analysis["inference"] == figures
    assert "Mvox/s" in (tmp_path / "report.html").read_text()
    (point,) = read_points(tmp_path)
    # The last block of an axis writes fewer voxels.
    assert point.voxels_per_sample == pytest.approx(np.prod(volume) / 4)
    (time,) = durations([point], Wanted(voxels=1e9))
    assert time.hours == pytest.approx(1e9 / figures["mvox_per_s"] / 1e6 / 3600)
    written = np.asarray(Volume.open(tmp_path / "prediction.zarr")._store.read().result())
    assert written.shape == (3, *volume)
    assert (written > 0).all()  # 0 marks voxels that were never written
    assert not (tmp_path / "volume.zarr").exists()
    assert not (tmp_path / "again.zarr").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data", "zmq", "--loader-workers", "0"], "needs a process that makes batches"),
        (["--data", "device", "--prefetch"], "on the device already"),
        (["--data", "device", "--model", "none"], "on the device already"),
        (["--model", "none", "--prefetch"], "nothing is copied"),
        (["--model", "half"], "whole, trivial, none"),
        (["resnet50", "--volume", "9,9,9"], "predicts no volume"),
        (["resnet50", "--keep-prediction"], "predicts no volume"),
        (["unet3d-predict", "--data", "zmq"], "from disk"),
        (["unet3d-predict", "--strategy", "gloo"], "without communication"),
        (["unet3d-predict", "--volume", "9,9"], "Z,Y,X"),
        (["unet3d-predict", "--volume", "9,-9,9"], "Z,Y,X"),
        (["unet3d-predict", "--volume", "0,9,9"], "Z,Y,X"),
        (["a:b", "--prefetch"], "decides that itself"),
    ],
)
def test_conflicting_options_are_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    result = in_this_process("profile", *words, "--output", str(tmp_path / "run"), CUDA_VISIBLE_DEVICES="")
    assert (result.returncode, result.stdout) == (2, "")
    assert expected in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.apart
def test_interrupted_prediction_removes_volumes(tmp_path: Path) -> None:
    words = ["unet3d-predict", "--volume", "40,720,720", "--devices", "1", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "gpudiag", "profile", *words]
    with subprocess.Popen(command, env=environment(CUDA_VISIBLE_DEVICES=""), stderr=subprocess.PIPE) as program:
        until = time.monotonic() + SECONDS
        while not (tmp_path / "prediction.zarr" / "c").exists():
            assert program.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=SECONDS)
    assert (program.returncode, said.splitlines()[-1]) == (130, b"gpudiag: interrupted")
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    assert not list(tmp_path.glob("*.zarr"))


def test_volume_larger_than_disk_is_an_error_and_removed(tmp_path: Path) -> None:
    words = ("unet3d-predict", "--volume", "4000,36000,36000", "--devices", "1", "--output", str(tmp_path / "run"))
    result = with_forked_jobs("profile", *words, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 5
    assert "the volumes need" in result.stderr
    assert "larger disk" in result.stderr
    assert not list((tmp_path / "run").glob("*.zarr"))
