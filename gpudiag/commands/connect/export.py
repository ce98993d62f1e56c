"""`gpudiag export`: convert a run to another tool's format."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, MaxTraceGb, Traces, WorldSize, read_limits

EXAMPLES = (
    ("gpudiag export gpudiag-runs/20260301-120000-resnet50-nccl --to perfetto", "for ui.perfetto.dev"),
    ("gpudiag export traces/ --to xspace -o job.xplane.pb", "PyTorch's traces for TensorBoard's profile plugin"),
    ("gpudiag export traces/ --to csv -o - | head", "events as a table"),
)


def export(
    paths: Traces,
    *,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="xspace, chrome, perfetto or csv.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file, compressed if it ends in .gz; - for standard output. Default: a file here, named after "
            "the run.",
        ),
    ] = None,
    world_size: WorldSize = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Convert a run to another tool's format.

    Writes every event of every rank on one clock, with gpudiag's tracks (steps, buckets, waits) above each device's
    streams.
    """
    from gpudiag.app.export import export as convert
    from gpudiag.model.run_directory import STANDARD_OUTPUT

    exported = convert(paths, to, output, world_size=world_size, limits=read_limits(max_trace_gb))
    if str(exported.target) != STANDARD_OUTPUT:
        typer.echo(f"{exported.target}: {exported.events:,} events, for {exported.format.opens}", err=True)
