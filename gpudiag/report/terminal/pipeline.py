"""Print the report of a pipeline-parallel job: grid, slowdown, verdict and causes; in full also stages and bubble."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis, PipelineWorker
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import (
    and_more,
    commands_with_purposes,
    numbered,
    plain_grid,
    plain_table,
    print_trimmed,
    under_headings,
)
from gpudiag.report.palette import SEVERITY_STYLE, fills
from gpudiag.report.parallel_rows import IMBALANCE_CAUSES
from gpudiag.report.terminal.brief import paths_in_command
from gpudiag.report.terminal.ranks import joined

#: Causes of imbalance in words.
_CAUSES = IMBALANCE_CAUSES | {"rank": "slow workers"}
#: Number of advice lines in a short report.
_FEW_STEPS = 3
#: Maximum number of stages in the table.
_FEW_STAGES = 16
#: If a finding has more ranks, only the first ranks and the last rank are named.
_FEW_RANKS = 8
_MOST_WORKERS = 4096
#: Maximum length of a bar.
_WIDEST_BAR = 60
#: Smallest terminal width with all columns.
_WIDE = 70


def render_pipeline(
    analysis: PipelineAnalysis,
    console: Console,
    *,
    all_ranks: bool = False,
    full: bool = False,
    paths: Sequence[str] = (),
) -> None:
    """Print the report.

    Args:
        analysis: the job.
        console: the terminal.
        all_ranks: whether to list every worker.
        full: whether to add stages, evidence, all advice and the other findings.
        paths: the paths of the table as the user gave them.
    """
    findings = [_finding(finding, analysis.step_ms, full=full) for finding in analysis.findings]
    sections: list[tuple[str, RenderableType | None]] = [
        ("What the imbalance costs", (_causes if full else _shares)(analysis, console)),
        ("Stages", _stages(analysis, console.width) if full else None),
        ("Workers", _workers(analysis.workers) if all_ranks else None),
        ("Other findings", Group(*findings[1:]) if full and len(findings) > 1 else None),
        ("How far to trust this", _trust(analysis) if full else None),
    ]
    verdict = findings[0] if findings else Text("No cause costs 1 % of the step.", style="bold")
    rest = [] if full else [Text(), _rest(analysis, console.width, paths)]
    print_trimmed(console, Group(*_header(analysis), Text(), verdict, *under_headings(sections), *rest))


def _rest(analysis: PipelineAnalysis, width: int, paths: Sequence[str]) -> RenderableType:
    """Return the other findings in one line, and the commands that show more."""
    others = [
        Text().append(one_line(finding.code), style=SEVERITY_STYLE[finding.severity])
        for finding in analysis.findings[1:]
    ]
    for text, finding in zip(others, analysis.findings[1:], strict=True):
        text.append(_saved(finding, analysis.step_ms)).append("," if text is not others[-1] else "")
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    if others:
        rows.add_row(Text("Also"), joined(others, width - len("Also  "), " "))
    command = f"gpudiag analyze {paths_in_command(paths)}"
    commands = [(f"{command} --full", "stages, evidence, all advice"), (f"{command} --all-ranks", "every worker")]
    commands += [(f"gpudiag explain {finding.code}", "meaning and advice") for finding in analysis.findings[:1]]
    rows.add_row(Text("More"), commands_with_purposes(commands, width - len("More  ")))
    return rows


def _gain(finding: Finding, step_ms: float) -> str:
    """Return the step time now and after the fix, and the share that the fix saves."""
    after_ms = max(step_ms - (finding.recoverable_ms_per_step or 0.0), 0.0)
    share = figures.percent(step_ms - after_ms, step_ms)
    before, after = figures.milliseconds(step_ms), figures.milliseconds(after_ms, beside=step_ms)
    return f"{before} → {after} ms per step ({figures.MINUS}{share})"


def _saved(finding: Finding, step_ms: float) -> str:
    """Return ` 368.9 ms (17 %)`; "" if the savings are unknown."""
    saved_ms = finding.recoverable_ms_per_step
    return "" if saved_ms is None else f" {figures.milliseconds(saved_ms)} ms ({figures.percent(saved_ms, step_ms)})"


def _header(analysis: PipelineAnalysis) -> list[Text]:
    """Return lines with the grid, the step time and the source."""
    grid = analysis.grid
    sizes = [f"dp {grid.data}", f"pp {grid.pipeline}"]
    sizes += [f"{grid.ranks_per_worker} ranks per worker"] if grid.ranks_per_worker > 1 else []
    chunks = f", {grid.chunks_per_stage} parts of the model per stage" if grid.chunks_per_stage > 1 else ""
    kind = "Pipeline-parallel" if grid.pipeline > 1 else "Data-parallel"
    size = f" {figures.TIMES} ".join(sizes)
    return [
        Text(f"{kind} job, {size}, {grid.microbatches} microbatches per step{chunks}", style="bold"),
        Text(f"Step {figures.milliseconds(analysis.step_ms)} ms")
        .append(f", {analysis.imbalance.slowdown:.2f} times an ideal step without imbalance", style="bold")
        .append(f" ({figures.milliseconds(analysis.imbalance.ideal_ms)} ms)"),
        Text(f"{grid.steps_analysed} of {grid.steps_recorded} steps of {one_line(analysis.source)}", style="dim"),
    ]


def _finding(finding: Finding, step_ms: float, *, full: bool) -> RenderableType:
    """Return a finding with its savings, advice, ranks (unless its title has them) and, with `full`, evidence."""
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    severity = Text(finding.severity.upper(), style=SEVERITY_STYLE[finding.severity])
    rows.add_row(severity, Text(one_line(finding.title), style="bold"))
    if finding.recoverable_ms_per_step is not None:
        rows.add_row(Text("  Gain"), Text(f"{_gain(finding, step_ms)}; confidence: {finding.confidence}"))
    if finding.ranks and not re.search(r"\branks?\b", finding.title, re.IGNORECASE):
        rows.add_row(Text("  Where"), Text(_ranks(finding.ranks)))
    if full:
        facts = "; ".join(f"{name}: {value}" for name, value in finding.evidence.items())
        rows.add_row(Text("  Evidence"), Text(one_line(facts)))
    if finding.advice:
        rows.add_row(Text("  Try"), numbered(tuple(map(one_line, finding.advice[: None if full else _FEW_STEPS]))))
    return rows


def _ranks(ranks: tuple[int, ...]) -> str:
    """Return the ranks, shortened if there are many."""
    if len(ranks) <= _FEW_RANKS:
        return figures.ranks(ranks)
    return f"{len(ranks)} ranks: {ranks[0]}, {ranks[1]} … {ranks[-1]}"


def _shares(analysis: PipelineAnalysis, console: Console) -> RenderableType:
    """Return a bar per cause of imbalance: the share of the step that it costs."""
    costs_ms = {_CAUSES.get(cause, one_line(cause)): effect.saved_ms for cause, effect in analysis.imbalance.by.items()}
    costs_ms["all together"] = analysis.simulated_ms - analysis.imbalance.ideal_ms
    fill = fills(console)["compute"]
    cells = max(min(console.width - max(map(len, costs_ms)) - len("  100 %"), _WIDEST_BAR), 1)
    table = plain_grid({"no_wrap": True}, {"no_wrap": True, "justify": "right"}, {"no_wrap": True}, gap=1)
    for name, ms in costs_ms.items():
        share = min(max(ms / analysis.step_ms, 0.0), 1.0) if analysis.step_ms > 0 else 0.0
        bar = Text(fill.glyph * round(cells * share), style=fill.style)
        table.add_row(Text(name), Text(figures.percent(share, 1.0)), bar)
    return Group(table, Text("Share of the step. Causes may overlap.", style="dim"))


def _causes(analysis: PipelineAnalysis, console: Console) -> RenderableType:
    """Return a table with the step without each cause, a row per cause, and with the ideal step in the last row.

    Narrow terminals omit the column `slowdown`.
    """
    simulated = analysis.simulated_ms
    wide = console.width >= _WIDE
    columns = ("step ms", "slowdown", "saves", "without") if wide else ("step ms", "saves", "without")
    table = plain_table(columns, left=("without",), no_wrap=True)

    def add(name: str, ms: float, slowdown: float) -> None:
        cells = [figures.milliseconds(ms, beside=simulated)]
        cells += [f"{slowdown:.3f}"] if wide else []
        table.add_row(*map(Text, (*cells, figures.percent(max(simulated - ms, 0.0), simulated), name)))

    for cause, effect in analysis.imbalance.by.items():
        add(_CAUSES.get(cause, one_line(cause)), simulated - effect.saved_ms, effect.slowdown)
    add("all (ideal step)", analysis.imbalance.ideal_ms, analysis.imbalance.slowdown)
    note = f"Simulated without host gaps: {figures.milliseconds(simulated)} ms. Causes may overlap."
    return Group(table, Text(note, style="dim"))


def _stages(analysis: PipelineAnalysis, width: int) -> RenderableType:
    """Return the compute time and the slowest worker of each stage, and a line about the bubble."""
    by_stage: dict[int, list[PipelineWorker]] = {}
    for worker in analysis.workers:  # slowest first
        by_stage.setdefault(worker.stage, []).append(worker)
    wide = width >= _WIDE
    columns = ("compute ms", "to mean", "slowest", "idle ms", "slowest rank") if wide else ("ms", "slowest", "rank")
    table = plain_table(("stage", *columns), no_wrap=True)
    for stage, workers in sorted(by_stage.items())[:_FEW_STAGES]:
        mean = sum(worker.compute_ms for worker in workers) / len(workers)
        relative = sum(worker.relative for worker in workers) / len(workers)
        waiting = sum(worker.waiting_ms for worker in workers) / len(workers)
        slowest = f"{workers[0].relative:.2f}"
        cells = [str(stage), figures.milliseconds(mean)]
        cells += [f"{relative:.2f}", slowest, figures.milliseconds(waiting)] if wide else [slowest]
        table.add_row(*map(Text, (*cells, str(workers[0].rank))))
    lines = and_more([], len(by_stage) - _FEW_STAGES)
    if analysis.bubble is not None:
        bubble = analysis.bubble
        lines.append(
            Text(
                f"Bubble: {bubble.percent:.1f} % of the ideal pipeline's span; (p-1)/(m+p-1) gives "
                f"{bubble.theoretical_percent:.1f} %"
            )
        )
    return Group(table, *lines)


def _workers(workers: tuple[PipelineWorker, ...]) -> Table:
    table = plain_table(("rank", "dp", "stage", "compute ms", "to mean", "idle ms"), no_wrap=True)
    for worker in workers[:_MOST_WORKERS]:
        cells = (worker.rank, worker.data_rank, worker.stage, figures.milliseconds(worker.compute_ms))
        row = (*map(str, cells), f"{worker.relative:.2f}", figures.milliseconds(worker.waiting_ms))
        table.add_row(*map(Text, row))
    return table


def _trust(analysis: PipelineAnalysis) -> RenderableType:
    lines = [Text(f"Simulated steps differ from the recorded ones by {analysis.replay_error_percent:.2f} % (mean).")]
    for warning in analysis.validity:
        line = Text(f"{one_line(warning.code)}: ", style="yellow")
        lines.append(line.append(one_line(warning.message), style="default"))
    return Group(*lines)
