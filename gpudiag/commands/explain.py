"""`gpudiag explain`: print the documentation of a finding or a warning."""

from typing import Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width
from gpudiag.commands.command_line.output import show

EXAMPLES = (
    ("gpudiag explain straggler", "what the finding means, when it fires, and what to do"),
    ("gpudiag explain straggler input", "the same, with the advice for one cause"),
    ("gpudiag explain few-steps", "a warning about the recording"),
    ("gpudiag explain", "all codes"),
)


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Code of a finding or a warning. Default: list all.", show_default=False),
    ] = None,
    cause: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAUSE", help="Cause of the finding, to see only its advice.", show_default=False),
    ] = None,
    *,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Say what a finding or a warning means, and what to do.

    Prints the page of docs/findings: the meaning, the advice by cause, and examples in which the finding is made and is
    not made.
    """
    from gpudiag.app.explain import explain as read
    from gpudiag.app.explain import explanations

    if code is None:
        codes = explanations()
        from gpudiag.report.terminal.explanation import render_explanations

        show(codes, render_explanations, as_json=as_json, width=width)
        return
    explanation = read(code, " ".join(cause) if cause else None)
    from gpudiag.report.terminal.explanation import render_explanation

    show(explanation, render_explanation, as_json=as_json, width=width)
