"""`gpudiag diff`: what made the difference between two runs."""

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, Json, MaxTraceGb, Width, read_limits
from gpudiag.commands.command_line.output import write_as_json
from gpudiag.errors import UnreadableInputError, UsageError

if TYPE_CHECKING:
    from gpudiag.model.diff import Diff

EXAMPLES = (
    ("gpudiag diff traces-monday/ traces-today/", "two sets of traces: B against A"),
    ("gpudiag diff main.json gpudiag-runs/20260301-120000-resnet50-nccl", "a run against a saved analysis"),
    ("gpudiag diff main.json branch.json --fail-on regression=5%", "for CI: exit code 1 when steps take 5 % longer"),
    ("gpudiag diff main.json branch.json --json | jq .buckets", "for scripts"),
)

_HELP = "A run directory, a trace, a directory or pattern of traces, or an analysis.json"
_REGRESSION = re.compile(r"regression=(\d{1,6}(?:\.\d{1,6})?)%", re.ASCII)

Before = Annotated[str, typer.Argument(metavar="A", help=f"{_HELP}.", show_default=False)]
After = Annotated[str, typer.Argument(metavar="B", help="The same of the run to compare with it.", show_default=False)]
FailOn = Annotated[
    str | None,
    typer.Option(
        metavar="regression=N%",
        help="Exit with code 1 when B's mean step is more than N % longer than A's and that is beyond the noise of "
        "their steps; with code 4 when these runs cannot tell.",
    ),
]


def diff(
    before: Before,
    after: After,
    *,
    as_json: Json = False,
    fail_on: FailOn = None,
    width: Width = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Compare two runs.

    Says which bucket, rank, kernel, collective or copy made the difference of their step times, adding up to it.
    """
    threshold = _percent(fail_on) if fail_on is not None else None
    from gpudiag.app.diff import diff as compare

    result = compare(before, after, limits=read_limits(max_trace_gb))
    if as_json:
        write_as_json(result)
    else:
        from gpudiag.report.console import report_console
        from gpudiag.report.diff.terminal import render_diff

        render_diff(result, report_console(width=width))
        sys.stdout.flush()
    if threshold is not None and regressed(result, threshold):
        typer.echo(f"gpudiag: --fail-on {fail_on} was crossed", err=True)
        raise typer.Exit(1)


def regressed(diff: "Diff", percent: float) -> bool:
    """Whether the judged step time grew by more than `percent`, and by more than noise.

    Raises:
        UnreadableInputError: the runs do other work, or their steps are too few to know the noise of what looks like a
            regression. A build that cannot tell must not pass as one that can, nor fail as one that asked wrongly.
    """
    other_work = next((change for change in diff.run_differences if not change.same_work), None)
    if other_work is not None:
        from gpudiag.model.sanitize import one_line

        raise UnreadableInputError(
            f"--fail-on regression: {other_work.what} is {one_line(other_work.before)} in A and "
            f"{one_line(other_work.after)} in B, so that a longer step is no regression",
            "Compare runs of the same work, or leave --fail-on out.",
        )
    step = diff.step(diff.judged)
    if step.percent is None or step.percent <= percent:
        return False
    if step.ci95_ms is None:
        raise UnreadableInputError(
            f"--fail-on regression: the step is {step.percent:.1f} % longer, but its noise is not known: {step.reason}",
            "Record five steps or more of both runs, with `gpudiag profile` or after a warm-up.",
        )
    return step.ci95_ms[0] > 0


def _percent(word: str) -> float:
    """The threshold, refused before any work when it is misspelt."""
    match = _REGRESSION.fullmatch(word)
    if match is None:
        raise UsageError(f"--fail-on knows no '{word}'", "It is regression=N%, as in --fail-on regression=5%.")
    return float(match[1])
