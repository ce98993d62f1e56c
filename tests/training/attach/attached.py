"""Run gpudiag in this process, and its command in forks of a process that has imported PyTorch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.run import RankRecord, RunRecord
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.start import run_command
from tests.forked_jobs import forked_commands

#: A run has 6 steps to find step boundaries, 1 step for the start, 2 warm-up steps, 5 unprofiled steps, and for each of
#: two recordings 2 discarded and 6 recorded steps.
QUICK: dict[str, Any] = {"warmup": 2, "steps": 5, "patience_s": 60.0}
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
#: Program that starts two ranks.
TWO_RANKS = str(Path(__file__).with_name("two_ranks.py"))

Attach = Callable[..., tuple[int, RunRecord, str, str]]


def attached(
    run_dir: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *command: str,
    separate: bool = False,
    **options: Any,
) -> tuple[int, RunRecord, str, str]:
    """Run a command under gpudiag; return (exit code, record, output, errors and warnings).

    Args:
        separate: start the command as a separate process, which imports PyTorch itself.
        options: fields of `Settings` that replace those of `QUICK`.
    """
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    run_dir.mkdir()
    capfd.readouterr()
    settings = Settings(run_dir=str(run_dir), command=(sys.executable, *command), **{**QUICK, **options})
    notes: list[str] = []
    forks = forked_commands(starts=2 if command[0] == TWO_RANKS else 0)
    with contextlib.nullcontext() if separate else forks:
        code, run = run_command(settings, lambda message: notes.append(message.note or ""), on_warning=notes.append)
    out, err = capfd.readouterr()
    return code, run, out, err + "\n".join(notes)


def whole(rank: RankRecord) -> bool:
    """Return True if unprofiled steps and both traces of the rank were recorded."""
    timed = rank.unprofiled is not None and rank.timed is not None
    return timed and rank.error is None and rank.trace is not None and rank.light_trace is not None
