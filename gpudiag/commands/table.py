"""`gpudiag table`: many runs and machines in one table."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width
from gpudiag.commands.command_line.output import write_as_json

EXAMPLES = (
    ("gpudiag table gpudiag-runs/*-scale", "all scaling benchmarks"),
    ("gpudiag table runs/a runs/b runs/c --markdown results.md", "three runs, as Markdown"),
    ("gpudiag table h200/scale v100/scale --csv results.csv", "two machines, for a spreadsheet"),
)


def table(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Directories that `gpudiag scale` or `gpudiag profile` wrote."),
    ],
    *,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as Markdown too.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV too.")] = None,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Compare many runs in one table.

    Results are ranked only where the strategy is all that differs; where more does, the table says what. A directory
    that cannot be read is named, and the others are shown.
    """
    from gpudiag.app.table import table as arrange

    result = arrange(runs, markdown=markdown, csv=csv)
    if as_json:
        write_as_json(result)
    else:
        from gpudiag.report.console import report_console
        from gpudiag.report.text.results import render_table

        render_table(result, report_console(width=width))
