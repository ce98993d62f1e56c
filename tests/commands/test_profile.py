"""Test `gpudiag profile` with real processes and gloo, and every way in which a run ends."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli_process import SECONDS, environment, gpudiag, in_this_process
from tests.exposure import run_watched
from tests.forked_jobs import with_forked_jobs
from tests.listeners import beyond_loopback, listeners

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

OWN = "tests.commands.own_training"
ROOT = Path(__file__).parents[2]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def run_json(run_dir: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    return record


def names_in_trace(run_dir: Path, rank: int, folder: str = "traces") -> list[str]:
    path = run_dir / folder / f"rank{rank}.pt.trace.json.gz"
    return [str(event.get("name")) for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]


def processes_of(run_dir: Path) -> list[str]:
    """Return the run's living processes; command lines of the launcher and workers contain the run directory.

    A DataLoader worker is a fork of its training process and has the same command line.
    """
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(run_dir) in line and state != "Z":
                processes.append(line)
    return processes


def gone(run_dir: Path, seconds: float = SECONDS) -> bool:
    until = time.monotonic() + seconds
    while processes_of(run_dir) and time.monotonic() < until:
        time.sleep(0.05)
    return not processes_of(run_dir)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start an endless run with DataLoader workers, and wait for unprofiled steps on both ranks."""
    run_dir = tmp_path / "run"
    program = subprocess.Popen(
        [sys.executable, "-m", "gpudiag", "profile", f"{OWN}:endless", "--output", str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path), **NO_GPU),
    )
    until = time.monotonic() + SECONDS
    while not all(has_unprofiled_steps(run_dir, rank) for rank in (0, 1)):
        assert program.poll() is None, program.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    # The processes are gpudiag, its guard, torchrun, and two training processes with one DataLoader worker each.
    assert len(processes_of(run_dir)) >= 7
    addresses = listeners(program.pid)
    assert addresses
    assert not beyond_loopback(addresses), "other machines can reach a listener of this run"
    yield program, run_dir
    program.kill()
    program.communicate(timeout=SECONDS)
    assert gone(run_dir)


