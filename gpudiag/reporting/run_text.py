"""One run's report as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from gpudiag.model.analysis import BUCKETS
from gpudiag.reporting import figures
from gpudiag.reporting.kernel_names import kernel_label
from gpudiag.reporting.palette import LABELS
from gpudiag.reporting.rank_rows import duration, rows_of
from gpudiag.reporting.scaling_text import escaped, table
from gpudiag.reporting.terminal import step_line, what_ran
from gpudiag.reporting.terminal_findings import next_step, title_of, worth

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

_MOST_KERNELS = 10


def to_csv(analysis: Analysis) -> str:
    """One row per device: step time, the eight buckets, and hidden communication, in milliseconds per step."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("rank", "device", "step_ms", *(f"{bucket}_ms" for bucket in BUCKETS), "hidden_communication_ms"))
    for device in analysis.devices:
        parts = (duration(device.buckets_ms.get(bucket, 0.0)) for bucket in BUCKETS)
        name = escaped(device.device).lstrip("=+-@")
        writer.writerow((device.rank, name, device.step_ms, *parts, device.hidden_communication_ms))
    return out.getvalue()


def to_markdown(analysis: Analysis) -> str:
    """What the terminal shows, for tickets and documentation."""
    lines = [f"# {escaped(what_ran(analysis))}", "", f"{escaped(step_line(analysis).plain)}.", ""]
    rows, note = rows_of(analysis.devices)
    if rows:
        seen = [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] > 0 for row in rows)]
        cells = [
            (
                row.label,
                figures.milliseconds(row.step_ms),
                *(figures.milliseconds(row.buckets_ms[bucket], beside=row.step_ms) for bucket in seen),
                figures.milliseconds(row.hidden_ms, beside=row.step_ms),
            )
            for row in rows
        ]
        headings = ("", "step ms", *(LABELS[bucket] for bucket in seen), "hidden comm.")
        lines += ["## Where a step's time goes", "", *table(headings, cells, left=1), ""]
        lines += [note, ""] if note else []
    if analysis.findings:
        lines += ["## Findings", ""]
    for finding in analysis.findings:
        lines += [f"**{escaped(title_of(finding))}** ({escaped(finding.code)}, {finding.severity})", ""]
        lines += [escaped(worth(finding, analysis.steps.mean_ms)), ""]
        lines += [*(f"- {escaped(advice)}" for advice in finding.advice), ""]
    if analysis.kernels:
        largest = sorted(analysis.kernels, key=lambda kernel: -duration(kernel.ms_per_step))[:_MOST_KERNELS]
        cells = [
            (kernel_label(one.name, 80), figures.milliseconds(duration(one.ms_per_step)), f"{one.per_step:.4g}")
            for one in largest
        ]
        lines += ["## Top kernels", "", *table(("kernel", "ms per step", "calls"), cells, left=1), ""]
    if analysis.validity:
        lines += ["## How far to trust this", ""]
        lines += [f"- {escaped(one.code)}: {escaped(one.message)}" for one in analysis.validity]
        lines.append("")
    return "\n".join([*lines, "## Next", "", escaped(next_step(analysis)), ""])
