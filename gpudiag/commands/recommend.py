"""`gpudiag recommend`: which strategy suits this machine and model best."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.options import BatchSize, Devices, Json, OneMemoryFormat, OnePrecision, Python, Timeout, Width
from gpudiag.errors import UsageError
from gpudiag.model.job import MEMORY_FORMATS, PRECISIONS
from gpudiag.workloads.registry import DEFAULT_WORKLOAD, WORKLOADS

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts
    from gpudiag.model.recommendation import Recommendation
    from gpudiag.recommendation.trial import Asked

EXAMPLES = (
    ("gpudiag recommend vgg16", "predict every strategy, measure the best few by turns, and choose; under 3 minutes"),
    (
        "gpudiag recommend gpt --no-p2p --exact",
        "as on a machine without peer access; no strategy that rounds gradients",
    ),
    ("gpudiag recommend resnet50 --only nccl,cpu-reduce --budget 60", "only between these two, in a minute"),
    ("gpudiag recommend vgg16 --predict-only --facts facts.json", "for the machine of these facts, here without a GPU"),
    (
        "gpudiag recommend --predict-only --facts facts.json --gradients run.json --compute-ms 41",
        "for a model of your own, by its gradient sizes and its step without exchange",
    ),
)


def recommend(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help=f"What will be trained: {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOAD}.",
            show_default=False,
        ),
    ] = None,
    *,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Run nothing: predict from facts and gradient sizes alone.")
    ] = False,
    facts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --predict-only: the machine, as `gpudiag bandwidth --save` wrote it. Default: this.",
        ),
    ] = None,
    gradients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --predict-only: a JSON list of bytes per gradient in the order of backward, or a run.json.",
        ),
    ] = None,
    compute_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="MS", help="With --predict-only: the step without exchange, where you know it."
        ),
    ] = None,
    devices: Devices = None,
    batch_size: BatchSize = None,
    precision: OnePrecision = None,
    memory_format: OneMemoryFormat = None,
    no_p2p: Annotated[bool, typer.Option("--no-p2p", help="As on a machine without peer access.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Leave out strategies that round gradients on the way.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Consider only these, e.g. 'nccl,cpu-reduce --compress bf16'."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Measure every strategy that can run, not only the most promising.")
    ] = False,
    budget: Annotated[float, typer.Option(min=20, metavar="S", help="About how long all of it may take.")] = 180.0,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run directory. Default: gpudiag-runs/<time>-<workload>-recommend.", show_default=False
        ),
    ] = None,
    python: Python = None,
    timeout: Timeout = 120.0,
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            help="Measure the links first (about 5 s), or do not. Default: unless they were measured within a day.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Say which strategy suits this machine and model best.

    Takes the machine's facts (measured once a day), the model's gradient sizes and its compute alone, predicts the step
    of every strategy from bytes, links and overlap, measures the best few side by side, by turns, and names a winner,
    or a tie where the difference is within noise. Says why, what is gained, how far the ceiling is, and what to change.
    """
    from gpudiag.recommendation.trial import Asked

    _one_of("--precision", precision, PRECISIONS)
    _one_of("--memory-format", memory_format, MEMORY_FORMATS)
    given = {"--facts": facts, "--gradients": gradients, "--compute-ms": compute_ms}
    for option, value in given.items():
        if value is not None and not predict_only:
            raise UsageError(f"{option} goes with --predict-only", "Add --predict-only, or leave it out.")
    if predict_only and (every or output is not None):
        raise UsageError("--predict-only runs nothing, so --all and --output do not apply", "Leave them out.")
    if gradients is not None and workload is not None:
        raise UsageError("give a workload or --gradients, not both", "Leave one of them out.")
    asked = Asked(
        workload=workload or DEFAULT_WORKLOAD,
        devices=devices,
        batch_size=batch_size,
        precision=precision,
        memory_format=memory_format,
        p2p=not no_p2p,
        exact=exact,
        every=every,
        only=tuple(word.strip() for word in (only or "").split(",") if word.strip()),
        budget_s=budget,
        output=output,
        python=python or sys.executable,
        timeout_s=timeout,
        probe=probe,
        command=("gpudiag", *sys.argv[1:]),
    )
    found = _predict(asked, facts, gradients, compute_ms) if predict_only else _measure(asked)
    if as_json:
        from gpudiag.reporting.json_output import encode

        sys.stdout.write(encode(found).decode())
    else:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.recommendation_table import render_recommendation

        render_recommendation(found, report_console(width=width))
    sys.stdout.flush()


def _one_of(option: str, value: str | None, valid: tuple[str, ...]) -> None:
    if value is not None and value not in valid:
        raise UsageError(f"{option} knows no '{value}'", f"There are: {', '.join(valid)}.")


def _measure(asked: "Asked") -> "Recommendation":
    from gpudiag.commands.contest_progress import ContestProgress
    from gpudiag.commands.probe_progress import ProbeProgress
    from gpudiag.recommendation.trial import recommend as run

    with ProbeProgress() as probing, ContestProgress() as progress:
        return run(asked, progress.heard, progress.say, probing)


def _predict(asked: "Asked", facts: Path | None, gradients: Path | None, compute_ms: float | None) -> "Recommendation":
    from gpudiag.recommendation.outlook import describe_workload, outlook, read_gradients
    from gpudiag.recommendation.trial import considered
    from gpudiag.workloads.registry import training_entry

    chosen = considered(asked)
    machine = _facts(facts, p2p=asked.p2p)
    if gradients is not None:
        model = read_gradients(gradients)
    else:
        name = training_entry(asked.workload, "gpudiag recommend").name
        model = describe_workload(name, on_gpu=any(gpu.visible for gpu in machine.gpus), python=asked.python)
    return outlook(
        machine,
        model,
        chosen,
        devices=asked.devices,
        batch_size=asked.batch_size,
        compute_ms=compute_ms,
        precision=asked.precision,
        p2p=asked.p2p,
    )


def _facts(path: Path | None, *, p2p: bool) -> "Facts":
    """The saved facts, or this machine's inventory with what was measured of it within a day."""
    from gpudiag.probing.cache import cached_measurements
    from gpudiag.probing.facts_file import load_facts
    from gpudiag.probing.inventory import gather_inventory

    if path is not None:
        return load_facts(path)
    inventory = gather_inventory()
    return cached_measurements(inventory, "nccl" if p2p else "nccl-no-p2p") or inventory
