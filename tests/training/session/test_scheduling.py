"""Test that the kernel's scheduling figures show a thread that shares its core and a thread that sleeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from gpudiag.model.run import Scheduling, UnprofiledSteps
from tests.forked import ROOT, run_forked

pytestmark = pytest.mark.processes

#: This program runs steps of a session on one core: `busy` computes while a second process uses the core, and `idle`
#: sleeps.
PROGRAM = """
import json, os, subprocess, sys, time
import gpudiag
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
kind, run_dir = sys.argv[1:]
def work():
    if kind == "idle":
        time.sleep(0.02)
        return
    until = time.thread_time_ns() + 10_000_000
    while time.thread_time_ns() < until:
        pass
other = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) if kind == "busy" else None
try:
    with gpudiag.profile(run_dir, warmup=1, steps=40, active=3) as prof:
        for number in prof.steps(range(60)):
            work()
finally:
    if other is not None:
        other.kill()
"""


def scheduling(kind: str, run_dir: Path) -> tuple[Scheduling, float]:
    """Return the scheduling figures of a step, and its duration."""
    done = run_forked(PROGRAM, kind, str(run_dir), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    rank = json.loads((run_dir / "ranks" / "rank0.json").read_text())
    if rank["timed"]["scheduling"] is None:
        pytest.skip("this kernel does not count")
    return msgspec.convert(rank["timed"]["scheduling"], Scheduling), rank["unprofiled"]["mean_ms"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone")
def test_thread_on_shared_core_waits_for_core(tmp_path: Path) -> None:
    busy, step_ms = scheduling("busy", tmp_path / "busy")
    assert busy.run_queue_wait_ms > 0.2 * step_ms, "half of the time goes to the other process"
    assert busy.cpu_ms + busy.run_queue_wait_ms == pytest.approx(step_ms, rel=0.1)
    assert busy.involuntary_switches > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone")
def test_thread_that_sleeps_does_not_wait_for_a_core(tmp_path: Path) -> None:
    idle, step_ms = scheduling("idle", tmp_path / "idle")
    assert idle.cpu_ms < 0.5 * step_ms
    assert idle.cpu_ms + idle.run_queue_wait_ms < step_ms


def test_records_without_scheduling_are_readable() -> None:
    assert msgspec.json.decode(b'{"host_ms": [1.0]}', type=UnprofiledSteps).scheduling is None
