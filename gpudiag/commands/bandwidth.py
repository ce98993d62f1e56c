"""`gpudiag bandwidth`: what the machine's links, memories and transports really carry."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width
from gpudiag.errors import WorkerFailedError

if TYPE_CHECKING:
    from gpudiag.app.bandwidth import MeasuredBandwidth

EXAMPLES = (
    ("gpudiag bandwidth", "every link, memory and transport; about 20 s on 4 GPUs"),
    ("gpudiag bandwidth --quick", "the essential paths, in about 5 s"),
    ("gpudiag bandwidth --save facts.json --html bandwidth.html", "keep the figures, and a page to show"),
    ("gpudiag bandwidth --quick --like vgg16", "and each transport on the buckets of VGG-16's own gradients"),
    ("gpudiag bandwidth --from facts.json", "show another machine's figures, here without a GPU"),
)


def bandwidth(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Measure only the essential paths, in about 5 s.")] = False,
    like: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="Also measure each transport's all-reduce on this model's own buckets."),
    ] = None,
    as_json: Json = False,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit with code 3, measuring nothing, when there is no NVIDIA GPU.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Also write the facts to this file, as JSON.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show the figures saved in this file instead of measuring."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that needs nothing but itself.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="End a probe that loads or measures for longer than this.")
    ] = 60.0,
    width: Width = None,
) -> None:
    """Measure what this machine's links really carry.

    Copies between host and GPUs, between GPUs, and within them, pinned and pageable, one way and both ways, one GPU
    and all at once; latencies; host memory; all-reduce by every transport at hand. Every figure stands beside what the
    hardware allows, and the data of every path is verified. Without a GPU, host memory and an all-reduce between
    processes are measured.
    """
    from gpudiag.app.bandwidth import bandwidth as measure
    from gpudiag.commands.progress.probes import ProbeProgress
    from gpudiag.commands.progress.status_line import StrategyBenchmarkProgress

    with ProbeProgress() as probing, StrategyBenchmarkProgress() as progress:
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
        from gpudiag.report.page.bandwidth import bandwidth_page
        from gpudiag.report.page.templating import write_page

        write_page(bandwidth_page(measured.facts), html)
    if as_json:
        from gpudiag.model.run_directory import encode_json

        sys.stdout.write(encode_json(measured.facts).decode())
    else:
        _draw(measured, width=width)
    sys.stdout.flush()
    if measured.failed:
        raise WorkerFailedError(
            f"{len(measured.failed)} of the probes failed: {', '.join(measured.failed)}",
            "What was measured is shown; the reasons are under 'Not measured' and in the JSON's `skipped`.",
        )


def _draw(measured: "MeasuredBandwidth", *, width: int | None) -> None:
    from gpudiag.report.console import report_console
    from gpudiag.report.facts.bandwidth import render_bandwidth

    console = report_console(width=width)
    render_bandwidth(measured.facts, console)
    if measured.buckets is not None:
        from gpudiag.report.terminal.gradient_bandwidth import render_gradient_bandwidth

        render_gradient_bandwidth(measured.buckets, console)
