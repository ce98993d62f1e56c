"""`gpudiag profile -- COMMAND`: drawn on standard error, as standard output is the command's own."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

import typer

from gpudiag.commands.command_line.parser import BEHIND
from gpudiag.errors import UsageError
from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.app.profile.command import Profiled
    from gpudiag.model.analysis import Analysis
    from gpudiag.training.session.progress import Progress

#: Options that say something of a command that gpudiag does not start the processes of.
_TAKEN = ("workload", "stop_after", "output", "steps", "warmup", "all_ranks", "full", "width")


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
    full: bool,
    width: int | None,
) -> int:
    """Run it, say on standard error what was found, and return its exit code."""
    from gpudiag.app.profile.command import profile_command

    notes: set[str] = set()
    begun_s = time.monotonic()

    def heard(message: Progress) -> None:
        if message.note is not None:
            said(message.note)

    def said(sentence: str) -> None:
        if sentence not in notes:
            notes.add(sentence)
            _say(sentence)

    def starting(run_dir: Path) -> None:
        _say(f"profiling `{shlex.join(command)}`, into {run_dir}")

    def measured(analysis: Analysis, run_dir: Path) -> None:
        for line in _verdict(analysis, run_dir, time.monotonic() - begun_s):
            _say(line)

    done = profile_command(
        command,
        output=output,
        stop=stop,
        steps=steps,
        warmup=warmup,
        starting=starting,
        heard=heard,
        said=said,
        measured=measured,
    )
    if done.analysis is not None:
        from gpudiag.report.console import report_console
        from gpudiag.report.terminal.report import render_analysis

        render_analysis(done.analysis, report_console(sys.stderr, width=width), all_ranks=all_ranks, full=full)
    for line in _lines(done):
        if line not in notes:
            _say(line)
    return done.exit_code


def _verdict(analysis: Analysis, run_dir: Path, after_s: float) -> list[str]:
    """Return what was found, while the job goes on: three lines."""
    from gpudiag.report import figures
    from gpudiag.report.verdict import verdict_of

    step_ms = analysis.steps.unprofiled_mean_ms or analysis.steps.mean_ms
    verdict = verdict_of(analysis)
    severity = f"{verdict.severity.upper()}: " if verdict.severity else ""
    begin = f"measured after {after_s:.0f} s: {figures.milliseconds(step_ms)} ms per step"
    lines = [f"{begin}. {severity}{verdict.title}", f"gain: {verdict.gain}" if verdict.gain else ""]
    where = shlex.quote(str(run_dir))
    lines += [f"your job goes on (--stop-after would end it here); the whole report: gpudiag analyze {where}"]
    return [line for line in lines if line]


def _lines(done: Profiled) -> list[str]:
    """How steps were found, what went wrong, and where all of it is."""
    found = done.run.steps_found
    lines = []
    if found is not None and found.by == "optimizer":
        others = f", one of {found.optimizers} optimizers" if found.optimizers > 1 else ""
        calls = f", {found.calls_per_step:.3g} calls in each" if (found.calls_per_step or 1) > 1.05 else ""
        ends = f"an evaluation of {found.optimizer}'s closure" if found.closure else f"{found.optimizer}.step"
        lines.append(f"steps: each ends with {ends}{others}{calls}")
    elif found is not None:
        lines.append(
            "steps: no optimizer of PyTorch's was seen to step, so that some seconds were recorded, none timed"
        )
    if done.run.error is not None:
        lines.append(done.run.error)
    if done.unread is not None:
        lines.append(f"what was recorded cannot be analysed: {done.unread}")
    run_dir = done.run_dir.resolve()  # without `..`
    if done.analysis is not None and any(rank.trace for rank in done.run.ranks):
        lines.append(f"saved in {run_dir}; read it again with `gpudiag analyze {shlex.quote(str(run_dir))}`")
    else:
        timed = [rank.unprofiled for rank in done.run.ranks if rank.unprofiled is not None]
        if timed:
            slowest = max(timed, key=lambda times: times.mean_ms)
            steps = f"{len(slowest.step_ms)} steps of {slowest.mean_ms:.1f} ms in the mean"
            lines.append(f"nothing was recorded; {steps} were timed without the profiler, in {run_dir}/run.json")
    return lines


def _say(line: str) -> None:
    typer.echo(f"gpudiag: {one_line(line)}", err=True)
