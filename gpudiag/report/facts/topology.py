"""Print a machine: GPUs, links, islands, network, host, findings, unknown values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, Gpu, Host, number_list
from gpudiag.model.sanitize import one_line
from gpudiag.report.console import plain_grid, plain_table, print_trimmed, under_headings
from gpudiag.report.facts import words
from gpudiag.report.facts.links import islands_tree, links_section, nics_section
from gpudiag.report.figures import UNKNOWN
from gpudiag.report.palette import SEVERITY_STYLE

#: Terminal width below which a GPU is shown as a block of lines instead of a row.
_NARROW = 72
#: Maximum number of lines of `dim_lines`.
_MOST_REASONS = 12
_LONGEST = 400

_Column = tuple[str, "Callable[[Gpu], str]"]
_STATE: tuple[_Column, ...] = (
    ("memory", lambda gpu: words.gib(gpu.memory_bytes)),
    ("used", lambda gpu: words.gib(gpu.memory_used_bytes)),
    ("temp", lambda gpu: UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c} °C"),
    ("power", lambda gpu: words.now_and_limit(gpu.power_watts, gpu.power_limit_watts, "W")),
    ("clocks limited by", words.limits),
    ("modes", words.switches),
)
_SPEED: tuple[_Column, ...] = (
    ("SM clock", lambda gpu: words.clock(gpu.sm_clock)),
    ("memory clock", lambda gpu: words.clock(gpu.memory_clock)),
    ("PCIe", lambda gpu: words.pcie(gpu.pcie)),
    ("NVLink", words.nvlink),
)
_ADDRESS: tuple[_Column, ...] = (
    ("PCI", lambda gpu: one_line(gpu.pci_id or UNKNOWN)),
    ("NUMA", lambda gpu: UNKNOWN if gpu.numa_node is None else str(gpu.numa_node)),
    ("CPUs", lambda gpu: one_line(gpu.cpu_affinity or UNKNOWN)),
    ("UUID", lambda gpu: one_line(gpu.uuid or UNKNOWN)),
)


def render_topology(facts: Facts, console: Console) -> None:
    """Print the machine."""
    width = console.width
    unknown = _unknown(facts)
    sections: list[tuple[str, RenderableType | None]] = [
        ("GPUs", _gpus(facts.gpus, width) if facts.gpus else None),
        ("Links between GPUs", links_section(facts, width) if facts.links else None),
        ("Islands", islands_tree(facts) if len(facts.gpus) > 1 and facts.islands else None),
        ("Network", nics_section(facts) if facts.host.nics else None),
        ("Host", _host(facts.host)),
        ("Environment", _environment(facts) if facts.host.environment else None),
        ("Findings", findings_list(facts.findings) if facts.gpus or facts.findings else None),
        ("Not known", Group(*unknown) if unknown else None),
    ]
    print_trimmed(console, Group(*_header(facts), *under_headings(sections)))


def _header(facts: Facts) -> list[Text]:
    """Return the name of the machine with its GPUs and versions, or the reason why it has no GPU."""
    name = one_line(facts.host.name) or "this machine"
    if not facts.gpus:
        reason = one_line(facts.host.reasons.get("gpus", "none is listed"))[:_LONGEST]
        return [Text(f"{name} · no NVIDIA GPU", style="bold"), Text(reason, style="yellow")]
    versions = {"driver": facts.host.driver, "CUDA": facts.host.cuda_driver}
    line = " · ".join(f"{label} {one_line(value)}" for label, value in versions.items() if value)
    title = Text(f"{name} · {words.models(facts.gpus)}", style="bold")
    return [title, Text(line, style="dim")] if line else [title]


def _gpus(gpus: Sequence[Gpu], width: int) -> RenderableType:
    """Return tables of state, speed and addresses with a row per GPU; in narrow terminals, a block of lines per GPU."""
    if width < _NARROW:
        return Group(*map(_block, gpus))
    models: tuple[_Column, ...] = ()
    if len({gpu.name for gpu in gpus}) > 1:
        models = (("model", lambda gpu: one_line(gpu.name)[:60]),)
    tables: list[RenderableType] = []
    for columns in (_STATE, _SPEED, _ADDRESS):
        # An empty column is omitted; the section "Not known" states the reason.
        known = [(heading, cell) for heading, cell in columns if any(cell(gpu) != UNKNOWN for gpu in gpus)]
        if not known:
            continue
        known = [*(models if columns is _STATE else ()), *known]
        table = plain_table(dim=True)
        table.add_column("GPU", justify="right", style="bold")
        for heading, _ in known:
            table.add_column(heading)
        for gpu in gpus:
            table.add_row(str(gpu.index), *(Text(cell(gpu)) for _, cell in known))
        tables += [Text(), table] if tables else [table]
    return Group(*tables)


def _block(gpu: Gpu) -> RenderableType:
    table = plain_grid({"style": "dim", "no_wrap": True}, {"overflow": "fold"}, gap=1)
    for heading, cell in (*_STATE, *_SPEED, *_ADDRESS):
        text = cell(gpu)
        if text != UNKNOWN:
            table.add_row(f"  {heading}", Text(text))
    return Group(Text(f"GPU {gpu.index}  {one_line(gpu.name)[:60]}", style="bold"), table)


def _host(host: Host) -> RenderableType:
    """Return a table of the host's known facts."""
    numa = {
        f"NUMA node {node.index}": f"CPUs {one_line(node.cpus) or 'none'}"
        + ("" if node.memory_bytes is None else f", {words.gib(node.memory_bytes)}")
        for node in host.numa
    }
    rows = {
        "system": " · ".join(map(one_line, filter(None, (host.os, host.kernel)))),
        "CPU": _cpu(host),
        "memory": words.gib(host.memory_bytes),
        **numa,
        "IOMMU": one_line(host.iommu or ""),
        "ACS": one_line(host.acs or ""),
        "container": one_line(host.container or ""),
        "hypervisor": one_line(host.hypervisor or ""),
        "shared memory": ""
        if host.shm_bytes is None
        else f"{words.gib(host.shm_bytes)}, {words.gib(host.shm_free_bytes)} free",
        "memlock": _memlock(host.memlock_bytes),
    }
    table = plain_grid({"style": "dim", "no_wrap": True}, {"overflow": "fold"})
    for label, value in rows.items():
        if value and value != UNKNOWN:
            table.add_row(label, Text(value))
    return table


