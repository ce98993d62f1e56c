"""What the machine's part of the page shows, from its facts."""

from __future__ import annotations

from typing import Any

from gpudiag.model.facts import Facts
from gpudiag.model.sanitize import one_line
from gpudiag.report.facts import tables
from gpudiag.report.facts import words as facts_words
from gpudiag.report.page.graph import link_kinds, topology
from gpudiag.report.page.run import finding_part


def machine_part(facts: Facts) -> dict[str, Any]:
    """The template's variables."""
    host = facts.host
    words = [
        facts_words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU",
        host.name,
        host.cpu,
        f"{host.usable_cpus} CPUs" if host.usable_cpus else "",
        f"driver {host.driver}" if host.driver else "",
        host.hypervisor or "",
    ]
    return {
        "words": " · ".join(one_line(word) for word in words if word),
        "graph": topology(facts),
        "kinds": link_kinds(facts),
        "matrices": tables.copy_matrices(facts),
        "collectives": tables.collective_matrix(facts),
        "findings": [finding_part(finding, None) for finding in facts.findings],
    }
