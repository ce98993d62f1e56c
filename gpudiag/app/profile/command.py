"""`gpudiag profile -- COMMAND`: the user's own command, unchanged, and the analysis of what it did."""

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
from gpudiag.app.report import REPORT_FILE, run_html, step_beside
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.probes.cache import cached_measurements
from gpudiag.model.analysis import Analysis
from gpudiag.model.facts import nccl_transport
from gpudiag.model.run import RunRecord
from gpudiag.model.run_directory import FACTS_FILE, write_json
from gpudiag.training.attach.settings import Settings
from gpudiag.training.attach.start import run_command
from gpudiag.training.session.progress import Progress


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended. `analysis`: None where nothing was recorded that could be; `unread` says why."""

    exit_code: int
    run_dir: Path
    run: RunRecord
    analysis: Analysis | None = None
    unread: str | None = None


def profile_command(
    command: Sequence[str],
    *,
    output: Path | None,
    stop: bool,
    steps: int | None,
    warmup: int | None,
    starting: Callable[[Path], None],
    heard: Callable[[Progress], None],
) -> Profiled:
    """Run the command, and analyse what was recorded of it.

    Args:
        command: as the user would start it.
        output: the run directory; None for one of gpudiag's own choice.
        stop: end it when all is measured.
        steps, warmup: as of `gpudiag profile`.
        starting: called with the run directory before the command is started.
        heard: called with what its processes tell.

    Raises:
        UsageError: there is no such command, or the directory asked for cannot be written.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command '{command[0]}'", "Write it as you would start it: -- torchrun … train.py"
        )
    run_dir = _run_directory(output, command)
    facts = gather_inventory()
    facts = cached_measurements(facts, nccl_transport(p2p=True)) or facts
    write_json(run_dir / FACTS_FILE, msgspec.structs.replace(facts, findings=examine_facts(facts)))
    starting(run_dir)
    told = Settings(run_dir=str(run_dir), command=tuple(command), stop=stop, steps=steps, warmup=warmup)
    code, run = run_command(told, heard)
    done = Profiled(exit_code=code, run_dir=run_dir, run=run)
    if not any(rank.trace for rank in run.ranks):
        return done
    try:
        analysis = analyze_run(run_dir)
        run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    except GpudiagError as error:
        return msgspec.structs.replace(done, unread=f"{error} {error.hint}")
    return msgspec.structs.replace(done, analysis=analysis)


def _run_directory(output: Path | None, command: Sequence[str]) -> Path:
    """The directory asked for, else one of its own here, else, where nothing can be written here, a temporary one."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_script(command)}"
    wanted = (output or Path("gpudiag-runs") / name).absolute()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        if output is not None:
            raise UsageError(
                f"--output {output} cannot be written: {error.strerror or error}", "Choose another place."
            ) from error
        return Path(tempfile.mkdtemp(prefix=f"gpudiag-{name}-"))


def _script(command: Sequence[str]) -> str:
    """What the command is about: its script where it names one."""
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem.replace(os.sep, "-")
