"""`gpudiag table`: compare runs and machines in one table."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import Json, Width, split_words
from gpudiag.commands.command_line.output import show
from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.tables import FORMS

EXAMPLES = (
    ("gpudiag table gpudiag-runs/*-scale", "all scaling benchmarks"),
    ("gpudiag table runs/a runs/b runs/c --markdown results.md", "three runs, as Markdown"),
    ("gpudiag table h200/scale v100/scale --csv results.csv", "two machines, for a spreadsheet"),
    ("gpudiag table runs/scale --form training", "iterations per minute, and days to 100,000"),
    ("gpudiag table runs/scale --form all --markdown results.md", "every form, as a page"),
)


def table(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Directories that `gpudiag scale` or `gpudiag profile` wrote."),
    ],
    *,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the table as Markdown.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the table as CSV.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            metavar="FORM,...",
            help=f"Tables in the form of earlier benchmarks: {', '.join(FORMS)}; or all.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Compare many runs in one table.

    Ranks results that differ only in the strategy, and names the differences of all others. Names
    directories that cannot be read, and shows the others.
    """
    from gpudiag.app.table import forms
    from gpudiag.app.table import table as arrange

    if form is not None:
        tables = forms(runs, _forms(form, to_csv=csv is not None), markdown=markdown, csv=csv)
        from gpudiag.report.text.forms import render_forms

        show(tables, render_forms, as_json=as_json, width=width)
        return
    result = arrange(runs, markdown=markdown, csv=csv)
    from gpudiag.report.text.results import render_table

    show(result, render_table, as_json=as_json, width=width)


def _forms(text: str, *, to_csv: bool) -> tuple[str, ...]:
    """Return the forms that `text` lists. Raise UsageError for an unknown form, and for several forms with `--csv`."""
    names = tuple(FORMS) if text.strip() == "all" else split_words(text)
    for name in names:
        if name not in FORMS:
            raise UsageError(f"--form knows no '{name}'", there_are(name, (*FORMS, "all")))
    if to_csv and len(names) != 1:
        raise UsageError("--csv takes one form, because the columns of forms differ", "Give --form one name.")
    return names
