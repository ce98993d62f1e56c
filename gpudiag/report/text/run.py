"""Write the report of one run as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.analysis import BUCKETS, Analysis, Modules
from gpudiag.report import figures, header, rank_rows
from gpudiag.report import verdict as words
from gpudiag.report.compute_rows import compute_columns, compute_rows
from gpudiag.report.kernel_names import kernel_label
from gpudiag.report.markup import csv_text, escaped, markdown_table
from gpudiag.report.module_rows import MODULE_COLUMNS, module_cells, module_rows, rest_of_modules
from gpudiag.report.source_rows import SOURCE_COLUMNS, source_cells, source_tables
from gpudiag.report.terminal.traffic import wait_lines
from gpudiag.report.try_rows import TRIES_HEADING, TRY_COLUMNS, try_rows

_MOST_KERNELS = 10
_MOST_MODULES = 12


def to_csv(analysis: Analysis) -> str:
    """Return one row per device: step time, buckets and overlapped communication, in milliseconds per step."""
    buckets = [f"{bucket}_ms" for bucket in BUCKETS]
    devices = analysis.frames().devices
    chosen = devices.reindex(columns=["rank", "device", "step_ms", *buckets, "hidden_communication_ms"])
    return csv_text(chosen.assign(**{name: [rank_rows.duration(ms) for ms in chosen[name]] for name in buckets}))


def to_markdown(analysis: Analysis) -> str:
    """Return the full report, for tickets and documentation."""
    waits = [line.plain for line in wait_lines(analysis.waits, analysis.steps.mean_ms)]
    doubts = [f"{code}: {message}" for code, message in words.doubts(analysis)]
    lines = [f"# {escaped(header.what_ran(analysis))}", ""]
    lines += _paragraphs(f"{line}." for line in (header.step_line(analysis).plain, *header.header_lines(analysis)))
    lines += _verdict(words.verdict_of(analysis))
    lines += _time(analysis)
    lines += _parallelism(analysis)
    lines += _source_lines(analysis)
    lines += _listed("Waits", waits)
    lines += _findings(analysis)
    lines += _table(TRIES_HEADING, TRY_COLUMNS, try_rows(analysis))
    lines += _table("Compute", compute_columns(analysis), compute_rows(analysis))
    lines += _kernels(analysis)
    lines += _modules(analysis.modules) if analysis.modules is not None else []
    lines += _listed("How far to trust this", doubts)
    return "\n".join(lines)


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts if text for line in (escaped(text), "")]


def _listed(heading: str, texts: list[str]) -> list[str]:
    return [f"## {heading}", "", *(f"- {escaped(text)}" for text in texts), ""] if texts else []


def _numbered(texts: Iterable[str]) -> list[str]:
    return [*(f"{number}. {escaped(text)}" for number, text in enumerate(texts, start=1)), ""]


def _verdict(verdict: words.ReportVerdict) -> list[str]:
    severity = f"{verdict.severity.upper()}: " if verdict.severity is not None else ""
    lines = [f"**{severity}{escaped(verdict.title)}**", "", *_paragraphs(words.verdict_lines(verdict)), "## Next", ""]
    lines += _paragraphs(verdict.steps) if len(verdict.steps) == 1 else _numbered(verdict.steps)
    return [*lines, words.PATH_HEADING, "", *_numbered(verdict.path)] if verdict.path else lines


def _time(analysis: Analysis) -> list[str]:
    """Return the table of step times with its notes, and the explanation of each large bucket."""
    rows, note = rank_rows.rows_of(analysis.devices)
    if not rows:
        return []
    seen = [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] > 0 for row in rows)]
    table = markdown_table(rank_rows.headings(seen), [rank_rows.cells(row, seen) for row in rows], left=1)
    overlapped = rank_rows.overlapped_note(rows)
    explained = [f"- {escaped(line)}" for line in words.explained_lines(analysis)]
    return [
        *(f"## {header.time_heading(analysis)}", "", *table, ""),
        *_paragraphs((header.recorded_steps_note(analysis), overlapped and f"{overlapped}.", note)),
        *([*explained, ""] if explained else []),
    ]


def _parallelism(analysis: Analysis) -> list[str]:
    """Return communication by role, stages and bubble of a job that divides more than its batches."""
    grid = analysis.parallelism
    if grid is None:
        return []
    from gpudiag.report import parallel_rows  # noqa: PLC0415  # most jobs divide batches

    traffic = parallel_rows.traffic_columns(grid)
    rows = list(zip(*traffic.values(), strict=True))
    lines = _table(parallel_rows.TRAFFIC_HEADING, list(traffic), rows)
    lines += [parallel_rows.TRAFFIC_NOTE, ""] if rows else []
    if grid.pipeline is not None:
        stages = parallel_rows.stage_rows(analysis, grid)
        lines += _table(parallel_rows.STAGES_HEADING, parallel_rows.STAGE_COLUMNS, stages)
    for sentence in parallel_rows.summary_lines(grid):
        lines += [escaped(sentence), ""]
    return lines


def _findings(analysis: Analysis) -> list[str]:
    lines = ["## Findings", ""] if analysis.findings else []
    for finding in analysis.findings:
        lines += [f"**{escaped(words.title_of(finding))}** ({escaped(words.about(finding))})", ""]
        lines += _paragraphs(words.finding_lines(finding, analysis))
        lines += [*(f"- {escaped(advice)}" for advice in finding.advice), ""]
    return lines


def _source_lines(analysis: Analysis) -> list[str]:
    lines: list[str] = []
    for heading, rows in source_tables(analysis):
        cells = [source_cells(row) for row in rows]
        lines += [f"## {heading}", "", *markdown_table(SOURCE_COLUMNS, cells, left=1), ""]
    return lines


def _table(heading: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"## {heading}", "", *markdown_table(columns, rows, left=1), ""] if rows else []


def _kernels(analysis: Analysis) -> list[str]:
    rows = [
        (kernel_label(k.name, 80), figures.milliseconds(rank_rows.duration(k.ms_per_step)), f"{k.per_step:.4g}")
        for k in rank_rows.largest_kernels(analysis.kernels, _MOST_KERNELS)
    ]
    return ["## Top kernels", "", *markdown_table(("kernel", "ms per step", "calls"), rows, left=1), ""] if rows else []


def _modules(modules: Modules) -> list[str]:
    if modules.reason:
        return ["## Modules", "", f"Not known: {escaped(modules.reason)}.", ""]
    rows, rest = module_rows(modules, _MOST_MODULES)
    table = markdown_table(MODULE_COLUMNS, map(module_cells, rows), left=1)
    return ["## Modules", "", *table, "", *(f"{line}." for line in rest_of_modules(modules, rest)), ""]
