"""What the machine's part of the page shows, from its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpudiag.reporting import facts_tables as tables
from gpudiag.reporting import facts_words
from gpudiag.reporting.page.graph import link_kinds, topology
from gpudiag.reporting.page.run_page import finding_part
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts

_LINK_SHARE = {"NV": 1.0, "PIX": 0.8, "PXB": 0.7, "PHB": 0.5, "NODE": 0.3, "SYS": 0.0}


def machine_part(facts: Facts) -> dict[str, Any]:
    """The template's variables."""
    matrices = [matrix for matrix in (tables.host_matrix(facts), *tables.peer_matrices(facts)) if matrix is not None]
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
        "matrices": matrices,
        "collectives": tables.collective_matrix(facts),
        "findings": [finding_part(finding, None) for finding in facts.findings],
    }
