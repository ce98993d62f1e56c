"""`gpudiag topology`: show the machine's hardware, and what is wrong with it."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width
from gpudiag.commands.command_line.output import show

EXAMPLES = (
    ("gpudiag topology", "GPUs, links, network devices and host of this machine, and what is wrong with them"),
    ("gpudiag topology --save facts.json", "save it, for a ticket or for `gpudiag recommend --facts`"),
    ("gpudiag topology --from facts.json", "show another machine, here without a GPU"),
    ("gpudiag topology --json | jq '.links[] | select(.peer_access == false)'", "for scripts"),
)


def topology(
    as_json: Json = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Also write the facts to this file, as JSON.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show the facts saved in this file instead of this machine's."),
    ] = None,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit with code 3 if there is no NVIDIA GPU.")
    ] = False,
    width: Width = None,
) -> None:
    """Show what this machine has: GPUs, links, host, and what is wrong with them.

    Reads the driver, /proc and /sys; needs no framework and runs nothing on a GPU. `gpudiag bandwidth` measures speeds.
    """
    from gpudiag.app.topology import check_gpu
    from gpudiag.app.topology import topology as read

    facts = read(source, save=save)
    from gpudiag.report.facts.topology import render_topology

    show(facts, render_topology, as_json=as_json, width=width)
    if require_gpu:
        check_gpu(facts, "see")
