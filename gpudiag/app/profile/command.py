"""`gpudiag profile -- COMMAND`: run and record the user's own command, and analyse the recording."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.app.analyze import analyze_run
from gpudiag.app.profile.early_analysis import EarlyAnalysis
from gpudiag.app.report import REPORT_FILE, run_html, step_beside
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.probes.cache import cached_measurements
from gpudiag.model.analysis import Analysis
from gpudiag.model.facts import Facts, nccl_transport
from gpudiag.model.run import RunRecord
from gpudiag.model.run_directory import FACTS_FILE, locked, write_json
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.start import run_command
from gpudiag.training.session.progress import Progress


class ProfiledCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command that has ended.

    Attributes:
        analysis: None if nothing was recorded or the recording cannot be analysed.
        analysis_error: reason why the recording cannot be analysed; None if it can.
    """

    exit_code: int
    run_dir: Path
    run: RunRecord
    analysis: Analysis | None = None
    analysis_error: str | None = None


def profile_command(
    command: Sequence[str],
    *,
    output: Path | None,
    stop: bool,
    steps: int | None,
    warmup: int | None,
    on_start: Callable[[Path], None],
    on_message: Callable[[Progress], None],
    on_warning: Callable[[str], None],
    on_analysis: Callable[[Analysis, Path], None],
) -> ProfiledCommand:
    """Run the command, and analyse its recording.

    Args:
        command: as the user would start it.
        output: the run directory; None for a new one.
        stop: end the command when the measurement is complete.
        steps, warmup: numbers of unprofiled and of warm-up steps; None to choose them by the step times.
        on_start: called with the run directory before the command starts.
        on_message: called with each message of the command's processes.
        on_warning: called with each warning for the user.
        on_analysis: called in another thread with the analysis and the run directory when the measurement is complete,
            if the command continues.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command '{command[0]}'", "Write it as you would start it: -- torchrun … train.py"
        )
    facts = gather_inventory()
    facts = cached_measurements(facts, nccl_transport(p2p=True)) or facts  # links measured earlier, if any
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    run_dir = _run_directory(output, command)
    with locked(run_dir):
        _write_facts(run_dir, facts)
        on_start(run_dir)
        settings = Settings(run_dir=str(run_dir), command=tuple(command), stop=stop, steps=steps, warmup=warmup)
        early = EarlyAnalysis(lambda analysis: on_analysis(analysis, run_dir))
        try:
            code, run = run_command(
                settings,
                on_message,
                on_warning=on_warning,
                # With `stop` the command ends after the measurement, so an early analysis would save no time.
                on_measured=lambda _run: None if stop else early.begin(run_dir),
            )
        except OSError as error:
            raise GpudiagError(
                f"gpudiag's own files cannot be written: {error.strerror or error}",
                "The command was not started. Set TMPDIR to a directory with free space.",
            ) from error
        finally:
            early.end()
        return _analysed(ProfiledCommand(exit_code=code, run_dir=run_dir, run=run))


def _analysed(profiled: ProfiledCommand) -> ProfiledCommand:
    """Add the analysis of the recording, or why it failed, and write its report. Without traces, do nothing."""
    run_dir = profiled.run_dir
    if not any(rank.trace for rank in profiled.run.ranks):
        return profiled
    try:
        analysis = analyze_run(run_dir)
        run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    except GpudiagError as error:
        return msgspec.structs.replace(profiled, analysis_error=f"{error} {error.hint}")
    except OSError as error:
        reason = f"{run_dir} cannot be written: {error.strerror or error}"
        return msgspec.structs.replace(profiled, analysis_error=reason)
    return msgspec.structs.replace(profiled, analysis=analysis)


def _write_facts(run_dir: Path, facts: Facts) -> None:
    """Write the facts of the machine; raise GpudiagError if the directory cannot be written."""
    try:
        write_json(run_dir / FACTS_FILE, facts)
    except OSError as error:
        raise GpudiagError(
            f"{run_dir} cannot be written: {error.strerror or error}",
            "The command was not started. Choose another directory with --output.",
        ) from error


def _run_directory(output: Path | None, command: Sequence[str]) -> Path:
    """Return `output`, or else a new directory in the current directory, or if this fails, a temporary directory."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_script(command)}"
    directory = (output or Path("gpudiag-runs") / name).absolute()
    if ".." in directory.parts:
        directory = directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):  # checks that the directory is writable
            return directory
    except OSError as error:
        if output is not None:
            raise UsageError(
                f"--output {output} cannot be written: {error.strerror or error}", "Choose another directory."
            ) from error
        return Path(tempfile.mkdtemp(prefix=f"gpudiag-{name}-"))


def _script(command: Sequence[str]) -> str:
    """Return the name of the command's script, or of its program."""
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem.replace(os.sep, "-")
