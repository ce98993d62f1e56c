"""`gpudiag diff`: compare two runs."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, Json, MaxTraceGb, Width, read_limits
from gpudiag.commands.command_line.output import show
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
After = Annotated[
    str, typer.Argument(metavar="B", help="The run to compare with A, in any of these forms.", show_default=False)
]
FailOn = Annotated[
    str | None,
    typer.Option(
        metavar="regression=N%",
        help="Exit with code 1 if B's mean step is more than N % longer than A's, and the difference exceeds the "
        "noise of their steps; with code 4 if the runs cannot decide that.",
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

    Attributes the difference of their step times to buckets, ranks, kernels, collectives and copies.
    """
    threshold = _percent(fail_on) if fail_on is not None else None
    from gpudiag.app.diff import diff as compare

    result = compare(before, after, limits=read_limits(max_trace_gb))
    from gpudiag.report.diff.terminal import render_diff

    show(result, render_diff, as_json=as_json, width=width)
    if threshold is not None and regressed(result, threshold):
        typer.echo(f"gpudiag: --fail-on {fail_on} was crossed", err=True)
        raise typer.Exit(1)


def regressed(diff: "Diff", percent: float) -> bool:
    """Return whether the step time grew by more than `percent`, and by more than noise.

    Raises:
        UnreadableInputError: the runs do different work, or have too few steps to know the noise. A CI job must not
            pass if a regression cannot be excluded.
    """
    different_work = next((change for change in diff.run_differences if not change.same_work), None)
    if different_work is not None:
        from gpudiag.model.sanitize import one_line

        raise UnreadableInputError(
            f"--fail-on regression: {different_work.what} is {one_line(different_work.before)} in A and "
            f"{one_line(different_work.after)} in B, so that a longer step is no regression",
            "Compare runs of the same work, or leave --fail-on out.",
        )
    step = diff.step(diff.judged)
    # The percentage is None only if A's step took no time.
    if step.percent is None or step.percent <= percent:
        return False
    if step.ci95_ms is None:
        raise UnreadableInputError(
            f"--fail-on regression: the step is {step.percent:.1f} % longer, but its noise is unknown: {step.reason}",
            "Record five steps or more of both runs, with `gpudiag profile` or after a warm-up.",
        )
    return step.ci95_ms[0] > 0


def _percent(word: str) -> float:
    """Return the percentage of a word such as `regression=5%`. Raise UsageError for any other word."""
    match = _REGRESSION.fullmatch(word)
    if match is None:
        raise UsageError(f"--fail-on knows no '{word}'", "Give regression=N%, as in --fail-on regression=5%.")
    return float(match[1])
