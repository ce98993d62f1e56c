"""What a machine's links carry, as one HTML file that loads nothing else: matrices as heat maps, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.errors import GpudiagError
from gpudiag.reporting import facts_tables as tables
from gpudiag.reporting import facts_words as words
from gpudiag.reporting import figures
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.facts import Facts

_LONGEST = 400


def write_page(facts: Facts, path: Path) -> None:
    """Write the page to `path`.

    Raises:
        GpudiagError: the file cannot be written.
    """
    page = bandwidth_page(facts)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror}", "Choose another place with --html.") from error


def bandwidth_page(facts: Facts) -> str:
    """The page's HTML. Everything from the facts is escaped by the template engine."""
    import jinja2  # noqa: PLC0415  # only pages pay for it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudiag.reporting", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figures.rate
    environment.filters["heat"] = heat_bucket
    environment.filters["line"] = lambda text: one_line(str(text))[:_LONGEST]
    host, collectives = tables.host_matrix(facts), tables.collective_matrix(facts)
    fits = {fit.strategy: fit for fit in facts.collective_fits}
    total = facts.probes.get("total")
    checks = [one.verified for one in facts.bandwidth] + [one.verified for one in facts.collectives]
    return environment.get_template("bandwidth.html.j2").render(
        facts=facts,
        models=words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU",
        total_s=total.get("seconds") if isinstance(total, dict) else None,
        matrices=[matrix for matrix in (host, *tables.peer_matrices(facts)) if matrix is not None],
        collectives=collectives,
        fits=[(tables.STRATEGIES.get(name, name), fits[name]) for name in tables.strategies_of(fits)],
        latency=tables.latency_rows(facts),
        host_memory=tables.host_memory_rows(facts),
        ceilings=[(source, value) for source, value in tables.ceiling_sources(facts) if value is not None],
        wrong=checks.count(False),
        unchecked=checks.count(None),
        paths=len(checks),
    )


def heat_bucket(share: float | None) -> int:
    """0 to 10 for a share of the ceiling; the page has a colour for each, in light and in dark."""
    return 0 if share is None else max(0, min(10, round(10 * share)))
