"""The machine as a graph: GPUs on a circle, a line for each link between two of them, thicker where it carries more."""

from __future__ import annotations

import math

from gpudiag.model.facts import Facts
from gpudiag.model.sanitize import one_line
from gpudiag.report.page.svg import Drawing

_SIZE = 430.0
#: The page's colour for each family of links.
_COLOURS = {
    "NV": "link-nv",
    "PIX": "link-pix",
    "PXB": "link-pxb",
    "PHB": "link-phb",
    "NODE": "link-node",
    "SYS": "link-sys",
}


def link_colour(kind: str) -> str:
    """The page's colour for a link kind."""
    return _COLOURS.get("NV" if kind.startswith("NV") else kind, "faint")


def topology(facts: Facts) -> str:
    """The drawing; empty where there are no two GPUs."""
    gpus = list(facts.gpus)
    if len(gpus) < 2:
        return ""
    drawing = Drawing(_SIZE, _SIZE, f"{len(gpus)} GPUs and the links between them")
    middle, radius = _SIZE / 2, _SIZE / 2 - 52
    places = {
        gpu.index: (
            middle + radius * math.sin(2 * math.pi * i / len(gpus)),
            middle - radius * math.cos(2 * math.pi * i / len(gpus)),
        )
        for i, gpu in enumerate(gpus)
    }
    rates = {
        (copy.src, copy.dst): copy.gb_per_s
        for copy in facts.bandwidth
        if copy.path == "peer" and copy.direction == "one_way" and copy.peer_access is not False
    }
    for link in facts.links:
        if link.a not in places or link.b not in places:
            continue
        tip = f"GPU {link.a} to GPU {link.b}: {one_line(link.kind)}"
        rate = rates.get((f"gpu:{link.a}", f"gpu:{link.b}"))
        if rate is not None:
            tip += f", {rate:.0f} GB/s one way"
        if link.peer_access is False:
            tip += ", no peer access"
        style = f"link {link_colour(link.kind)}" + (" broken" if link.peer_access is False else "")
        drawing.line(places[link.a], places[link.b], style, tip)
    for gpu in gpus:
        x, y = places[gpu.index]
        drawing.dot((x, y), 24, "node", one_line(gpu.name))
        drawing.text((x, y + 5), str(gpu.index), "node-label", anchor="middle")
        numa = "" if gpu.numa_node is None else f"NUMA {gpu.numa_node}"
        drawing.text((x, y + 40), numa, "tick", anchor="middle")
    return drawing.markup()


def link_kinds(facts: Facts) -> list[tuple[str, str]]:
    """The kinds that there are, each with its colour."""
    kinds = sorted({"NVLink" if link.kind.startswith("NV") else one_line(link.kind) for link in facts.links})
    return [(kind, link_colour("NV" if kind == "NVLink" else kind)) for kind in kinds]