def _cpu(host: Host) -> str:
    """Return the CPU's model with the numbers of sockets, cores and threads."""
    parts = [one_line(host.cpu)] if host.cpu else []
    counts = {"socket": host.sockets, "core": host.cores, "thread": host.threads}
    parts += [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count is not None]
    if host.usable_cpus is not None and host.usable_cpus != host.threads:
        parts.append(f"{host.usable_cpus} usable here")
    return ", ".join(parts)


def _memlock(size_bytes: int | None) -> str:
    if size_bytes == -1:
        return "unlimited"
    if size_bytes is not None and 0 <= size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):.4g} MiB"
    return words.gib(size_bytes)


def _environment(facts: Facts) -> RenderableType:
    variables = facts.host.environment.items()
    return Group(
        *(Text(f"{one_line(name)[:80]}={one_line(value)[:200]}", overflow="fold") for name, value in variables)
    )


def findings_list(findings: Sequence[Finding]) -> RenderableType:
    """Return hardware findings with their advice."""
    if not findings:
        return Text("No problem found.", style="green")
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
    """Return the reasons for missing values. GPUs and fields with the same reason share a line."""
    # Reason → field → indices of the GPUs that lack the field for this reason.
    indices_of: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for gpu in facts.gpus:
        for field, reason in gpu.reasons.items():
            indices_of[reason][field].add(gpu.index)
    # The header shows why no GPU is listed. The driver's versions are then unknown for the same reason.
    shown_elsewhere = {"gpus"} if facts.gpus else {"gpus", "driver", "cuda_driver"}
    reasons = {field: reason for field, reason in facts.host.reasons.items() if field not in shown_elsewhere}
    lines = [f"{one_line(field)}: {one_line(reason)}" for field, reason in reasons.items()]
    all_gpus = {gpu.index for gpu in facts.gpus}
    for reason, fields in indices_of.items():
        fields_of: dict[frozenset[int], list[str]] = defaultdict(list)
        for field, indices in fields.items():
            fields_of[frozenset(indices)].append(field)
        for gpus, names in fields_of.items():
            owner = "" if gpus == all_gpus else f" of GPU {number_list(gpus)}"
            lines.append(f"{one_line(', '.join(names))}{owner}: {one_line(reason)}")
    return dim_lines(lines)


def dim_lines(lines: list[str]) -> list[Text]:
    """Return the first dozen lines, and a line with the number of omitted lines, if any."""
    more = [f"and {len(lines) - _MOST_REASONS} more; see --json"] if len(lines) > _MOST_REASONS else []
    return [Text(line[:_LONGEST], style="dim") for line in (*lines[:_MOST_REASONS], *more)]
