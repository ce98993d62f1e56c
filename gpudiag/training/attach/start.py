"""Run a command whose training processes are entered, and bring together what they have left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpudiag.errors import UnreadableInputError, UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK, OWN_STRATEGY
from gpudiag.model.run import RUN_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import RUN_FILE, read_json
from gpudiag.model.structs import msgspec
from gpudiag.training.attach.outcome.outcome import Outcome, remarks, what_went_wrong
from gpudiag.training.attach.outcome.process_report import PYTHON_SEEN, read_reports
from gpudiag.training.attach.settings import VARIABLE, Settings
from gpudiag.training.attach.watch.command_watch import CommandWatch, Hooks, make_folder
from gpudiag.training.attach.watch.deaths import DeathWatch
from gpudiag.training.attach.watch.forward_signals import SignalForwarder
from gpudiag.training.launch.launcher import private_directory
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session import record
from gpudiag.training.session.progress import SOCKET_VARIABLE, Progress

#: Put first on PYTHONPATH; holds nothing but `sitecustomize.py`.
ENTRY = Path(__file__).with_name("entry")

_RANK_FILE = re.compile(r"rank(\d+)\.json")


def run_command(
    told: Settings,
    observer: Callable[[Progress], None],
    *,
    said: Callable[[str], None] = lambda _sentence: None,
    measured: Callable[[RunRecord], None] = lambda _run: None,
) -> tuple[int, RunRecord]:
    """Run the command to its end.

    Args:
        told: the command and how it is to be measured.
        observer: called with each message of each of its processes.
        said: called with what the user should know, in a sentence.
        measured: called once with the run as it is recorded when all ranks are measured, while the command goes on. It
            must return soon.

    Returns:
        The command's exit code, 128 more than the number of the signal that ended it; and the run as it is recorded.

    Raises:
        UsageError: there is no such command.
        OSError: gpudiag's own files cannot be written; the command has not been started.
    """
    run_dir = Path(told.run_dir)
    record.clear_run(run_dir, 0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    signals = SignalForwarder()
    with private_directory() as private, DeathWatch() as deaths:
        socket, reports = private / "progress", make_folder(private)
        told = dataclasses.replace(told, reports=str(reports), run_id=told.run_id or secrets.token_hex(8))

        def all_measured() -> None:
            run = _record(told, created)
            if any(rank.trace for rank in run.ranks) and _saved(run_dir, run) is None:
                measured(run)

        with Listener(socket, 0) as listener, signals.taking():
            try:
                process = subprocess.Popen(told.command, env=environment(told, socket, os.environ))
            except OSError as error:
                raise UsageError(f"{told.command[0]} cannot be run: {error.strerror}", "Check the command.") from error
            signals.begin(process)
            hooks = Hooks(heard=observer, said=said, measured=all_measured)
            watch = CommandWatch(process, listener, hooks, deaths=deaths, signals=signals, reports=reports)
            code = watch.run(stop=told.stop)
        outcome = Outcome(
            told=told,
            code=code,
            ranks=_ranks(run_dir),
            python_seen=(reports / PYTHON_SEEN).exists(),
            reports=read_reports(reports),
            deaths=dict(deaths.deaths),
            latest=dict(listener.latest),
            forwarded=tuple(signals.forwarded),
        )
    for remark in remarks(outcome):
        said(remark)
    for claimed in (run_dir / record.RANKS_DIR).glob(".rank*"):
        claimed.unlink(missing_ok=True)
    run = _record(told, created, error=what_went_wrong(outcome))
    lost = _saved(run_dir, run)
    if lost is not None:
        said(lost)
    return code, run


def environment(told: Settings, socket: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: the user's own, with the entry first on PYTHONPATH."""
    values = dict(inherited)
    values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ENTRY), inherited.get("PYTHONPATH"))))
    values[VARIABLE] = told.encode()
    values[SOCKET_VARIABLE] = str(socket)
    # Else PyTorch's profiler writes of its doings among what the command prints.
    values.setdefault("KINETO_LOG_LEVEL", "99")
    return values


def _ranks(run_dir: Path) -> tuple[RankRecord, ...]:
    numbers = [
        int(match[1])
        for path in (run_dir / record.RANKS_DIR).glob("rank*.json")
        if (match := _RANK_FILE.fullmatch(path.name))
    ]
    return record.read_ranks(run_dir, max(numbers, default=-1) + 1)


def _record(told: Settings, created: str, error: str | None = None) -> RunRecord:
    """What rank 0 wrote, with all ranks' records as they are now, and what went wrong."""
    run_dir = Path(told.run_dir)
    ranks = _ranks(run_dir)
    world_size = max((rank.rank for rank in ranks), default=0) + 1
    try:
        known = read_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    except UnreadableInputError:
        known = RunRecord(
            created=created,
            command=told.command,
            workload=Path(told.command[0]).name,
            framework=DEFAULT_FRAMEWORK,
            strategy=OWN_STRATEGY,
            world_size=world_size,
            nodes=1,
            batch_size_per_device=None,
            status="failed",
        )
    return msgspec.structs.replace(
        known,
        # Ranks that train each for itself know of themselves only.
        world_size=max(world_size, known.world_size),
        ranks=ranks,
        status="complete" if error is None else "failed",
        error=error,
    )


def _saved(run_dir: Path, run: RunRecord) -> str | None:
    """Save the record; return why it could not be, in one sentence."""
    try:
        record.write_run(run_dir, run)
    except OSError as error:
        with contextlib.suppress(OSError):
            (run_dir / RUN_FILE).unlink(missing_ok=True)  # what an earlier moment left would say otherwise
        return f"what was measured cannot be saved in {run_dir}: {error.strerror or error}"
    return None
