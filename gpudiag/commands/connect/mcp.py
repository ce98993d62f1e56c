"""`gpudiag mcp`: answer the questions of an agent."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, MaxTraceGb, read_limits

EXAMPLES = (
    ("gpudiag mcp", "recordings in this directory, read only"),
    ("gpudiag mcp --root /data/runs", "recordings in another directory"),
    ("gpudiag mcp --allow-profile", "the agent may also run and measure commands here"),
)

_MOST_CHARACTERS = 20_000


def mcp(
    *,
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Directory to which the agent's paths are restricted.")
    ] = Path(),
    allow_profile: Annotated[
        bool,
        typer.Option("--allow-profile", help="Also offer a tool that runs commands in DIR, with your rights."),
    ] = False,
    most_characters: Annotated[
        int, typer.Option("--max-answer", min=2000, metavar="N", help="Characters in an answer; longer ones are cut.")
    ] = _MOST_CHARACTERS,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Answer the questions of an agent about recordings.

    Serves the Model Context Protocol on standard input and output. The tools read recordings in one directory and
    change nothing, unless --allow-profile is given.
    """
    from gpudiag.app.agent.server import serve

    limits = read_limits(max_trace_gb)
    serve(root, allow_profile=allow_profile, most_characters=most_characters, limits=limits)
