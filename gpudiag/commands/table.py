"""`gpudiag table`: many runs and machines in one table."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.options import Json, Width
from gpudiag.errors import UnreadableInputError

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
    from gpudiag.scaling.collect import points_of
    from gpudiag.scaling.table import results_table

    found, left_out = [], []
    for name in runs:
        try:
            found += [(name, point) for point in points_of(Path(name))]
        except UnreadableInputError as error:
            left_out.append(str(error))
    if not found:
        raise UnreadableInputError(
            left_out[0] if left_out else "nothing was given",
            "Give directories that `gpudiag scale` or `gpudiag profile` wrote.",
        )
    result = results_table(found, left_out)
    from gpudiag.commands.report_files import write_text
    from gpudiag.reporting import results_text

    if markdown is not None:
        write_text(markdown, results_text.to_markdown(result))
    if csv is not None:
        write_text(csv, results_text.to_csv_rows(result))
    if as_json:
        from gpudiag.reporting.json_output import encode

        sys.stdout.write(encode(result).decode())
    else:
        from gpudiag.reporting.console import report_console

        results_text.render_table(result, report_console(width=width))
