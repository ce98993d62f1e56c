"""Run a command with gpudiag loaded into its training processes, and combine the records of its ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK
from gpudiag.model.run import OWN_STRATEGY, RunRecord
from gpudiag.model.run_directory import RUN_FILE
from gpudiag.model.structs import msgspec
from gpudiag.training.attach.command_process import PYTHON_SEEN, VARIABLE, Settings
from gpudiag.training.attach.command_watch import CommandWatch, DeathWatch, Hooks, SignalForwarder, read_reports
from gpudiag.training.attach.outcome import CommandOutcome, failure_reason, warnings
from gpudiag.training.launch.launcher import private_directory
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session import record
from gpudiag.training.session.progress import SOCKET_VARIABLE, Progress

#: Folder that is put first on PYTHONPATH; it contains only `sitecustomize.py`.
ENTRY = Path(__file__).with_name("entry")


def run_command(
    settings: Settings,
    observer: Callable[[Progress], None],
    *,
    on_warning: Callable[[str], None] = lambda _sentence: None,
    on_measured: Callable[[RunRecord], None] = lambda _run: None,
) -> tuple[int, RunRecord]:
    """Run the command to its end.

    Args:
        settings: the command and its measurement settings.
        observer: called with each progress message of each process.
        on_warning: called with each warning for the user, one sentence.
        on_measured: called once with the run's record when all ranks are measured, while the command still runs. It
            must return quickly. It is not called if there is no trace, or if the record could not be saved.

    Returns:
        The command's exit code, or 128 plus the number of the signal that ended the command; and the run's record.

    Raises:
        UsageError: there is no such command.
        OSError: gpudiag's files cannot be written; the command was not started.
    """
    run_dir = Path(settings.run_dir)
    record.clear_run(run_dir, 0)  # with 0, files of all ranks are removed too
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    signals = SignalForwarder()
    with private_directory() as private, DeathWatch() as deaths:
        socket, reports = private / "progress", private / "reports"
        os.mkdir(reports, 0o700)  # noqa: PTH102  # with this mode
        run_id = settings.run_id or secrets.token_hex(8)
        settings = dataclasses.replace(settings, reports=str(reports), run_id=run_id)

        def all_measured() -> None:
            run = _combine(settings, created)
            if any(rank.trace for rank in run.ranks) and _save(run_dir, run) is None:
                on_measured(run)

        with Listener(socket) as listener, signals.taking():
            try:
                process = subprocess.Popen(settings.command, env=environment(settings, socket, os.environ))
            except OSError as error:
                raise UsageError(
                    f"{settings.command[0]} cannot be run: {error.strerror}", "Check the command."
                ) from error
            signals.begin(process)
            hooks = Hooks(on_message=observer, on_warning=on_warning, on_measured=all_measured)
            watch = CommandWatch(process, listener, hooks, deaths=deaths, signals=signals, reports=reports)
            code = watch.run(stop=settings.stop)
        outcome = CommandOutcome(
            settings=settings,
            code=code,
            ranks=record.read_ranks(run_dir),
            python_seen=(reports / PYTHON_SEEN).exists(),
            reports=read_reports(reports),
            deaths=dict(deaths.deaths),
            latest=dict(listener.latest),
            forwarded=tuple(signals.forwarded),
        )
    for warning in warnings(outcome):
        on_warning(warning)
    for claimed in (run_dir / record.RANKS_DIR).glob(".rank*"):  # files of `attachment.claim`
        claimed.unlink(missing_ok=True)
    run = _combine(settings, created, error=failure_reason(outcome))
    unsaved = _save(run_dir, run)
    if unsaved is not None:
        on_warning(unsaved)
    return code, run


def environment(settings: Settings, socket: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment: `inherited`, settings, `socket` for progress, and `entry` on PYTHONPATH."""
    values = dict(inherited)
    values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ENTRY), inherited.get("PYTHONPATH"))))
    values[VARIABLE] = settings.encode()
    values[SOCKET_VARIABLE] = str(socket)
    # Keep PyTorch's profiler from logging into the command's output.
    values.setdefault("KINETO_LOG_LEVEL", "99")
    return values


def _combine(settings: Settings, created: str, error: str | None = None) -> RunRecord:
    """Return the run's record that rank 0 wrote, with all ranks and the error.

    If rank 0 wrote none, return a new record. `created` is the time of the command's start in ISO 8601.
    """
    run_dir = Path(settings.run_dir)
    ranks = record.read_ranks(run_dir)
    world_size = max((rank.rank for rank in ranks), default=0) + 1
    default = RunRecord(
        created=created,
        command=settings.command,
        workload=Path(settings.command[0]).name,
        framework=DEFAULT_FRAMEWORK,
        strategy=OWN_STRATEGY,
        world_size=world_size,
        nodes=1,
        batch_size_per_device=None,
        status="failed",
    )
    status = "complete" if error is None else "failed"
    run = record.final_run(run_dir, default, ranks=ranks, status=status, error=error)
    # A rank that is measured separately writes a world size that covers only itself.
    return msgspec.structs.replace(run, world_size=max(world_size, run.world_size))


def _save(run_dir: Path, run: RunRecord) -> str | None:
    """Save the record. Return None, or the reason in one sentence if the record cannot be saved."""
    try:
        record.write_run(run_dir, run)
    except OSError as error:
        with contextlib.suppress(OSError):
            (run_dir / RUN_FILE).unlink(missing_ok=True)  # the record of an earlier run must not remain
        return f"the measurements cannot be saved in {run_dir}: {error.strerror or error}"
    return None
