"""`gpudiag profile -- COMMAND`. The report goes to standard error; the command writes to standard output."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from typing import TYPE_CHECKING

import typer

from gpudiag.commands.command_line.output import from_here
from gpudiag.commands.command_line.parser import AFTER_SEPARATOR
from gpudiag.errors import UsageError
from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.app.profile.command import ProfiledCommand
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.run import RunRecord
    from gpudiag.training.session.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options of `gpudiag profile` that apply to the user's own command. Fields are named like the CLI parameters."""

    stop_after: bool
    output: Path | None
    steps: int | None
    warmup: int | None
    all_ranks: bool
    full: bool
    width: int | None


#: Names of the parameters that apply to the user's own command.
_APPLICABLE = {"workload", "no_source", *(field.name for field in dataclasses.fields(CommandOptions))}


def command_after_separator(context: typer.Context) -> list[str] | None:
    """Return the words after `--`; None if there is no `--`.

    Raises:
        UsageError: no word follows `--`, or a workload precedes it.
    """
    command: list[str] | None = context.meta.get(AFTER_SEPARATOR)
    if command is None:
        return None
    if not command:
        raise UsageError("no command follows --", "For example: gpudiag profile -- torchrun train.py")
    given = list(context.params["workload"] or ())
    if given != command:  # the parser takes the words before and after `--` together as the workload
        raise UsageError(f"{given[0]} does not go with a command after --", "Leave it out.")
    return command


def refuse_other_options(context: typer.Context) -> None:
    """Raise UsageError if an option is given that does not apply to the user's own command."""
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _APPLICABLE and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            hint = "Run `gpudiag analyze DIR --json` afterwards." if option == "--json" else "The command decides that."
            raise UsageError(f"{option} does not go with your own command", hint)


def run_user_command(command: Sequence[str], options: CommandOptions) -> int:
    """Run the command, print the diagnosis on standard error, and return the command's exit code."""
    from gpudiag.app.profile.command import profile_command

    notes: set[str] = set()  # sentences already printed; several ranks may send the same sentence
    begun_s = time.monotonic()

    def note(sentence: str) -> None:
        if sentence not in notes:
            notes.add(sentence)
            _say(sentence)

    def on_message(message: Progress) -> None:
        if message.note is not None:
            note(message.note)

    def on_start(run_dir: Path) -> None:
        _say(f"profiling `{shlex.join(command)}`, into {run_dir}")

    def on_analysis(analysis: Analysis, run_dir: Path) -> None:
        for line in _verdict(analysis, run_dir, time.monotonic() - begun_s):
            _say(line)

    profiled = profile_command(
        command,
        output=options.output,
        stop=options.stop_after,
        steps=options.steps,
        warmup=options.warmup,
        on_start=on_start,
        on_message=on_message,
        on_warning=note,
        on_analysis=on_analysis,
    )
    if profiled.analysis is not None:
        from gpudiag.app.report import REPORT_FILE
        from gpudiag.report.console import report_console
        from gpudiag.report.terminal.report import render_analysis

        console = report_console(sys.stderr, width=options.width)
        render_analysis(
            profiled.analysis,
            console,
            all_ranks=options.all_ranks,
            full=options.full,
            paths=[from_here(profiled.run_dir)],
            page=from_here(profiled.run_dir / REPORT_FILE),
        )
    for line in _closing_lines(profiled):
        if line not in notes:
            _say(line)
    return profiled.exit_code


def _verdict(analysis: Analysis, run_dir: Path, after_s: float) -> list[str]:
    """Return up to five lines with the diagnosis, for a job that is still running after `after_s` seconds."""
    from gpudiag.report import figures
    from gpudiag.report.header import real_step_ms
    from gpudiag.report.terminal.brief import gain, location
    from gpudiag.report.verdict import verdict_of

    verdict = verdict_of(analysis)
    severity = f"{verdict.severity.upper()}: " if verdict.severity else ""
    begin = f"measured after {after_s:.0f} s: {figures.milliseconds(real_step_ms(analysis))} ms per step"
    lines = [f"{begin}. {severity}{verdict.title}", f"gain: {gain(verdict)}" if verdict.gain else ""]
    lines += [f"where: {', '.join(location(verdict, analysis))}" if location(verdict, analysis) else ""]
    lines += [f"try: {verdict.steps[0]}" if verdict.advised else ""]
    command = f"gpudiag analyze {shlex.quote(from_here(run_dir))} --full"
    lines += [f"your job goes on (--stop-after would end it here); full report: {command}"]
    return [line for line in lines if line]


def _closing_lines(profiled: ProfiledCommand) -> list[str]:
    """Return lines that state how steps were found, what failed, and where the results are."""
    run = profiled.run
    lines = _step_lines(run)
    if run.error is not None:
        lines.append(run.error)
    if profiled.analysis_error is not None:
        lines.append(f"the recording cannot be analysed: {profiled.analysis_error}")
    run_dir = profiled.run_dir.resolve()  # without `..`
    if profiled.analysis is not None and any(rank.trace for rank in run.ranks):
        lines.append(f"saved in {run_dir}")
        return lines
    unprofiled = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
    if unprofiled:
        slowest = max(unprofiled, key=lambda times: times.mean_ms)
        steps = f"{len(slowest.step_ms)} steps of {slowest.mean_ms:.1f} ms on average"
        lines.append(f"nothing was recorded; {steps} were timed without the profiler, in {run_dir}/run.json")
    return lines


def _step_lines(run: RunRecord) -> list[str]:
    """Return a line that states how the ends of steps were found."""
    boundary = run.steps_found
    if boundary is None:
        return []
    if boundary.by != "optimizer":
        return ["steps: no PyTorch optimizer step was seen; some seconds were recorded and no steps were timed"]
    others = f", one of {boundary.optimizers} optimizers" if boundary.optimizers > 1 else ""
    # A mean that is hardly above one call per step is not worth mentioning.
    calls = f", {boundary.calls_per_step:.3g} calls in each" if (boundary.calls_per_step or 1) > 1.05 else ""
    end = f"an evaluation of {boundary.optimizer}'s closure" if boundary.closure else f"{boundary.optimizer}.step"
    return [f"steps: each ends with {end}{others}{calls}"]


def _say(line: str) -> None:
    typer.echo(f"gpudiag: {one_line(line)}", err=True)
