"""The inventory of a machine in a terminal: GPUs, links, islands, network, host, findings, and what is not known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, Gpu, number_list
from gpudiag.model.sanitize import one_line
from gpudiag.report.facts import words
from gpudiag.report.facts.links import islands_tree, links_section, nics_section
from gpudiag.report.figures import UNKNOWN
from gpudiag.report.layout import plain_grid, plain_table, print_trimmed, under_headings
from gpudiag.report.palette import SEVERITY_STYLE

_NARROW = 72
"""Below this a GPU is a block of lines instead of a row."""
_MOST_REASONS = 12
_LONGEST = 400

_Column = tuple[str, "Callable[[Gpu], str]"]
_STATE: tuple[_Column, ...] = (
    ("memory", lambda gpu: words.gib(gpu.memory_bytes)),
    ("used", lambda gpu: words.gib(gpu.memory_used_bytes)),
    ("temp", lambda gpu: UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c} °C"),
    ("power", lambda gpu: words.of(gpu.power_watts, gpu.power_limit_watts, "W")),
    ("clocks held by", words.state),
    ("modes", words.switches),
)
_SPEED: tuple[_Column, ...] = (
    ("SM clock", lambda gpu: words.clock(gpu.sm_clock)),
    ("memory clock", lambda gpu: words.clock(gpu.memory_clock)),
    ("PCIe", lambda gpu: words.pcie(gpu.pcie)),
    ("NVLink", words.nvlink),
)
_PLACE: tuple[_Column, ...] = (
    ("PCI", lambda gpu: one_line(gpu.pci_id or UNKNOWN)),
    ("NUMA", lambda gpu: UNKNOWN if gpu.numa_node is None else str(gpu.numa_node)),
    ("CPUs", lambda gpu: one_line(gpu.cpu_affinity or UNKNOWN)),
    ("UUID", lambda gpu: one_line(gpu.uuid or UNKNOWN)),
)


def render_topology(facts: Facts, console: Console) -> None:
    """Print the inventory on `console`, at its width."""
    print_trimmed(console, topology_report(facts, console.width))


def topology_report(facts: Facts, width: int) -> Group:
    """The inventory as one renderable for a terminal of `width` columns."""
    sections: list[tuple[str, RenderableType]] = []
    if facts.gpus:
        sections.append(("GPUs", _gpus(facts.gpus, width)))
    if facts.links:
        sections.append(("Links between GPUs", links_section(facts, width)))
    if len(facts.gpus) > 1 and facts.islands:
        sections.append(("Islands", islands_tree(facts)))
    if facts.host.nics:
        sections.append(("Network", nics_section(facts)))
    sections.append(("Host", _host(facts)))
    if facts.host.environment:
        sections.append(("Environment", _environment(facts)))
    if facts.gpus or facts.findings:
        sections.append(("Findings", findings_list(facts.findings)))
    unknown = _unknown(facts)
    if unknown:
        sections.append(("Not known", Group(*unknown)))
    return Group(*_header(facts), *under_headings(sections))


def _header(facts: Facts) -> list[Text]:
    name = one_line(facts.host.name) or "this machine"
    if not facts.gpus:
        reason = one_line(facts.host.reasons.get("gpus", "none is listed"))[:_LONGEST]
        return [Text(f"{name} · no NVIDIA GPU", style="bold"), Text(reason, style="yellow")]
    versions = [
        f"{label} {one_line(value)}"
        for label, value in (("driver", facts.host.driver), ("CUDA", facts.host.cuda_driver))
        if value
    ]
    title = Text(f"{name} · {words.models(facts.gpus)}", style="bold")
    return [title, Text(" · ".join(versions), style="dim")] if versions else [title]


def _gpus(gpus: Sequence[Gpu], width: int) -> RenderableType:
    if width < _NARROW:
        return Group(*(_block(gpu) for gpu in gpus))
    tables: list[RenderableType] = []
    for columns in (_STATE, _SPEED, _PLACE):
        table = plain_table(dim=True)
        table.add_column("GPU", justify="right", style="bold")
        several = len({gpu.name for gpu in gpus}) > 1
        if columns is _STATE and several:
            table.add_column("model")
        # A column that nobody fills says nothing: why it is empty stands under "Not known".
        filled = [(heading, cell) for heading, cell in columns if any(cell(gpu) != UNKNOWN for gpu in gpus)]
        for heading, _ in filled:
            table.add_column(heading)
        for gpu in gpus:
            model = [Text(one_line(gpu.name)[:60])] if columns is _STATE and several else []
            table.add_row(str(gpu.index), *model, *(Text(cell(gpu)) for _, cell in filled))
        if filled:
            tables += [Text(), table] if tables else [table]
    return Group(*tables)


def _block(gpu: Gpu) -> RenderableType:
    table = plain_grid({"style": "dim", "no_wrap": True}, {"overflow": "fold"}, gap=1)
    for heading, cell in (*_STATE, *_SPEED, *_PLACE):
        text = cell(gpu)
        if text != UNKNOWN:
            table.add_row(f"  {heading}", Text(text))
    return Group(Text(f"GPU {gpu.index}  {one_line(gpu.name)[:60]}", style="bold"), table)


def _host(facts: Facts) -> RenderableType:
    host = facts.host
    cpu = [one_line(host.cpu)] if host.cpu else []
    for count, singular in ((host.sockets, "socket"), (host.cores, "core"), (host.threads, "thread")):
        cpu += [f"{count} {singular}{'' if count == 1 else 's'}"] if count is not None else []
    if host.usable_cpus is not None and host.usable_cpus != host.threads:
        cpu.append(f"{host.usable_cpus} usable here")
    shm = UNKNOWN
    if host.shm_bytes is not None:
        shm = f"{words.gib(host.shm_bytes)}, {words.gib(host.shm_free_bytes)} free"
    memlock = "unlimited" if host.memlock_bytes == -1 else words.gib(host.memlock_bytes)
    if host.memlock_bytes is not None and 0 <= host.memlock_bytes < 1 << 30:
        memlock = f"{host.memlock_bytes / (1 << 20):.4g} MiB"
    rows = (
        ("system", " · ".join(one_line(part) for part in (host.os, host.kernel) if part)),
        ("CPU", ", ".join(cpu)),
        ("memory", words.gib(host.memory_bytes)),
        *(
            (
                f"NUMA node {node.index}",
                f"CPUs {one_line(node.cpus) or 'none'}"
                + ("" if node.memory_bytes is None else f", {words.gib(node.memory_bytes)}"),
            )
            for node in host.numa
        ),
        ("IOMMU", one_line(host.iommu or "")),
        ("ACS", one_line(host.acs or "")),
        ("container", one_line(host.container or "")),
        ("hypervisor", one_line(host.hypervisor or "")),
        ("shared memory", shm),
        ("memlock", memlock),
    )
    table = plain_grid({"style": "dim", "no_wrap": True}, {"overflow": "fold"})
    for label, value in rows:
        if value and value != UNKNOWN:
            table.add_row(label, Text(value))
    return table


def _environment(facts: Facts) -> RenderableType:
    return Group(
        *(
            Text(f"{one_line(name)[:80]}={one_line(value)[:200]}", overflow="fold")
            for name, value in facts.host.environment.items()
        )
    )


def findings_list(findings: Sequence[Finding]) -> RenderableType:
    """Hardware findings: what is wrong and what it costs, then what to do."""
    if not findings:
        return Text("Nothing is wrong as far as this shows.", style="green")
    table = plain_grid({"no_wrap": True}, {}, gap=1)
    for finding in findings:
        head = Text(finding.severity, style=SEVERITY_STYLE[finding.severity])
        head.append(f"  {one_line(finding.code)[:60]}", style="default not bold")
        if finding.confidence != "high":
            head.append(f", {finding.confidence} confidence", style="default not bold")
        table.add_row(Text("•", style=SEVERITY_STYLE[finding.severity]), head)
        table.add_row("", Text(one_line(finding.title)[:_LONGEST]))
        for advice in finding.advice:
            table.add_row("", Text(f"→ {one_line(advice)[:_LONGEST]}", style="dim"))
    return table


def _unknown(facts: Facts) -> list[Text]:
    """Reasons of missing values, equal ones of several GPUs and fields joined."""
    joined: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for gpu in facts.gpus:
        for field, reason in gpu.reasons.items():
            joined[reason][field].add(gpu.index)
    lines = [
        f"{one_line(field)}: {one_line(reason)}"
        for field, reason in facts.host.reasons.items()
        if field != "gpus" and not (field in {"driver", "cuda_driver"} and not facts.gpus)
    ]
    everyone = {gpu.index for gpu in facts.gpus}
    for reason, fields in joined.items():
        by_gpus: dict[frozenset[int], list[str]] = defaultdict(list)
        for field, indices in fields.items():
            by_gpus[frozenset(indices)].append(field)
        for owners, names in by_gpus.items():
            where = "" if owners == everyone else f" of GPU {number_list(owners)}"
            lines.append(f"{one_line(', '.join(names))}{where}: {one_line(reason)}")
    return dim_lines(lines)


def dim_lines(lines: list[str]) -> list[Text]:
    """The first dozen of what could not be read or measured, and how many more there are."""
    more = [f"and {len(lines) - _MOST_REASONS} more; see --json"] if len(lines) > _MOST_REASONS else []
    return [Text(line[:_LONGEST], style="dim") for line in (*lines[:_MOST_REASONS], *more)]
