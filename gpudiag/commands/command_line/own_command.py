"""`gpudiag profile -- COMMAND`: drawn on standard error, as standard output is the command's own."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import typer

from gpudiag.commands.command_line.parser import BEHIND
from gpudiag.errors import UsageError
from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.app.profile.command import Profiled
    from gpudiag.training.session.progress import Progress

#: Options that say something of a command that gpudiag does not start the processes of.
_TAKEN = ("workload", "stop_after", "output", "steps", "warmup", "all_ranks", "width")


def command_behind(context: typer.Context) -> list[str] | None:
    """The words behind `--`; None where it was not given.

    Raises:
        UsageError: nothing stands behind it, or a workload before it.
    """
    command: list[str] | None = context.meta.get(BEHIND)
    if command is None:
        return None
    if not command:
        raise UsageError("no command stands behind --", "For example: gpudiag profile -- torchrun train.py")
    given = list(context.params["workload"] or ())
    if given != command:
        raise UsageError(f"{given[0]} does not go with a command behind --", "Leave it out.")
    return command


def refuse_options(context: typer.Context) -> None:
    """Raises UsageError where an option was given that a command of the user's own decides itself."""
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _TAKEN and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            hint = "Run `gpudiag analyze DIR --json` afterwards." if option == "--json" else "The command decides that."
            raise UsageError(f"{option} does not go with a command of your own", hint)


def run_own_command(
    command: Sequence[str],
    *,
    output: Path | None,
    stop: bool,
    steps: int | None,
    warmup: int | None,
    all_ranks: bool,
    width: int | None,
) -> int:
    """Run it, say on standard error what was found, and return its exit code."""
    from gpudiag.app.profile.command import profile_command

    told: set[str] = set()

    def heard(message: Progress) -> None:
        if message.note is not None and message.note not in told:
            told.add(message.note)
            _say(message.note)

    def starting(run_dir: Path) -> None:
        _say(f"profiling `{shlex.join(command)}`, into {run_dir}")

    done = profile_command(
        command, output=output, stop=stop, steps=steps, warmup=warmup, starting=starting, heard=heard
    )
    if done.analysis is not None:
        from gpudiag.report.console import report_console
        from gpudiag.report.terminal.report import render_analysis

        render_analysis(done.analysis, report_console(sys.stderr, width=width), all_ranks=all_ranks)
    for line in _lines(done):
        _say(line)
    return done.exit_code


def _lines(done: Profiled) -> list[str]:
    """How steps were found, what went wrong, and where all of it is."""
    found = done.run.steps_found
    lines = []
    if found is not None and found.by == "optimizer":
        others = f", one of {found.optimizers} optimizers" if found.optimizers > 1 else ""
        calls = f", {found.calls_per_step:.3g} calls in each" if (found.calls_per_step or 1) > 1.05 else ""
        lines.append(f"steps: each ends with {found.optimizer}.step{others}{calls}")
    elif found is not None:
        lines.append(
            "steps: no optimizer of PyTorch's was seen to step, so that some seconds were recorded, none timed"
        )
    if done.run.error is not None:
        lines.append(done.run.error)
    if done.unread is not None:
        lines.append(f"what was recorded cannot be analysed: {done.unread}")
    if done.run.ranks:
        run_dir = done.run_dir.resolve()  # without `..`
        again = f"; read it again with `gpudiag analyze {run_dir}`" if done.analysis is not None else ""
        lines.append(f"saved in {run_dir}{again}")
    return lines


def _say(line: str) -> None:
    typer.echo(f"gpudiag: {one_line(line)}", err=True)
