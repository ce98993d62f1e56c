"""`gpudiag recommend`: which strategy suits this machine and model best."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gpudiag.commands.command_line.options import Json, Width, known_word, words_of
from gpudiag.commands.command_line.output import write_as_json
from gpudiag.commands.command_line.run_options import (
    BatchSize,
    Devices,
    OneMemoryFormat,
    OnePrecision,
    Python,
    Timeout,
    run_options,
)
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.recommendation import RecommendRequest
from gpudiag.model.job import DEFAULT_FRAMEWORK
from gpudiag.training.models.registry import DEFAULT_WORKLOAD, WORKLOADS
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK as TENSORFLOW_1

EXAMPLES = (
    ("gpudiag recommend vgg16", "predict every strategy, measure the best few by turns, and choose; under 3 minutes"),
    (
        "gpudiag recommend gpt --no-p2p --exact",
        "as on a machine without peer access; no strategy that rounds gradients",
    ),
    ("gpudiag recommend resnet50 --only nccl,cpu-reduce --budget 60", "only between these two, in a minute"),
    ("gpudiag recommend vgg16 --predict-only --facts facts.json", "for the machine of these facts, here without a GPU"),
    (
        "gpudiag recommend alexnet --predict-only --facts facts.json --software tensorflow-1",
        "what TensorFlow 1's own exchanges would take, as published benchmarks ran them",
    ),
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
    software: Annotated[
        str,
        typer.Option(
            metavar=f"{DEFAULT_FRAMEWORK}|{TENSORFLOW_1}",
            help="With --predict-only: what would train. TensorFlow 1's exchanges are predicted as published "
            "benchmarks ran them.",
        ),
    ] = DEFAULT_FRAMEWORK,
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
    budget: Annotated[
        float,
        typer.Option(
            min=20,
            metavar="S",
            help="About how long all of it may take: fewer strategies are measured where it is short.",
        ),
    ] = 180.0,
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
    run = run_options(locals(), workload=workload or DEFAULT_WORKLOAD)
    known_word("--software", software, (DEFAULT_FRAMEWORK, TENSORFLOW_1))
    run = msgspec.structs.replace(run, framework=software)
    given = {
        "--software": None if software == DEFAULT_FRAMEWORK else software,
        "--facts": facts,
        "--gradients": gradients,
        "--compute-ms": compute_ms,
    }
    for option, value in given.items():
        if value is not None and not predict_only:
            raise UsageError(f"{option} goes with --predict-only", "Add --predict-only, or leave it out.")
    if predict_only and (every or output is not None):
        raise UsageError("--predict-only runs nothing, so --all and --output do not apply", "Leave them out.")
    if gradients is not None and workload is not None:
        raise UsageError("give a workload or --gradients, not both", "Leave one of them out.")
    request = RecommendRequest(run=run, exact=exact, every=every, only=words_of(only), budget_s=budget)
    if predict_only:
        from gpudiag.app.recommend.offline_recommendation import recommend_offline

        result = recommend_offline(request, facts=facts, gradients=gradients, compute_ms=compute_ms)
    else:
        from gpudiag.app.recommend.recommend import recommend as measure
        from gpudiag.commands.progress.probes import ProbeProgress
        from gpudiag.commands.progress.strategy_benchmark import StrategyBenchmarkProgress

        with ProbeProgress() as probing, StrategyBenchmarkProgress() as progress:
            result = measure(request, progress.heard, progress.say, probing)
    if as_json:
        write_as_json(result)
    else:
        from gpudiag.report.console import report_console
        from gpudiag.report.terminal.recommendation import render_recommendation

        render_recommendation(result, report_console(width=width))
