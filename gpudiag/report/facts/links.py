"""Show links between GPUs in a terminal: link kinds, peer access, islands, network devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from gpudiag.model.facts import Facts, Link, number_list
from gpudiag.model.sanitize import one_line
from gpudiag.report.console import plain_table
from gpudiag.report.figures import UNKNOWN

#: Meaning of each link kind.
_LEGEND = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between CPUs",
    "unknown": "not known",
}
_STYLES = {"PIX": "green", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "SOC": "red"}


def kind_style(kind: str) -> str:
    """Return a style for a link kind: green for fast links (NVLink, switches), red for the link between CPUs."""
    return "bold green" if kind.startswith("NV") else _STYLES.get(kind, "dim")


def links_section(facts: Facts, width: int) -> RenderableType:
    """Return the link kinds of all pairs with a legend, then peer access with the driver's reasons."""
    kinds = {link.kind for link in facts.links}
    legend = [f"{kind} {words}" for kind, words in _LEGEND.items() if kind in kinds]
    if any(kind.startswith("NV") for kind in kinds):
        legend.insert(0, "NV<n> n NVLink lanes")
    return Group(
        _matrix(facts, width, lambda link: Text(one_line(link.kind)[:8], style=kind_style(link.kind))),
        Text(" · ".join(legend), style="dim"),
        Text(),
        *_peer_access(facts, width),
    )


def _peer_access(facts: Facts, width: int) -> list[RenderableType]:
    """Return a sentence if peer access and its reason are the same for all pairs, or else a table and the reasons."""
    answers = {link.peer_access for link in facts.links}
    reasons: dict[str, list[Link]] = defaultdict(list)
    for link in facts.links:
        if link.peer_access is not True:
            reasons[one_line(link.reason or "the driver gives no reason")[:200]].append(link)
    if answers == {True}:
        return [Text("Peer access: every pair may read and write each other's memory", style="green")]
    if len(answers) == 1 and len(reasons) == 1:
        what = "no pair" if answers == {False} else "not known"
        return [Text(f"Peer access: {what} ({next(iter(reasons))})", style="yellow")]
    lines: list[RenderableType] = [Text("Peer access"), _matrix(facts, width, _peer_cell)]
    lines += [Text(f"{_pairs(links)}: {reason}", style="dim") for reason, links in reasons.items()]
    return lines


def _peer_cell(link: Link) -> Text:
    if link.peer_access is None:
        return Text("?", style="dim")
    return Text("yes", style="green") if link.peer_access else Text("no", style="red")


def _pairs(links: list[Link]) -> str:
    shown = ", ".join(f"{link.a}-{link.b}" for link in links[:8])
    return shown if len(links) <= 8 else f"{shown} and {len(links) - 8} more"


def _matrix(facts: Facts, width: int, cell: Callable[[Link], Text]) -> RenderableType:
    """Return a square table of all pairs.

    If the table is too wide, return a line for each text of a cell, with the pairs that have this text.
    """
    by_pair = {(link.a, link.b): cell(link) for link in facts.links}
    indices = [gpu.index for gpu in facts.gpus]
    widest = max((text.cell_len for text in by_pair.values()), default=1)
    # A heading has up to two digits, and columns are two spaces apart.
    if (max(widest, 2) + 2) * len(indices) + 7 > width:  # 7: `GPU 12` and a space
        groups: dict[str, list[Link]] = defaultdict(list)
        for link in facts.links:
            groups[cell(link).plain].append(link)
        return Group(*(Text(f"{content}: {_pairs(links)}") for content, links in groups.items()))
    table = plain_table()
    for name in ("", *map(str, indices)):
        table.add_column(name, no_wrap=bool(name))
    for row in indices:
        cells = [
            Text("·", style="dim")
            if row == column
            else by_pair.get((min(row, column), max(row, column)), Text(UNKNOWN, style="dim"))
            for column in indices
        ]
        table.add_row(Text(f"GPU {row}", style="bold"), *cells)
    return table


def islands_tree(facts: Facts) -> RenderableType:
    """Return a tree of host, islands, PCIe switches and GPUs. In an island each pair has peer access, over any link."""
    kinds = {(link.a, link.b): link.kind for link in facts.links}
    names = {gpu.index: one_line(gpu.name)[:60] for gpu in facts.gpus}
    tree = Tree(Text(one_line(facts.host.name) or "host", style="bold"), guide_style="dim")
    for island in facts.islands:
        inside = [kinds.get((a, b), "unknown") for a in island for b in island if a < b]
        over = ", ".join(dict.fromkeys(one_line(kind)[:8] for kind in sorted(inside)))
        label = (
            f"{len(island)} GPUs, directly connected over {over}" if len(island) > 1 else "1 GPU without direct link"
        )
        # The style of an island with several kinds of links is that of the first kind by name.
        branch = tree.add(Text(label, style=kind_style(min(inside, default="unknown"))))
        for group in _switch_groups(island, kinds):
            # A switch has a branch of the tree only if it connects several GPUs, but not all GPUs of the island.
            parent = branch
            if 1 < len(group) < len(island):
                parent = branch.add(Text("one PCIe switch", style="green"))
            for index in group:
                parent.add(Text(f"GPU {index}  {names.get(index, 'unknown GPU')}"))
    return tree


def _switch_groups(island: tuple[int, ...], kinds: dict[tuple[int, int], str]) -> list[list[int]]:
    """Group the GPUs of an island by their PCIe switch. `kinds` has the link kind of each (lower, higher index)."""
    groups: list[list[int]] = []
    for gpu in island:
        for group in groups:
            if all(kinds.get((min(gpu, other), max(gpu, other))) == "PIX" for other in group):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def nics_section(facts: Facts) -> RenderableType:
    """Return a table of network and RDMA devices with their distance to each GPU."""
    headings = ("device", "kind", "GB/s", "NUMA", *(["distance to GPUs"] if facts.gpus else []))
    table = plain_table(headings, left=headings, dim=True)
    for nic in facts.host.nics:
        near: dict[str, list[int]] = defaultdict(list)
        for index, kind in nic.distance.items():
            # Keys come from a file: other keys are ignored, and long numbers are cut.
            if index.isascii() and index.isdigit():
                near[one_line(kind)[:8]].append(int(index[:6]))
        distances = ", ".join(f"{kind} {number_list(ids)}" for kind, ids in near.items()) or UNKNOWN
        table.add_row(
            Text(one_line(nic.name)[:20]),
            nic.kind,
            UNKNOWN if nic.speed_gb_per_s is None else f"{nic.speed_gb_per_s:.4g}",
            UNKNOWN if nic.numa_node is None else str(nic.numa_node),
            *([Text(distances)] if facts.gpus else []),
        )
    return table
