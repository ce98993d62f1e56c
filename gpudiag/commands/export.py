"""`gpudiag export`: a run in another tool's format."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.options import MAX_TRACE_GB, MaxTraceGb, Traces, WorldSize
from gpudiag.errors import UnreadableInputError, UsageError

EXAMPLES = (
    ("gpudiag export gpudiag-runs/20260301-120000-resnet50-nccl --to perfetto", "for ui.perfetto.dev"),
    ("gpudiag export traces/ --to xspace -o job.xplane.pb", "PyTorch's traces for TensorBoard's profile plugin"),
    ("gpudiag export traces/ --to csv -o - | head", "events as a table"),
)

_STANDARD_OUTPUT = "-"


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
            help="Where to write; packed if it ends in .gz; - for standard output. When left out: a file here, named "
            "after the run.",
        ),
    ] = None,
    world_size: WorldSize = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Convert a run to another tool's format.

    Every event of every rank, on one clock, with gpudiag's own lines (steps, buckets, waits) above each device's
    streams.
    """
    from gpudiag.exporting.formats import format_named, writer_of
    from gpudiag.exporting.log_directory import run_name
    from gpudiag.pipeline import show
    from gpudiag.readers import ReadLimits

    chosen = format_named(to)
    target = output or Path(f"{run_name(Path(paths[0]))}{chosen.ending}")
    if output is None and target.exists():
        raise UsageError(f"{target} is there already", "Name the file to write with -o.")
    shown = show(paths, world_size=world_size, limits=ReadLimits(max_bytes=int(max_trace_gb * 1e9)))
    write = writer_of(chosen.name)
    try:
        write(shown.scene, Path("/dev/stdout") if str(target) == _STANDARD_OUTPUT else target)
    except OSError as error:
        raise UnreadableInputError(f"{target}: {error.strerror}", "Choose another file with -o.") from error
    if str(target) != _STANDARD_OUTPUT:
        typer.echo(f"{target}: {shown.scene.events():,} events, for {chosen.opens}", err=True)
