"""One run's report as Markdown and CSV."""

from __future__ import annotations

from gpudiag.model.analysis import BUCKETS, Analysis, Modules
from gpudiag.report import figures
from gpudiag.report import verdict as words
from gpudiag.report.csv_text import csv_text
from gpudiag.report.header import header_lines, recorded_steps_note, step_line, what_ran
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.module_rows import MODULE_COLUMNS, module_cells, module_rows, rest_of_modules
from gpudiag.report.rank_rows import cells, duration, headings, largest_kernels, rows_of
from gpudiag.report.scaling.text import escaped, table
from gpudiag.report.terminal.ranks import OVERLAPPED, OVERLAPPED_WORDS, overlaps
from gpudiag.report.terminal.report import time_heading
from gpudiag.report.terminal.traffic import wait_lines

_MOST_KERNELS = 10
_MOST_MODULES = 12


def to_csv(analysis: Analysis) -> str:
    """One row per device: step time, the eight buckets, and hidden communication, in milliseconds per step."""
    buckets = [f"{bucket}_ms" for bucket in BUCKETS]
    devices = analysis.frames().devices
    chosen = devices.reindex(columns=["rank", "device", "step_ms", *buckets, "hidden_communication_ms"])
    return csv_text(chosen.assign(**{name: [duration(ms) for ms in chosen[name]] for name in buckets}))


def to_markdown(analysis: Analysis) -> str:
    """What the terminal shows, for tickets and documentation."""
    lines = [f"# {escaped(what_ran(analysis))}", ""]
    for line in (step_line(analysis).plain, *header_lines(analysis)):
        lines += [f"{escaped(line)}.", ""]
    lines += _verdict(words.verdict_of(analysis))
    rows, note = rows_of(analysis.devices)
    if rows:
        seen = [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] > 0 for row in rows)]
        ranks = table(headings(seen), [cells(row, seen) for row in rows], left=1)
        lines += [f"## {time_heading(analysis)}", "", *ranks, ""]
        overlapped = f"{OVERLAPPED}: {OVERLAPPED_WORDS}." if overlaps(rows) else ""
        lines += [part for text in (recorded_steps_note(analysis), overlapped, note) if text for part in (text, "")]
        lines += [*(f"- {escaped(line)}" for line in words.explained_lines(analysis)), ""] if analysis.explained else []
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    lines += ["## Waits", "", *(f"- {escaped(line.plain)}" for line in waits), ""] if waits else []
    if analysis.findings:
        lines += ["## Findings", ""]
    for finding in analysis.findings:
        lines += [f"**{escaped(words.title_of(finding))}** ({escaped(words.about(finding))})", ""]
        lines += [part for line in words.finding_lines(finding, analysis) for part in (escaped(line), "")]
        lines += [*(f"- {escaped(advice)}" for advice in finding.advice), ""]
    if analysis.kernels:
        kernels = [
            (kernel_label(k.name, 80), figures.milliseconds(duration(k.ms_per_step)), f"{k.per_step:.4g}")
            for k in largest_kernels(analysis.kernels, _MOST_KERNELS)
        ]
        lines += ["## Top kernels", "", *table(("kernel", "ms per step", "calls"), kernels, left=1), ""]
    lines += _modules(analysis.modules) if analysis.modules is not None else []
    doubts = words.doubts(analysis)
    if doubts:
        lines += ["## How far to trust this", "", *(f"- {escaped(code)}: {escaped(why)}" for code, why in doubts), ""]
    return "\n".join(lines)


def _verdict(verdict: words.Verdict) -> list[str]:
    """The answer, what fixing it gains, and what to do."""
    severity = f"{verdict.severity.upper()}: " if verdict.severity is not None else ""
    lines = [f"**{severity}{escaped(verdict.title)}**", ""]
    said = (
        f"Gain: {verdict.gain}" if verdict.gain else "",
        f"Of which {verdict.parts}." if verdict.parts else "",
        f"Confidence: {verdict.confidence}." if verdict.confidence else "",
        f"Where: {verdict.where}" if verdict.where else "",
        verdict.instead,
    )
    lines += [part for line in said if line for part in (escaped(line), "")]
    lines += ["## Next", ""]
    if len(verdict.steps) == 1:
        lines += [escaped(verdict.steps[0]), ""]
    else:
        lines += [*(f"{number}. {escaped(step)}" for number, step in enumerate(verdict.steps, start=1)), ""]
    path = [f"{number}. {escaped(line)}" for number, line in enumerate(verdict.path, start=1)]
    return [*lines, words.PATH_HEADING, "", *path, ""] if path else lines


def _modules(modules: Modules) -> list[str]:
    if modules.reason:
        return ["## Modules", "", f"Not known: {escaped(modules.reason)}.", ""]
    rows, rest = module_rows(modules, _MOST_MODULES)
    cells = table(MODULE_COLUMNS, [module_cells(row) for row in rows], left=1)
    return ["## Modules", "", *cells, "", *(f"{line}." for line in rest_of_modules(modules, rest)), ""]
