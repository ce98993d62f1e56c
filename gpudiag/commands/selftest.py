"""`gpudiag selftest`: faults of known size, and what the diagnosis makes of them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.options import Devices, Json, Python, Timeout, Width
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.job import FRAMEWORKS
from gpudiag.selftest.catalogue import CATALOGUE, catalogue_entry

if TYPE_CHECKING:
    from gpudiag.model.selftest import Selftest

EXAMPLES = (
    ("gpudiag selftest", "all faults on all GPUs, or on 2 CPU processes where there is none"),
    ("gpudiag selftest --quick", "the same on one workload, with fewer steps"),
    ("gpudiag selftest --faults late-loader,sync", "two of them"),
    ("gpudiag selftest --from gpudiag-runs/20260301-120000-selftest", "judge the runs of an earlier one again"),
)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def selftest(
    *,
    framework: Annotated[str, typer.Option(metavar="torch|tensorflow", help="What trains.")] = "torch",
    quick: Annotated[bool, typer.Option("--quick", help="One workload, and fewer steps of each fault.")] = False,
    devices: Devices = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=f"Put in only these: {', '.join(CATALOGUE)}.", show_default=False),
    ] = None,
    workloads: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Train only these: resnet50, gpt on GPUs; resnet20-cifar on CPUs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where runs go. Default: gpudiag-runs/<time>-selftest.", show_default=False),
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

    Trains with faults of known kind put in one at a time, measures without the profiler what each really costs (steps
    with it against steps without it, by turns), diagnoses a trace of each, and compares. Exit code 1 when a verdict
    is wrong.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"--framework knows no '{framework}'", f"There are: {', '.join(FRAMEWORKS)}.")
    names = _words(faults)
    for name in names:
        catalogue_entry(name)
    from gpudiag.selftest.trial import Asked, default_output, judge_directory
    from gpudiag.selftest.trial import selftest as run_selftest

    if source is not None:
        given = {"--faults": faults, "--workloads": workloads, "--output": output, "--devices": devices}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} does not go with --from, which trains nothing", "Leave one of them out.")
        result, place = judge_directory(source), source
    else:
        from gpudiag.commands.fault_progress import FaultProgress

        place = output or default_output()
        asked = Asked(
            output=place,
            faults=names,
            workloads=_words(workloads),
            quick=quick,
            devices=devices,
            python=python or sys.executable,
            timeout_s=timeout,
            framework=FRAMEWORKS[framework],
            command=("gpudiag", *sys.argv[1:]),
        )
        with FaultProgress() as progress:
            result = run_selftest(asked, progress.heard, progress.say)
    _show(result, place, as_json=as_json, width=width, markdown=markdown)
    if not result.passed:
        raise typer.Exit(1)


def _show(result: "Selftest", place: Path, *, as_json: bool, width: int | None, markdown: Path | None) -> None:
    if markdown is not None:
        from gpudiag.reporting import selftest_table

        try:
            markdown.write_text(selftest_table.markdown(result), encoding="utf-8")
        except OSError as error:
            raise GpudiagError(f"cannot write {markdown}: {error.strerror}", "Choose another --markdown.") from error
    if as_json:
        from gpudiag.reporting.json_output import encode

        sys.stdout.write(encode(result).decode())
    else:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.selftest_table import render_selftest

        render_selftest(result, report_console(width=width))
    sys.stdout.flush()
    typer.echo(f"gpudiag: saved in {place}", err=True)