def has_unprofiled_steps(run_dir: Path, rank: int) -> bool:
    try:
        return "has timed steps" in (run_dir / "logs" / f"rank{rank}.log").read_text(encoding="utf-8")
    except OSError:
        return False


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the default job on a machine without GPUs, in an empty directory."""
    cwd = tmp_path_factory.mktemp("main-job")
    words = ("-m", "gpudiag", "profile", "--batch-size", "4", "--json")
    watched = run_watched(sys.executable, *words, cwd=cwd, **NO_GPU)
    result = watched.result
    assert result.returncode == 0, result.stderr
    watched.check()  # another account gets no answer and opens no file
    (run_dir,) = (cwd / "gpudiag-runs").iterdir()
    return result, run_dir


Run = tuple[subprocess.CompletedProcess[str], Path]


def test_default_run_ends_with_an_analysis(default_run: Run) -> None:
    result, run_dir = default_run
    analysis = json.loads(result.stdout)
    assert analysis["schema"] == "gpudiag/analysis/1"
    assert (analysis["world_size"], analysis["ranks_present"]) == (2, [0, 1])
    assert analysis["steps"]["analysed"] >= 4
    assert analysis["steps"]["unprofiled_mean_ms"] > 0
    for device in analysis["devices"]:
        assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"], rel=1e-6)
        assert device["buckets_ms"]["compute"] > 0
    assert [rank["rank"] for rank in analysis["timed"]] == [0, 1]
    assert all(rank["input_ms"] + rank["host_ms"] <= rank["step_ms"] for rank in analysis["timed"])
    assert min(analysis["recording"].values()) > 0
    assert json.loads((run_dir / "analysis.json").read_text(encoding="utf-8")) == analysis


def test_messages_of_default_run_are_on_standard_error(default_run: Run) -> None:
    result, run_dir = default_run
    lines = result.stderr.splitlines()
    assert all(line.startswith("gpudiag: ") for line in lines)
    order = ["training resnet20-cifar, gloo, 2 CPU processes", "starting", "warming up", "timing", "recording"]
    positions = [next(i for i, line in enumerate(lines) if f"gpudiag: {start}" in line) for start in order]
    assert positions == sorted(positions)
    assert run_dir.name in lines[-1]


def test_default_run_record_has_model_options_and_steps(default_run: Run) -> None:
    _, run_dir = default_run
    assert run_dir.name.endswith("-resnet20-cifar-gloo")
    run = run_json(run_dir)
    assert (run["schema"], run["status"], run["error"]) == ("gpudiag/run/1", "complete", None)
    assert (run["workload"], run["strategy"], run["framework"]) == ("resnet20-cifar", "gloo", "pytorch")
    assert (run["world_size"], run["nodes"], run["batch_size_per_device"]) == (2, 1, 4)
    assert run["command"][:2] == ["gpudiag", "profile"]
    assert run["model"]["parameters"] == 269_722
    assert sum(run["model"]["gradient_sizes"]) == run["model"]["gradient_bytes"] == 4 * 269_722
    assert {"python", "torch"} <= set(run["software"])
    assert run["options"]["data"] == "loader"
    timed = {len(rank["unprofiled"]["step_ms"]) for rank in run["ranks"]}
    assert len(timed) == 1
    assert {rank["warmup"]["steps"] for rank in run["ranks"]} == {run["ranks"][0]["warmup"]["steps"]}
    assert all(rank["warmup"]["automatic"] for rank in run["ranks"])


def test_default_traces_have_every_range_on_every_rank_at_the_same_steps(default_run: Run) -> None:
    _, run_dir = default_run
    for folder in ("traces", "traces/light"):
        marks_at_the_same_steps(run_dir, folder)


def marks_at_the_same_steps(run_dir: Path, folder: str) -> None:
    """Check that the traces of both ranks in `folder` have all ranges, and marks of equal steps."""
    marks = []
    for rank in (0, 1):
        names = names_in_trace(run_dir, rank, folder)
        assert any(name.startswith("aten::") for name in names) == (folder == "traces")
        assert any(name.startswith("gloo:") for name in names)
        assert {f"gpudiag.{name}" for name in ("input", "forward", "backward", "exchange", "optimizer")} <= set(names)
        marks.append([name for name in names if name.startswith("gpudiag.step#")])
    assert marks[0] == marks[1]
    assert len(marks[0]) == 6


def test_default_run_directory_has_no_temporary_files(default_run: Run) -> None:
    _, run_dir = default_run
    files = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())
    ranks = [f"{folder}/rank{rank}{end}" for folder, end in (("logs", ".log"), ("ranks", ".json")) for rank in (0, 1)]
    traces = [f"{folder}/rank{rank}.pt.trace.json.gz" for folder in ("traces", "traces/light") for rank in (0, 1)]
    whole = ["analysis.json", "facts.json", "report.html", "run.json", "step.json", "logs/launcher.log"]
    assert files == sorted([*whole, *ranks, *traces])


def test_default_run_can_be_analysed_and_drawn_again(default_run: Run) -> None:
    result, run_dir = default_run
    again = gpudiag("analyze", str(run_dir), "--json")
    assert json.loads(again.stdout)["devices"] == json.loads(result.stdout)["devices"]


def test_user_defined_function_is_profiled(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = with_forked_jobs(
        "profile", f"{OWN}:main", "--steps", "12", "--warmup", "4", "--output", str(run_dir), cwd=ROOT, **NO_GPU
    )
    assert result.returncode == 0, result.stderr
    assert "a word from the user's code" not in result.stdout + result.stderr
    assert "a word from the user's code" in (run_dir / "logs" / "rank1.log").read_text(encoding="utf-8")
    run = run_json(run_dir)
    assert (run["workload"], run["strategy"], run["batch_size_per_device"]) == (f"{OWN}:main", "own", 64)
    assert [(rank["warmup"]["steps"], rank["warmup"]["automatic"]) for rank in run["ranks"]] == [(4, False)] * 2
    assert [len(rank["unprofiled"]["step_ms"]) for rank in run["ranks"]] == [12] * 2
    assert "gpudiag.augment" in names_in_trace(run_dir, 0)
    assert not (ROOT / "ignored under gpudiag").exists()
    timed = " · ".join(result.stdout.splitlines()[1:4])
    assert "ms while profiling" in timed
    assert "mean of" in timed


@pytest.mark.apart
def test_killed_worker_ends_the_run_and_measurements_are_kept(
    endless: tuple[subprocess.Popen[str], Path],
) -> None:
    program, run_dir = endless
    victim = json.loads((run_dir / "ranks" / "rank1.json").read_text(encoding="utf-8"))["pid"]
    os.kill(victim, signal.SIGKILL)
    _, stderr = program.communicate(timeout=SECONDS)
    assert program.returncode == 5
    assert "rank 1 was ended by SIGKILL" in stderr
    assert gone(run_dir, 0)
    run = run_json(run_dir)
    assert (run["status"], run["error"]) == ("failed", "rank 1 was ended by SIGKILL")
    assert [rank["warmup"]["steps"] for rank in run["ranks"]] == [5, 5]


def test_terminated_run_leaves_no_process_and_keeps_timings(
    endless: tuple[subprocess.Popen[str], Path],
) -> None:
    program, run_dir = endless
    program.send_signal(signal.SIGTERM)
    stdout, stderr = program.communicate(timeout=SECONDS)
    assert program.returncode == 130
    assert (stdout, stderr.splitlines()[-1]) == ("", "gpudiag: interrupted")
    assert gone(run_dir, 0)
    run = run_json(run_dir)
    assert run["status"] == "interrupted"
    assert [rank["warmup"]["steps"] for rank in run["ranks"]] == [5, 5]
    assert [len(rank["unprofiled"]["step_ms"]) > 0 for rank in run["ranks"]] == [True, True]
    assert list(run_dir.parent.glob("gpudiag-*")) == []


@pytest.mark.apart
def test_workers_die_with_a_killed_gpudiag(endless: tuple[subprocess.Popen[str], Path]) -> None:
    program, run_dir = endless
    program.kill()
    program.communicate(timeout=SECONDS)
    assert gone(run_dir)
    # If the DataLoader worker of a rank ends first, the rank may report the worker's end before the rank itself ends.
    ends = ("the run did not finish", "Ended: by the launcher", "RuntimeError: DataLoader worker")
    assert run_json(run_dir)["error"].startswith(ends)
    assert list(run_dir.parent.glob("gpudiag-*")) == []


def test_failing_function_is_reported_with_rank_and_location(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = with_forked_jobs(
        "profile", "tests.commands.own_failure:fails", "--output", str(run_dir), cwd=ROOT, **NO_GPU
    )
    assert result.returncode == 5
    message, hint = result.stderr.splitlines()[-2:]
    assert message.startswith("gpudiag: rank 1: ValueError: [bold]not[/bold] my day")
    assert "\x1b" not in result.stderr
    assert "rank1.log" in hint
    assert "Traceback" not in result.stderr
    assert "Traceback" in (run_dir / "logs" / "rank1.log").read_text(encoding="utf-8")
    assert gone(run_dir, 0)


def test_loader_that_ends_early_does_not_hang_other_ranks(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = with_forked_jobs("profile", f"{OWN}:uneven", "--output", str(run_dir), cwd=ROOT, **NO_GPU)
    assert result.returncode == 5
    assert "rank 1: the loop ended after 4 steps, before warm-up was over" in result.stderr
    ranks = {rank["rank"]: rank for rank in run_json(run_dir)["ranks"]}
    assert "the loop ended after 4 steps" in ranks[1]["error"]


@pytest.mark.apart
def test_hang_ends_after_the_timeout(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = with_forked_jobs("profile", f"{OWN}:hangs", "--output", str(run_dir), "--timeout", "6", cwd=ROOT, **NO_GPU)
    assert result.returncode == 5
    assert "no progress for 6 s: " in result.stderr  # on a slow machine the hang may be reported while processes start
    assert "--timeout" in result.stderr
    assert gone(run_dir, 0)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["resnet51"], 2, "resnet20-cifar, mlp, resnet50, vgg16"),
        (["--strategy", "smoke-signals"], 2, "nccl, gloo, cpu-reduce"),
        (["--precision", "fp8"], 2, "fp32, tf32, bf16, fp16"),
        (["--memory-format", "hwcn"], 2, "nchw, nhwc"),
        (["--data", "tape"], 2, "device, host, loader"),
        (["--warmup", "soon"], 2, "'auto' or a number"),
        (["mlp", "--memory-format", "nhwc"], 2, "has no images"),
        (["--data", "device", "--loader-workers", "2"], 2, "does not go with"),
        (["a:b", "--strategy", "gloo"], 2, "your own function decides that itself"),
        (["--nnodes", "2"], 2, "--rdzv-endpoint"),
        (["--python", "/does/not/exist"], 2, "cannot be run"),
        (["--output", "/proc/cpuinfo"], 2, "is a file"),
        (["--strategy", "nccl"], 3, "needs GPUs"),
        (["--devices", "4096"], 3, "this machine has no GPU"),
    ],
)
def test_impossible_options_are_refused_at_once(tmp_path: Path, words: list[str], code: int, expected: str) -> None:
    result = in_this_process("profile", *words, cwd=tmp_path, **NO_GPU)
    assert result.returncode == code, result.stderr
    assert expected in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_interpreter_without_torch_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    result = gpudiag("profile", "--python", str(bare), cwd=tmp_path, **NO_GPU)
    assert result.returncode == 5
    assert "has no PyTorch" in result.stderr


def test_missing_module_is_refused(tmp_path: Path) -> None:
    result = with_forked_jobs("profile", "no.such.module:main", "--output", "run", cwd=tmp_path, **NO_GPU)
    assert result.returncode == 2
    assert "there is no module 'no.such.module'" in result.stderr
    assert run_json(tmp_path / "run")["status"] == "failed"
