"""`gpudiag digest`: write digests of ranks."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, Json, MaxTraceGb, Scheduler, Traces, read_limits

EXAMPLES = (
    ("gpudiag digest traces/", "a digest of each rank in traces/digests"),
    ("gpudiag digest /local/traces --output /shared/job/digests", "on each node, of its own ranks"),
    ("gpudiag digest traces/ --scheduler tcp://head:8786", "on the workers of a Dask cluster"),
    ("gpudiag analyze traces/digests", "the same verdict as from the traces"),
)


def digest(
    paths: Traces,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Directory to write to.", show_default=False)
    ] = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Write what an analysis reads of each rank's trace into a small file, its digest.

    A digest is 3 to 7 times smaller than a compressed trace, and gives the same verdict. Nodes write those of their own
    ranks; only the digests have to be brought together.
    """
    from gpudiag.app.digests.write import digest as write
    from gpudiag.commands.progress.status_line import StatusLine
    from gpudiag.model.sanitize import one_line

    engine = None
    if scheduler is not None:
        from gpudiag.app.digests.cluster import on_cluster

        engine = on_cluster(scheduler)
    with StatusLine() as line:
        written = write(
            paths,
            output=output,
            limits=read_limits(max_trace_gb),
            engine=engine,
            progress=lambda done, files: line.say(f"{done} of {files} traces", lasting=False),
        )
    for message in written.warnings:
        typer.echo(f"gpudiag: {one_line(message)}", err=True)
    if as_json:
        import msgspec

        from gpudiag.model.sanitize import escaped_json, without_surrogates

        content = without_surrogates({"schema": "gpudiag/digests/1", **msgspec.to_builtins(written, enc_hook=str)})
        typer.echo(escaped_json(msgspec.json.format(msgspec.json.encode(content))))
        return
    ratio = written.trace_bytes / written.size_bytes
    size = f"{written.size_bytes / 1e6:.1f} MB ({ratio:.1f} times smaller than the traces)"
    count = f"{len(written.digests)} {'digest' if len(written.digests) == 1 else 'digests'}"
    typer.echo(f"{count}, {size}, in {written.directory}; next: gpudiag analyze {written.directory}", err=True)
