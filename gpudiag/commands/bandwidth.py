"""`gpudiag bandwidth`: measure the machine's links, memories and transports."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width
from gpudiag.commands.command_line.output import write_as_json
from gpudiag.errors import WorkerFailedError

if TYPE_CHECKING:
    from gpudiag.app.bandwidth import MeasuredBandwidth

EXAMPLES = (
    ("gpudiag bandwidth", "every link, memory and transport; about 20 s on 4 GPUs"),
    ("gpudiag bandwidth --quick", "the essential paths, in 5 to 15 s"),
    ("gpudiag bandwidth --save facts.json --html bandwidth.html", "save the figures and a page"),
    ("gpudiag bandwidth --quick --like vgg16", "also each transport on the buckets of VGG-16's gradients"),
    ("gpudiag bandwidth --from facts.json", "show another machine's figures, here without a GPU"),
)


def bandwidth(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Measure only the essential paths, in 5 to 15 s.")] = False,
    like: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="Also measure all-reduces of this model's buckets over each transport."),
    ] = None,
    as_json: Json = False,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit with code 3, measuring nothing, if there is no NVIDIA GPU.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Also write the facts to this file, as JSON.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show the figures saved in this file instead of measuring."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a self-contained page.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="End a probe that takes longer than this.")] = 60.0,
    width: Width = None,
) -> None:
    """Measure what this machine's links really carry.

    Measures copies between host and GPUs, between GPUs, and within them, pinned and pageable, one way and both ways,
    for one GPU and all at once; latencies; host memory; and all-reduce over every available transport. Compares each
    figure with the hardware's limit, and verifies the data of every path. Without a GPU, measures host memory and an
    all-reduce between processes.
    """
    from gpudiag.app.bandwidth import bandwidth as measure
    from gpudiag.commands.progress.probes import ProbeProgressBar
    from gpudiag.commands.progress.status_line import StrategyBenchmarkProgress

    with ProbeProgressBar() as probing, StrategyBenchmarkProgress() as progress:
        measured = measure(
            probing,
            progress.heard,
            progress.say,
            source=source,
            quick=quick,
            workload=like,
            require_gpu=require_gpu,
            timeout_s=timeout,
            save=save,
        )
    if html is not None:
        from gpudiag.report.page.render import bandwidth_page, write_page

        write_page(bandwidth_page(measured.facts), html)
    if as_json:
        write_as_json(measured.facts)
    else:
        _draw(measured, width=width)
    sys.stdout.flush()
    if measured.failed:
        raise WorkerFailedError(
            f"{len(measured.failed)} of the probes failed: {', '.join(measured.failed)}",
            "The other figures are shown; the reasons are under 'Not measured' and in the JSON's `skipped`.",
        )


def _draw(measured: "MeasuredBandwidth", *, width: int | None) -> None:
    """Print the measurements in `width` characters; None for the terminal's width."""
    from gpudiag.report.console import report_console
    from gpudiag.report.facts.bandwidth import render_bandwidth, render_gradient_bandwidth

    console = report_console(width=width)
    render_bandwidth(measured.facts, console)
    if measured.buckets is not None:
        render_gradient_bandwidth(measured.buckets, console)
