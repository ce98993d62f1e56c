"""Make the machine's section of the page: facts, a graph of the links, bandwidth matrices, findings."""

from __future__ import annotations

import math
from typing import Any

from gpudiag.model.facts import Facts, Link
from gpudiag.model.sanitize import one_line
from gpudiag.report.facts import tables, words
from gpudiag.report.page.run import finding_part
from gpudiag.report.page.svg import Drawing

_SIZE = 430.0
_RADIUS = _SIZE / 2 - 52
#: Colors of the kinds of links on the page.
_COLORS = {
    "NV": "link-nv",
    "PIX": "link-pix",
    "PXB": "link-pxb",
    "PHB": "link-phb",
    "NODE": "link-node",
    "SYS": "link-sys",
}


def machine_part(facts: Facts) -> dict[str, Any]:
    """Return the template's variables about a machine."""
    host = facts.host
    parts = [
        words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU",
        host.name,
        host.cpu,
        f"{host.usable_cpus} CPUs" if host.usable_cpus else "",
        f"driver {host.driver}" if host.driver else "",
        host.hypervisor or "",
    ]
    kinds = sorted({"NVLink" if link.kind.startswith("NV") else one_line(link.kind) for link in facts.links})
    return {
        "words": " · ".join(one_line(part) for part in parts if part),
        "graph": _topology(facts),
        "kinds": [(kind, _link_color(kind)) for kind in kinds],
        "matrices": tables.copy_matrices(facts),
        "collectives": tables.collective_matrix(facts),
        "findings": [finding_part(finding, None) for finding in facts.findings],
    }


def _link_color(kind: str) -> str:
    return _COLORS.get("NV" if kind.startswith("NV") else kind, "faint")


def _link(link: Link, gb_per_s: float | None) -> tuple[str, str]:
    """Return style and tooltip of a link."""
    rate = "" if gb_per_s is None else f", {gb_per_s:.0f} GB/s one way"
    broken = link.peer_access is False
    tip = f"GPU {link.a} to GPU {link.b}: {one_line(link.kind)}{rate}{', no peer access' * broken}"
    return f"link {_link_color(link.kind)}{' broken' * broken}", tip


def _topology(facts: Facts) -> str:
    """Draw the GPUs on a circle, with a line per link; "" for fewer than two GPUs."""
    gpus = list(facts.gpus)
    if len(gpus) < 2:
        return ""
    drawing = Drawing(_SIZE, _SIZE, f"{len(gpus)} GPUs and the links between them")
    angles = {gpu.index: 2 * math.pi * i / len(gpus) for i, gpu in enumerate(gpus)}
    positions = {
        index: (_SIZE / 2 + _RADIUS * math.sin(angle), _SIZE / 2 - _RADIUS * math.cos(angle))
        for index, angle in angles.items()
    }
    # Copies without peer access do not use the links.
    rates = {
        (copy.src, copy.dst): copy.gb_per_s
        for copy in facts.bandwidth
        if copy.path == "peer" and copy.direction == "one_way" and copy.peer_access is not False
    }
    for link in facts.links:
        if link.a in positions and link.b in positions:
            style, tip = _link(link, rates.get((f"gpu:{link.a}", f"gpu:{link.b}")))
            drawing.line(positions[link.a], positions[link.b], style, tip)
    for gpu in gpus:
        x, y = positions[gpu.index]
        drawing.dot((x, y), 24, "node", one_line(gpu.name))
        drawing.text((x, y + 5), str(gpu.index), "node-label", anchor="middle")
        drawing.text((x, y + 40), "" if gpu.numa_node is None else f"NUMA {gpu.numa_node}", "tick", anchor="middle")
    return drawing.markup()
