"""`gpudiag doctor`: check what stands in the way of a job before it runs."""

import sys
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import Json, Python, Width
from gpudiag.commands.command_line.output import show

EXAMPLES = (
    ("gpudiag doctor", "check this machine and this interpreter for a job with one rank per GPU"),
    ("gpudiag doctor --python /opt/job/bin/python --ranks 8", "check another interpreter, for eight ranks"),
    ("gpudiag doctor --json", "for an issue or a ticket; has no name of host or user"),
    ("gpudiag doctor --fail-on blocked", "in a job script: exit code 1 if the job cannot work"),
)


def doctor(
    *,
    as_json: Json = False,
    python: Python = None,
    framework: Annotated[
        str, typer.Option("--framework", metavar="torch|tensorflow", help="Framework of the job.")
    ] = "torch",
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", min=1, metavar="N", help="Training processes on this machine. Default: one per GPU, or 2."
        ),
    ] = None,
    copies: Annotated[
        bool, typer.Option("--copies/--no-copies", help="Copy between the GPUs; the only check that uses them.")
    ] = True,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Time limit of each reading, in seconds.")
    ] = 20.0,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="blocked|warning", help="Exit with code 1 if a check has this status or a worse one."
        ),
    ] = None,
    width: Width = None,
) -> None:
    """Check what stands in the way of a job before it runs, and how to mend it.

    Needs no root, and ends in time even if a driver or a GPU hangs. The exit code is 0, with warnings too, unless
    --fail-on is given.
    """
    from gpudiag.app.doctor import DoctorOptions
    from gpudiag.app.doctor import doctor as run
    from gpudiag.commands.command_line.options import known_word
    from gpudiag.model.checkup import worst_status
    from gpudiag.report.facts.doctor import render_checkup
    from gpudiag.training.frameworks.registry import framework_option

    threshold = known_word("--fail-on", fail_on, ("blocked", "warning"))
    options = DoctorOptions(
        python=python or sys.executable,
        framework=framework_option(framework).name,
        ranks=ranks,
        copies=copies,
        limit_s=timeout,
    )
    checkup = run(options)
    show(checkup, render_checkup, as_json=as_json, width=width)
    worst = worst_status(checkup)
    if threshold is not None and worst in {"blocked", threshold}:
        typer.echo(f"gpudiag: --fail-on {threshold} was crossed", err=True)
        raise typer.Exit(1)
