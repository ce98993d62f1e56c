"""`gpudiag gather`: merge the run directories of several nodes."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    ("gpudiag gather run-dir run-dir-of-node1", "after `scp -r node1:run-dir run-dir-of-node1`"),
    ("gpudiag gather /scratch/node0/run /scratch/node*/run", "for many nodes"),
    ("gpudiag gather run-dir /scratch/node*/run --digests", "digests, a hundredth of the traces; see gpudiag digest"),
)


def gather(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of rank 0's node.", show_default=False)],
    others: Annotated[
        list[Path],
        typer.Argument(
            metavar="OTHER...", help="Run directories that other nodes wrote in the same run.", show_default=False
        ),
    ],
    *,
    digests: Annotated[
        bool, typer.Option("--digests", help="Copy the digests of ranks instead of their traces.")
    ] = False,
) -> None:
    """Bring the ranks of several nodes into one run directory.

    For runs whose nodes share no file system. Refuses ranks of another run; keeps the ranks that the directory has
    already. Copies digests (`gpudiag digest`) of ranks without traces.
    """
    from gpudiag.app.gather import gather as merge

    merged = merge(run, others, digests=digests)
    typer.echo(f"{len(merged.ranks)} of {merged.world_size} ranks are in {run}; next: gpudiag analyze {run}", err=True)
