"""`gpudiag selftest`: check the diagnosis of faults of known size."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.app.selftest.catalogue import FAULTS, WELL_BUILT, catalogue_entry
from gpudiag.commands.command_line.options import Devices, Json, Python, Timeout, Width, split_words, this_command
from gpudiag.commands.command_line.output import show
from gpudiag.errors import UsageError
from gpudiag.model.job import RunOptions
from gpudiag.training.frameworks.registry import framework_option

if TYPE_CHECKING:
    from gpudiag.model.benchmarks.selftest import Selftest

EXAMPLES = (
    ("gpudiag selftest", "all faults on all GPUs, or on 2 CPU processes where there is none"),
    ("gpudiag selftest --quick", "the same on one workload, with fewer steps"),
    ("gpudiag selftest --faults late-loader,sync", "two of them"),
    ("gpudiag selftest --jobs compiled", "a well-built job, which must raise no alarm"),
    ("gpudiag selftest --from gpudiag-runs/20260301-120000-selftest", "judge the runs of an earlier one again"),
)


def selftest(
    *,
    framework: Annotated[str, typer.Option(metavar="torch|tensorflow", help="Framework of the training.")] = "torch",
    quick: Annotated[bool, typer.Option("--quick", help="One workload, and fewer steps of each fault.")] = False,
    devices: Devices = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=f"Inject only these: {', '.join(FAULTS)}.", show_default=False),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=f"Record these well-built jobs: {', '.join(WELL_BUILT)}.", show_default=False),
    ] = None,
    workloads: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Train only these: resnet50, gpt on GPUs; resnet20-cifar on CPUs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory of runs. Default: gpudiag-runs/<time>-selftest.", show_default=False
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Train nothing; analyse and judge the runs in DIR again."),
    ] = None,
    python: Python = None,
    timeout: Timeout = 300.0,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the table to this file.")
    ] = None,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Check gpudiag itself on this machine.

    Injects known faults into training, one at a time, and measures the true cost of each without the profiler (steps
    with it against steps without it, by turns). Diagnoses a trace of each and compares. Exits with code 1 if a verdict
    is wrong.
    """
    run = RunOptions(
        workload="selftest",
        framework=framework_option(framework).name,
        devices=devices,
        python=python or sys.executable,
        timeout_s=timeout,
        command=this_command(),
    )
    fault_names, job_names = split_words(faults), split_words(jobs)
    for name in (*fault_names, *job_names):
        catalogue_entry(name)
    from gpudiag.app.selftest.selftest import SelftestRequest, default_output, judge_directory
    from gpudiag.app.selftest.selftest import selftest as run_selftest

    if source is not None:
        given = {"--faults": faults, "--jobs": jobs, "--workloads": workloads, "--output": output, "--devices": devices}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} does not go with --from, which trains nothing", "Leave one of them out.")
        result, directory = judge_directory(source), source
    else:
        from gpudiag.commands.progress.status_line import FaultProgress

        directory = output or default_output()
        request = SelftestRequest(
            run=run, output=directory, faults=fault_names, jobs=job_names, workloads=split_words(workloads), quick=quick
        )
        with FaultProgress() as progress:
            result = run_selftest(request, progress.heard, progress.say)
    _show(result, directory, as_json=as_json, width=width, markdown=markdown)
    if not result.passed:
        raise typer.Exit(1)


def _show(result: "Selftest", directory: Path, *, as_json: bool, width: int | None, markdown: Path | None) -> None:
    """Print the result as JSON or as a table, and write it as Markdown if `markdown` is given."""
    if markdown is not None:
        from gpudiag.app.report import write_text
        from gpudiag.report.terminal.selftest import markdown as as_markdown

        write_text(markdown, as_markdown(result))
    from gpudiag.report.terminal.selftest import render_selftest

    show(result, render_selftest, as_json=as_json, width=width)
    typer.echo(f"gpudiag: saved in {directory}", err=True)
