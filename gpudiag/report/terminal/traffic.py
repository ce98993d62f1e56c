"""Show waits between ranks, collectives, classes of kernels, kernels and modules in a terminal report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import Analysis, CollectiveSummary, KernelSummary, Modules, Wait
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.compute_rows import compute_columns, compute_rows
from gpudiag.report.console import and_more, plain_table
from gpudiag.report.kernel_names import kernel_label, shorten_middle
from gpudiag.report.module_rows import module_rows, rest_of_modules
from gpudiag.report.rank_rows import duration, largest_collectives, largest_kernels
from gpudiag.report.try_rows import TRIES_NOTE, TRY_COLUMNS, try_rows

MOST_LINES = 5
#: Smallest wait that is shown, as a share of the step. Smaller waits are normal jitter between ranks.
WAIT_SHARE = 0.01
#: Smallest terminal widths with which the table of collectives has the columns `wait`, `peak` and `group`.
_WIDE_FOR_WAIT = 56
_WIDE_FOR_PROBE = 84
_WIDE_FOR_GROUP = 104
_NAME_WIDTH = 24
_MOST_MODULES = 6


def wait_lines(waits: Sequence[Wait], step_ms: float) -> list[Text]:
    """Return one line per straggler and cause, longest waits first, without waits below 1 % of `step_ms`."""
    groups: dict[tuple[int, str], list[Wait]] = defaultdict(list)
    for wait in waits:
        if duration(wait.ms_per_step) >= WAIT_SHARE * duration(step_ms) and wait.ms_per_step > 0:
            groups[wait.on_rank, one_line(wait.cause or "")[:40]].append(wait)
    ordered = sorted(groups.items(), key=lambda item: -sum(wait.ms_per_step for wait in item[1]))
    lines = [
        wait_line(on_rank, [(wait.rank, wait.ms_per_step) for wait in group], cause=cause)
        for (on_rank, cause), group in ordered[:MOST_LINES]
    ]
    return and_more(lines, len(ordered) - MOST_LINES, prefix="for ")


def wait_line(on_rank: int, waits: Sequence[tuple[int, float]], change: str = "", cause: str = "") -> Text:
    """Return `Ranks 0 and 1 waited 26.0 ms per step for rank 2 (cause: input)`.

    `waits` has (waiting rank, ms). For a difference between runs, `change` is ` longer` or ` less`.
    """
    line = Text(f"{figures.ranks((rank for rank, _ in waits), capital=True)} waited ")
    line.append(figures.span([ms for _, ms in waits]), style="bold").append(f" ms per step{change} for ")
    line.append(f"rank {on_rank}", style="bold")
    return line.append(f" (cause: {cause})" if cause else "")


def collectives_table(collectives: Sequence[CollectiveSummary], width: int) -> Table:
    """Return the longest collectives. Narrow terminals omit group, peak, and then calls and wait."""
    if width < _WIDE_FOR_WAIT:
        columns = ["size", "µs", "GB/s"]
    else:
        columns = ["size", "per step", "transfer µs", "wait µs", "busbw GB/s"]
        columns += ["peak GB/s"] if width >= _WIDE_FOR_PROBE else []
        columns += ["group"] if width >= _WIDE_FOR_GROUP else []
    table = plain_table(("collective", *columns), left=("collective", "group"), no_wrap=True)
    for call in largest_collectives(collectives, MOST_LINES):
        transfer, busbw = figures.thousands(duration(call.transfer_us)), figures.rate(call.busbw_gb_per_s)
        cells = {
            "size": figures.size(call.size_bytes),
            "per step": figures.count(duration(call.per_step)),
            "transfer µs": transfer,
            "µs": transfer,
            "wait µs": figures.thousands(duration(call.wait_us)),
            "busbw GB/s": busbw,
            "GB/s": busbw,
            "peak GB/s": figures.rate(call.probe_busbw_gb_per_s),
            "group": f"{shorten_middle(one_line(call.group), _NAME_WIDTH)} ({call.ranks} ranks)",
        }
        name = shorten_middle(one_line(call.operation), _NAME_WIDTH if width >= _WIDE_FOR_WAIT else 14)
        table.add_row(Text(name), *(Text(cells[column]) for column in columns))
    return table


def compute_table(analysis: Analysis) -> Table:
    """Return a table of kernel classes with their times and rates."""
    table = plain_table(compute_columns(analysis), left=("class", "bound", "reached"), no_wrap=True)
    for row in compute_rows(analysis):
        table.add_row(*map(Text, row))
    return table


def tries_section(analysis: Analysis) -> Group | None:
    """Return predicted and measured savings of tried changes; None if nothing was tried."""
    table = plain_table(TRY_COLUMNS, left=("change", "verdict"), overflow="fold")
    for row in try_rows(analysis):
        table.add_row(*map(Text, row))
    return Group(table, Text(TRIES_NOTE, style="dim")) if analysis.tries else None


def kernels_table(kernels: Sequence[KernelSummary], heading: str, width: int) -> Table:
    """Return the longest kernels, or operators of a run on CPUs; `heading` is `Kernels` or `Operators`."""
    wide = width >= _WIDE_FOR_WAIT
    what = heading.removesuffix("s").lower()
    table = plain_table(("ms per step" if wide else "ms", "calls", what), left=(what,), no_wrap=True)
    room = max(width - (22 if wide else 16), 16)  # without the other columns
    for kernel in largest_kernels(kernels, MOST_LINES):
        table.add_row(
            Text(figures.milliseconds(duration(kernel.ms_per_step))),
            Text(figures.count(duration(kernel.per_step))),
            Text(kernel_label(kernel.name, room)),
        )
    return table


def modules_section(modules: Modules, width: int) -> RenderableType:
    """Return the modules that take the most time. In narrow terminals forward and backward are omitted."""
    if modules.reason:
        return Text(f"not known: {one_line(modules.reason)}")
    wide = width >= _WIDE_FOR_WAIT
    columns = ("ms per step", "forward", "backward", "calls", "module") if wide else ("ms", "calls", "module")
    table = plain_table(columns, left=("module",), no_wrap=True)
    rows, rest = module_rows(modules, _MOST_MODULES)
    most = max((row.ms for row in rows), default=0.0)
    room = max(width - (42 if wide else 16), 16)  # without the other columns
    for row in rows:
        times = (row.ms, row.forward_ms, row.backward_ms) if wide else (row.ms,)
        cells = [figures.milliseconds(ms, beside=most) for ms in times]
        name = row.label if len(row.label) <= room else shorten_middle(row.short, room)
        table.add_row(*cells, figures.count(row.calls), Text(name))
    return Group(table, *(Text(line, style="dim") for line in rest_of_modules(modules, rest)))
