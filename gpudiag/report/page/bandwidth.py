"""What a machine's links carry, as one HTML file that loads nothing else: matrices as heat maps, light and dark."""

from __future__ import annotations

from gpudiag.model.facts import Facts
from gpudiag.report.facts import tables, words
from gpudiag.report.page.templating import templates

_LONGEST = 400


def bandwidth_page(facts: Facts) -> str:
    """The page's HTML. Everything from the facts is escaped by the template engine."""
    total = facts.probes.get("total")
    wrong, unchecked, paths = tables.checks(facts)
    page: str = (
        templates(_LONGEST)
        .get_template("bandwidth.html.j2")
        .render(
            facts=facts,
            models=words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU",
            total_s=total.get("seconds") if isinstance(total, dict) else None,
            matrices=tables.copy_matrices(facts),
            collectives=tables.collective_matrix(facts),
            fits=tables.fits(facts),
            latency=tables.latency_rows(facts),
            host_memory=tables.host_memory_rows(facts),
            ceilings=tables.ceiling_sources(facts),
            above_ceilings=tables.above_ceilings(facts),
            wrong=wrong,
            unchecked=unchecked,
            paths=paths,
        )
    )
    return page
