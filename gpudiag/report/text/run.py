"""One run's report as Markdown and CSV."""

from __future__ import annotations

import csv
import io

from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.report import figures
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.rank_rows import cells, duration, headings, largest_kernels, rows_of
from gpudiag.report.scaling.text import escaped, table
from gpudiag.report.terminal.findings import next_step, title_of, worth
from gpudiag.report.terminal.report import evidence_lines, step_line, what_ran

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
    lines = [f"# {escaped(what_ran(analysis))}", ""]
    for line in (step_line(analysis).plain, *evidence_lines(analysis)):
        lines += [f"{escaped(line)}.", ""]
    rows, note = rows_of(analysis.devices)
    if rows:
        seen = [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] > 0 for row in rows)]
        ranks = table(headings(seen), [cells(row, seen) for row in rows], left=1)
        lines += ["## Where a step's time goes", "", *ranks, ""]
        lines += [note, ""] if note else []
    if analysis.findings:
        lines += ["## Findings", ""]
    for finding in analysis.findings:
        lines += [f"**{escaped(title_of(finding))}** ({escaped(finding.code)}, {finding.severity})", ""]
        lines += [escaped(worth(finding, analysis.steps.mean_ms)), ""]
        lines += [*(f"- {escaped(advice)}" for advice in finding.advice), ""]
    if analysis.kernels:
        kernels = [
            (kernel_label(k.name, 80), figures.milliseconds(duration(k.ms_per_step)), f"{k.per_step:.4g}")
            for k in largest_kernels(analysis.kernels, _MOST_KERNELS)
        ]
        lines += ["## Top kernels", "", *table(("kernel", "ms per step", "calls"), kernels, left=1), ""]
    if analysis.validity:
        lines += ["## How far to trust this", ""]
        lines += [f"- {escaped(warning.code)}: {escaped(warning.message)}" for warning in analysis.validity]
        lines.append("")
    return "\n".join([*lines, "## Next", "", escaped(next_step(analysis)), ""])
