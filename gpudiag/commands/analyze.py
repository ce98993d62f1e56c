"""`gpudiag analyze`: diagnose traces."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import (
    MAX_TRACE_GB,
    AllRanks,
    Full,
    Json,
    MaxTraceGb,
    Scheduler,
    Traces,
    Width,
    WorldSize,
    known_word,
    read_limits,
)
from gpudiag.commands.command_line.output import show_analysis, show_pipeline
from gpudiag.model.analysis import FINDING_CODES, SEVERITIES, VALIDITY_CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis
    from gpudiag.trace.recordings import Recording

EXAMPLES = (
    ("gpudiag analyze traces/", "all ranks of one job, a file each (.json or .json.gz)"),
    ("gpudiag analyze traces/ --full", "with evidence, kernels and modules"),
    ("gpudiag analyze gpudiag-runs/20260301-120000-resnet50-nccl", "a run that `gpudiag profile` recorded"),
    ("gpudiag analyze 'traces/rank*.pt.trace.json.gz' --json > analysis.json", "for scripts"),
    ("gpudiag analyze traces/digests", "from digests of ranks; see gpudiag digest"),
    ("gpudiag analyze report.sqlite", "an export of Nsight Systems"),
    ("gpudiag analyze operations.parquet", "a table of the operations of a pipeline-parallel job"),
    ("gpudiag analyze traces/ --fail-on straggler --fail-on critical", "for CI: exit code 1 when found"),
)

#: Valid words of --fail-on.
THRESHOLDS = (*SEVERITIES, *FINDING_CODES, *VALIDITY_CODES)

FailOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODE|SEVERITY",
        help="Exit with code 1 if the analysis has a finding or a warning of this code, or a finding of this "
        "severity or a worse one (critical, warning, info). May be given several times.",
    ),
]


def analyze(
    paths: Traces,
    *,
    as_json: Json = False,
    fail_on: FailOn = None,
    world_size: WorldSize = None,
    all_ranks: AllRanks = False,
    full: Full = False,
    width: Width = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
    scheduler: Scheduler = None,
) -> None:
    """Say where each step's time went, from existing traces.

    Reads the traces that torch.profiler writes, of one rank or of all, and tables of the operations of a
    pipeline-parallel job (Parquet). Needs no GPU and no framework.
    """
    thresholds = _thresholds(fail_on or [])
    from gpudiag.app.analyze import analyze as run
    from gpudiag.app.analyze import analyze_operation_table
    from gpudiag.trace.recordings import SeveralRecordingsError

    limits = read_limits(max_trace_gb)
    engine = None
    if scheduler is not None:
        from gpudiag.app.digests.cluster import on_cluster

        engine = on_cluster(scheduler)

    def analyse(job: "Sequence[str]") -> "Analysis":
        analysis = run(job, world_size=world_size, limits=limits, engine=engine)
        show_analysis(analysis, as_json=as_json, all_ranks=all_ranks, width=width, full=full, paths=job)
        return analysis

    analyses: list[Analysis | PipelineAnalysis]
    pipeline = analyze_operation_table(paths, limits=limits)
    if pipeline is not None:
        analyses = [pipeline]
        show_pipeline(pipeline, as_json=as_json, all_ranks=all_ranks, width=width, full=full, paths=paths)
    else:
        try:
            analyses = [analyse(paths)]
        except SeveralRecordingsError as error:
            if as_json:  # one JSON object describes one job
                raise
            analyses = list(_each_job(error.recordings, analyse))
    crossed = [word for word in thresholds if any(crosses(analysis, word) for analysis in analyses)]
    for word in crossed:
        typer.echo(f"gpudiag: --fail-on {word} was crossed", err=True)
    if crossed:
        raise typer.Exit(1)


def _each_job(
    recordings: "Sequence[Recording]", analyse: "Callable[[Sequence[str]], Analysis]"
) -> "Iterator[Analysis]":
    """Print and yield the analysis of each job below its paths; then print the command that compares two jobs."""
    from gpudiag.model.sanitize import with_escapes
    from gpudiag.trace.recordings import diff_command

    for number, recording in enumerate(recordings, 1):
        typer.echo(f"Job {number} of {len(recordings)}: {with_escapes(' '.join(recording.paths))}\n")
        yield analyse(recording.paths)
        typer.echo()
    typer.echo(f"Two compared: {diff_command(recordings)}")


def crosses(analysis: "Analysis | PipelineAnalysis", word: str) -> bool:
    """Return whether an analysis has a finding or warning of this code, or a finding of at least this severity."""
    if word in SEVERITIES:
        sufficient = SEVERITIES[: SEVERITIES.index(word) + 1]
        return any(finding.severity in sufficient for finding in analysis.findings)
    # In a code such as `cannot-tell:straggler`, a rule's name follows the colon. The warning crosses `cannot-tell`.
    warnings = {warning.code.partition(":")[0] for warning in analysis.validity}
    return word in warnings | {finding.code for finding in analysis.findings}


def _thresholds(words: list[str]) -> list[str]:
    """Return each threshold once; refuse unknown words before any work."""
    for word in words:
        known_word("--fail-on", word, THRESHOLDS)
    return list(dict.fromkeys(words))
