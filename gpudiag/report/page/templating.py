"""The template engine as both pages use it: every text escaped, every name defined, figures and lines as filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudiag.model.run_directory import write_output
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures


def templates(longest: int) -> Any:
    """The `jinja2.Environment` of this folder's templates; texts from outside are cut at `longest` characters."""
    import jinja2  # noqa: PLC0415  # only pages pay for it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudiag.report.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figures.rate
    environment.filters["heat"] = heat_bucket
    environment.filters["line"] = lambda text: one_line(str(text))[:longest]
    return environment


def heat_bucket(share: float | None) -> int:
    """0 to 10 for a share of the ceiling; the pages have a colour for each, in light and in dark."""
    return 0 if share is None else max(0, min(10, round(10 * share)))


def write_page(page: str, path: Path) -> None:
    """Write a page as `write_output` does."""
    write_output(path, page.encode())
