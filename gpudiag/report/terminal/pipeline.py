"""Print the report of a pipeline-parallel job: grid, slowdown, verdict, causes, stages, bubble."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis, PipelineWorker
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import and_more, plain_grid, plain_table, print_trimmed, under_headings
from gpudiag.report.palette import SEVERITY_STYLE
from gpudiag.report.parallel_rows import IMBALANCE_CAUSES

#: Causes of imbalance in words.
_CAUSES = IMBALANCE_CAUSES | {"rank": "slow workers"}
#: Number of advice lines in a short report.
_FEW_STEPS = 3
#: Maximum number of stages in the table.
_FEW_STAGES = 16
#: If a finding has more ranks, only some of them are named.
_FEW_RANKS = 8
_MOST_WORKERS = 4096
#: Smallest terminal width with all columns.
_WIDE = 70
_MORE = "More: `gpudiag analyze --full` (evidence, all advice), `--all-ranks` (every worker), `--json`"


def render_pipeline(
    analysis: PipelineAnalysis, console: Console, *, all_ranks: bool = False, full: bool = False
) -> None:
    """Print the report; `full` adds evidence and all advice, `all_ranks` every worker."""
    first, others = analysis.findings[:1], analysis.findings[1:]
    sections: list[tuple[str, RenderableType | None]] = [
        ("What the imbalance costs", _causes(analysis, console.width)),
        ("Stages", _stages(analysis, console.width)),
        ("Workers", _workers(analysis.workers) if all_ranks else None),
        ("Other findings", Group(*(_finding(finding, full=full) for finding in others)) if others else None),
        ("How far to trust this", _trust(analysis)),
    ]
    verdict = _finding(first[0], full=full) if first else Text("No cause costs 1 % of the step.", style="bold")
    more = [] if full else [Text(), Text(_MORE, style="dim")]
    print_trimmed(console, Group(*_header(analysis), Text(), verdict, *under_headings(sections), *more))


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


def _finding(finding: Finding, *, full: bool) -> RenderableType:
    """Return a finding with its savings, ranks and advice; with `full`, also with its evidence."""
    headline = Text(finding.severity.upper(), style=SEVERITY_STYLE[finding.severity])
    headline.append(f"  {one_line(finding.title)}", style="bold")
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    if finding.recoverable_ms_per_step is not None:
        share = figures.percent(finding.recoverable_percent or 0.0, 100.0)
        gain = f"{figures.milliseconds(finding.recoverable_ms_per_step)} ms per step ({share})"
        rows.add_row(Text("Gain"), Text(f"{gain}; confidence: {finding.confidence}"))
    if finding.ranks:
        rows.add_row(Text("Where"), Text(_ranks(finding.ranks)))
    if full:
        facts = "; ".join(f"{name}: {value}" for name, value in finding.evidence.items())
        rows.add_row(Text("Evidence"), Text(one_line(facts)))
    steps = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, step in enumerate(finding.advice if full else finding.advice[:_FEW_STEPS], start=1):
        steps.add_row(Text(f"{number}."), Text(one_line(step)))
    if finding.advice:
        rows.add_row(Text("Try"), steps)
    return Group(headline, Padding(rows, (0, 0, 0, 2), expand=False))


def _ranks(ranks: tuple[int, ...]) -> str:
    """Return the ranks, shortened if there are many."""
    if len(ranks) <= _FEW_RANKS:
        return figures.ranks(ranks, capital=True)
    return f"{len(ranks)} ranks: {ranks[0]}, {ranks[1]} … {ranks[-1]}"


def _causes(analysis: PipelineAnalysis, width: int) -> RenderableType:
    """Return a table with a row for the step without each cause, and a row for the ideal step.

    Narrow terminals omit the column `slowdown`.
    """
    simulated = analysis.simulated_ms
    wide = width >= _WIDE
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
