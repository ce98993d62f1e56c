"""Test the cause of a failed launch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.errors import GpudiagError, HardwareMissingError, UsageError, WorkerFailedError
from gpudiag.model.job import Job
from gpudiag.training.launch import Plan
from gpudiag.training.launch.failure_cause import failure_cause, hang_cause
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session.progress import SOCKET_VARIABLE, Progress, ProgressSender

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Summary of failures in the format of torchrun 2.4 to 2.13.
SUMMARY = """
gpudiag.training.jobs FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_09:20:07
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 10107)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:20:07
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 10106)
  error_file: <N/A>
"""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="gd") as short, Listener(Path(short) / "s") as open_listener:
        yield open_listener


def tell(listener: Listener, *messages: Progress) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
        sender.connect(listener._socket.getsockname())
        for message in messages:
            sender.send(msgspec.json.encode(message))
        sender.send(b"\xff no message")
    assert listener.receive(1) == list(messages)


def plan(tmp_path: Path) -> Plan:
    job = Job(workload="mlp", strategy="gloo", device="cpu", timeout_s=3)
    return Plan(job=job, run_dir=tmp_path, processes=2, threads=1)


def failed(rank: int, error: str, exit_code: int = 5, hint: str | None = None) -> Progress:
    return Progress(rank=rank, pid=1, phase="failed", error=error, exit_code=exit_code, hint=hint)


def cause(tmp_path: Path, listener: Listener, log: str) -> GpudiagError:
    (tmp_path / "log").write_text(log)
    return failure_cause(plan(tmp_path), listener, tmp_path / "log")


def test_killed_rank_is_cause_rather_than_its_peer(tmp_path: Path, listener: Listener) -> None:
    tell(listener, failed(0, "RuntimeError: Connection closed by peer"))
    error = cause(tmp_path, listener, SUMMARY)
    assert isinstance(error, WorkerFailedError)
    assert str(error) == "rank 1 was ended by SIGKILL"
    assert "memory" in error.hint


def test_ranks_ended_by_torchrun_are_not_cause(tmp_path: Path, listener: Listener) -> None:
    log = SUMMARY.replace("-9", "-15")
    assert str(cause(tmp_path, listener, log)) == "rank 1 was ended by SIGTERM"
    tell(listener, failed(0, "ValueError: mine"))
    assert str(cause(tmp_path, listener, log)) == "rank 0: ValueError: mine"


def test_first_reported_failure_is_cause(tmp_path: Path, listener: Listener) -> None:
    tell(listener, failed(1, "ValueError: mine"), failed(0, "RuntimeError: peer"))
    error = cause(tmp_path, listener, SUMMARY.replace("-9", "1"))
    assert str(error) == "rank 1: ValueError: mine"
    assert "rank1.log" in error.hint


@pytest.mark.parametrize(("exit_code", "kind"), [(2, UsageError), (3, HardwareMissingError), (5, WorkerFailedError)])
def test_failures_keep_exit_code_and_hint(
    tmp_path: Path, listener: Listener, exit_code: int, kind: type[GpudiagError]
) -> None:
    tell(listener, failed(0, "what", exit_code, "Do that."))
    error = cause(tmp_path, listener, "")
    assert type(error) is kind
    assert error.hint == "Do that."


def test_last_line_of_torchrun_is_cause_without_reports(tmp_path: Path, listener: Listener) -> None:
    error = cause(tmp_path, listener, "Traceback\nValueError: bad rendezvous\n=====\n")
    assert "ValueError: bad rendezvous" in str(error)
    assert "no output" in str(failure_cause(plan(tmp_path), listener, tmp_path / "missing"))


def test_hang_names_ranks_furthest_behind(tmp_path: Path, listener: Listener) -> None:
    assert "no training process" in str(hang_cause(plan(tmp_path), listener))
    tell(
        listener,
        Progress(rank=0, pid=1, phase="timed", steps=4, of=9),
        Progress(rank=1, pid=2, phase="warmup", steps=7),
    )
    assert str(hang_cause(plan(tmp_path), listener)) == "no progress for 3 s: rank 1 last seen in warmup, step 7"


def test_sender_without_listener_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nobody"))
    sender = ProgressSender(0)
    sender.tell("timed", 1, 2)
    sender.fail("what")
    monkeypatch.delenv(SOCKET_VARIABLE)
    ProgressSender(0).tell("timed", 1, 2)


def test_messages_within_phase_are_rate_limited(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, listener._socket.getsockname())
    sender = ProgressSender(3)
    for step in range(1000):
        sender.tell("timed", step, 1000)
    sender.tell("saving")
    heard = listener.receive(1)
    assert heard[0].steps == 0
    assert heard[-1].phase == "saving"
    assert len(heard) < 100
    assert listener.latest[3].phase == "saving"


@pytest.mark.processes
def test_hang_names_stopped_process(tmp_path: Path, listener: Listener) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        tell(
            listener,
            Progress(rank=0, pid=os.getpid(), phase="timed", steps=4, of=9),
            Progress(rank=1, pid=process.pid, phase="timed", steps=4, of=9),
        )
        error = hang_cause(plan(tmp_path), listener)
        process.kill()
    assert "rank 1 was stopped" in str(error)
