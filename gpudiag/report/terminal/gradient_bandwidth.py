"""All-reduces of a model's own buckets, transport beside transport."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.gradient_bandwidth import ModelBuckets
from gpudiag.model.sanitize import one_line


def render_gradient_bandwidth(buckets: ModelBuckets, console: Console) -> None:
    """Draw bus bandwidth per size and transport, and what all buckets together take."""
    transports = list(dict.fromkeys(measured.strategy for measured in buckets.collectives))
    sizes = sorted({measured.bytes for measured in buckets.collectives})
    by_key = {(measured.strategy, measured.bytes): measured for measured in buckets.collectives}
    total = sum(buckets.bucket_bytes) / 1e6
    count = len(buckets.bucket_bytes)
    title = (
        f"All-reduce of {one_line(buckets.workload)}'s {count} buckets, {total:.3g} MB per step: GB/s of bus bandwidth"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("MB", justify="right")
    for transport in transports:
        table.add_column(one_line(transport), justify="right")
    for size in sizes:
        cells = [f"{size / 1e6:.3g}"]
        for transport in transports:
            measured = by_key.get((transport, size))
            cells.append("—" if measured is None else f"{measured.busbw_gb_per_s:.3g}")
        table.add_row(*map(Text, cells))
    steps = [buckets.step_ms(transport) for transport in transports]
    table.add_row(*map(Text, ["all, ms", *("—" if step is None else f"{step:.1f}" for step in steps)]), style="bold")
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)
    for name, why in buckets.skipped.items():
        console.print(Text(f"not measured: {one_line(name)}: {one_line(why)}"))
