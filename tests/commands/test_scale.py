"""Test `gpudiag scale` on CPU processes: points, continuation, and a killed point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpudiag.commands import main as cli
from tests.cli_process import SECONDS, environment
from tests.exposure import run_watched
from tests.forked_jobs import with_forked_jobs
from tests.listeners import beyond_loopback, listening_sockets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("training")

#: `.ci/run` also scales the default workload with the default strategies.
COMMAND = ("scale", "trivial", "--devices", "1,2", "--strategies", "gloo", "--quick", "--seconds", "0.3")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpudiag", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    values = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command(*words), capture_output=True, text=True, env=values, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("scale")
    done = with_forked_jobs(*COMMAND, "--starts", "2", "--output", str(output), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "Weak scaling of trivial" in done.stdout
    return output


@pytest.mark.apart
def test_another_account_reaches_only_gloo(tmp_path: Path) -> None:
    watched = run_watched(*command(*COMMAND, "--profile", "none", "--output", str(tmp_path)), CUDA_VISIBLE_DEVICES="")
    assert watched.result.returncode == 0, watched.result.stderr
    watched.check()


@pytest.mark.apart
def test_every_point_is_compared_with_its_baseline(benchmark: Path) -> None:
    result = json.loads((benchmark / "scaling.json").read_text())
    assert result["schema"] == "gpudiag/scaling/1"
    points = {(point["strategy"], point["devices"]): point for point in result["points"]}
    assert set(points) == {("gloo", 1), ("gloo", 2)}
    for (strategy, devices), point in points.items():
        assert point["status"] == "measured"
        assert point["baseline"] == points[strategy, 1]["id"]
        assert point["ci95"][0] <= point["samples_per_s"] <= point["ci95"][1]
        assert len(point["per_device_samples_per_s"]) == devices
        assert point["warmup_steps"] > 0
        assert len(point["starts"]) >= 2
        rates = [start["samples_per_s"] for start in point["starts"]]
        assert point["ci95"][0] <= min(rates)
        assert max(rates) <= point["ci95"][1]
    for point in points.values():  # on a noisy machine there is no conclusion, and the output says so
        assert (point["speedup"] is None) == any(
            remark["code"] == "no-baseline-to-trust" and point["baseline"] in remark["message"]
            for remark in result["remarks"]
        )


@pytest.mark.apart
def test_waterfall_sums_to_100_percent_or_has_a_reason_for_its_absence(benchmark: Path) -> None:
    result = json.loads((benchmark / "scaling.json").read_text())
    for fall in result["waterfalls"]:
        losses = {loss["name"]: loss["percent"] for loss in fall["losses"]}
        assert fall["reached_percent"] + sum(losses.values()) == pytest.approx(100, abs=1)
        assert abs(losses.get("rest", 0.0)) <= 5
    codes = {remark["code"] for remark in result["remarks"]}
    assert result["waterfalls"] or codes & {"no-waterfall", "no-baseline-to-trust"}


@pytest.mark.apart
def test_benchmark_writes_a_page_and_tables(benchmark: Path) -> None:
    assert "<svg" in (benchmark / "report.html").read_text()
    assert len((benchmark / "scaling.csv").read_text().splitlines()) == 3
    assert (benchmark / "scaling.md").read_text().startswith("# Weak scaling of trivial")


@pytest.mark.apart
def test_second_call_measures_nothing(benchmark: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in benchmark.glob("points/**/run.json")}
    done = run(*COMMAND, "--starts", "2", "--output", str(benchmark), "--json")
    assert done.returncode == 0, done.stderr
    assert "2 of them already measured" in done.stderr
    assert json.loads(done.stdout)["schema"] == "gpudiag/scaling/1"
    assert {path: path.stat().st_mtime_ns for path in benchmark.glob("points/**/run.json")} == before


@pytest.mark.apart
def test_report_and_table_read_the_benchmark(benchmark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(benchmark)]) == 0
    assert "Weak scaling of trivial" in capsys.readouterr().out
    assert cli.main(["table", str(benchmark), str(benchmark / "nothing")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 devices" in out
    assert "does not exist" in out


@pytest.mark.apart
def test_conclusions_can_be_drawn_again(benchmark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scale", "--from", str(benchmark), "--network", "25", "--samples", "1e6"]) == 0
    out = capsys.readouterr().out
    assert "25 GB/s per machine" not in out  # measurements on one and two devices allow no conclusion for more devices
    assert "1 000 000 samples" in out


def test_killed_point_is_noted_and_others_are_measured(tmp_path: Path) -> None:
    earlier = listening_sockets(os.getpid())  # sockets of earlier tests' processes that still run
    addresses: set[str] = set()

    def kill() -> None:
        victim = _wait_for_point(tmp_path, "gloo-2x")
        new = listening_sockets(os.getpid()) - earlier
        addresses.update(address for address, _ in new)  # each point has one TCPStore listener
        os.kill(victim, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    done = with_forked_jobs(*COMMAND, "--profile", "none", "--output", str(tmp_path), CUDA_VISIBLE_DEVICES="")
    killing.join()
    assert addresses
    assert not beyond_loopback(addresses), "other machines can reach a listener of this run"
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "scaling.json").read_text())["points"]
    by_devices = {point["devices"]: point for point in points}
    assert by_devices[2]["status"] == "failed"
    assert "SIGKILL" in by_devices[2]["error"]
    assert by_devices[1]["status"] == "measured"


def _wait_for_point(output: Path, name: str) -> int:
    """Return the process id of rank 1 of the point `name` as soon as this process trains."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for path in output.glob(f"points/*{name}*/ranks/rank1.json"):
            text = path.read_text()
            if text and (pid := json.loads(text)["pid"]):
                return int(pid)
        time.sleep(0.02)
    raise AssertionError(f"{name} was never begun")


def test_impossible_requests_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code, told in (
        (["--devices", "9000"], 3, "--devices 9000"),
        (["--devices", "two"], 2, "--devices takes numbers"),
        (["--budget", "soon"], 2, "--budget takes a time"),
        (["--network", "fast"], 2, "--network takes"),
        (["--subsets", "threes"], 2, "--subsets knows no"),
        (["--strong", "--subsets", "pairs"], 2, "does not go with"),
    ):
        assert cli.main(["scale", "mlp", "--output", str(tmp_path / "out"), *words]) == code
        assert told in capsys.readouterr().err
    assert cli.main(["scale", "--from", str(tmp_path)]) == 4
