"""`gpudiag topology`: what the machine has, and what is wrong with it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.options import Json, Width
from gpudiag.errors import HardwareMissingError

EXAMPLES = (
    ("gpudiag topology", "GPUs, links, network devices and host of this machine, and what is wrong with them"),
    ("gpudiag topology --save facts.json", "keep it, for a ticket or for `gpudiag recommend --facts`"),
    ("gpudiag topology --from facts.json", "show another machine's, here without a GPU"),
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
        bool, typer.Option("--require-gpu", help="Exit with code 3 when there is no NVIDIA GPU.")
    ] = False,
    width: Width = None,
) -> None:
    """Show what this machine has: GPUs, links, host, and what is wrong with them.

    Reads the driver, /proc and /sys; needs no framework and runs nothing on a GPU. Figures that only a measurement
    gives come from `gpudiag bandwidth`.
    """
    import msgspec

    from gpudiag.diagnosis.hardware import examine_facts
    from gpudiag.probing.facts_file import encode_facts, load_facts, save_facts

    if source is not None:
        facts = load_facts(source)
    else:
        from gpudiag.probing.inventory import gather_inventory

        facts = gather_inventory()
    # Also for saved facts: the rules of today on the figures of then, and no word of a finding taken from a file.
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    if save is not None:
        save_facts(facts, save)
    if as_json:
        sys.stdout.write(encode_facts(facts).decode())
    else:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.facts_topology import render_topology

        render_topology(facts, report_console(width=width))
    sys.stdout.flush()
    if require_gpu and not facts.gpus:
        raise HardwareMissingError(
            f"no NVIDIA GPU: {facts.host.reasons.get('gpus', 'none is listed')}",
            "Leave --require-gpu out to see the host alone.",
        )
