"""`gpudiag recommend`: choose the best strategy for this machine and model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import (
    BatchSize,
    Devices,
    Json,
    OneMemoryFormat,
    OnePrecision,
    Python,
    Timeout,
    Width,
    known_word,
    split_words,
    this_command,
)
from gpudiag.commands.command_line.output import show
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.recommendation import RecommendRequest
from gpudiag.model.job import DEFAULT_FRAMEWORK, MEMORY_FORMATS, PRECISIONS, RunOptions
from gpudiag.training.models.registry import DEFAULT_WORKLOAD, WORKLOADS
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK as TENSORFLOW_1

EXAMPLES = (
    ("gpudiag recommend vgg16", "predict every strategy, measure the best few by turns, choose one; under 3 minutes"),
    (
        "gpudiag recommend gpt --no-p2p --exact",
        "as on a machine without peer access; no strategy that rounds gradients",
    ),
    ("gpudiag recommend resnet50 --only nccl,cpu-reduce --budget 60", "only between these two, in a minute"),
    ("gpudiag recommend vgg16 --predict-only --facts facts.json", "for the machine of these facts, here without a GPU"),
    (
        "gpudiag recommend alexnet --predict-only --facts facts.json --software tensorflow-1",
        "predicted times of TensorFlow 1's strategies, as published benchmarks ran them",
    ),
    (
        "gpudiag recommend --predict-only --facts facts.json --gradients run.json --compute-ms 41",
        "for your own model, by its gradient sizes and its step without communication",
    ),
)


def recommend(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help=f"Workload to train: {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOAD}.",
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
            min=0.001, metavar="MS", help="With --predict-only: the step without communication, if you know it."
        ),
    ] = None,
    software: Annotated[
        str,
        typer.Option(
            metavar=f"{DEFAULT_FRAMEWORK}|{TENSORFLOW_1}",
            help="With --predict-only: framework of the training. TensorFlow 1's strategies are predicted as "
            "published benchmarks ran them.",
        ),
    ] = DEFAULT_FRAMEWORK,
    devices: Devices = None,
    batch_size: BatchSize = None,
    precision: OnePrecision = None,
    memory_format: OneMemoryFormat = None,
    no_p2p: Annotated[bool, typer.Option("--no-p2p", help="Train without peer access (NCCL_P2P_DISABLE=1).")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Leave out strategies that round gradients.")] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Consider only these, e.g. 'nccl,cpu-reduce --compress bf16'."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Measure every strategy that can run, not only the best predicted.")
    ] = False,
    budget: Annotated[
        float,
        typer.Option(
            min=20,
            metavar="S",
            help="Approximate limit of the total time; with less time, fewer strategies are measured.",
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
            help="Measure the links first (5 to 15 s), or do not. Default: measure unless done within a day.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Say which strategy suits this machine and model best.

    Predicts the step of every strategy from the machine's links (measured once a day), the model's gradient sizes and
    its compute. Measures the best few by turns, and names a winner, or a tie if the difference is within noise. Says
    why, how much time it saves, how much is left to save, and what to change.
    """
    run = RunOptions(
        workload=workload or DEFAULT_WORKLOAD,
        framework=known_word("--software", software, (DEFAULT_FRAMEWORK, TENSORFLOW_1)) or DEFAULT_FRAMEWORK,
        devices=devices,
        batch_size=batch_size,
        precision=known_word("--precision", precision, PRECISIONS),
        memory_format=known_word("--memory-format", memory_format, MEMORY_FORMATS),
        p2p=not no_p2p,
        output=None if output is None else str(output),
        python=python or sys.executable,
        timeout_s=timeout,
        command=this_command(),
        probe=probe,
    )
    if predict_only and (every or output is not None):
        raise UsageError("--predict-only runs nothing, so --all and --output do not apply", "Leave them out.")
    if not predict_only:
        software_option = None if software == DEFAULT_FRAMEWORK else software
        _refuse({"--software": software_option, "--facts": facts, "--gradients": gradients, "--compute-ms": compute_ms})
    if gradients is not None and workload is not None:
        raise UsageError("give a workload or --gradients, not both", "Leave one of them out.")
    request = RecommendRequest(run=run, exact=exact, every=every, only=split_words(only), budget_s=budget)
    if predict_only:
        from gpudiag.app.recommend.offline_recommendation import recommend_offline

        result = recommend_offline(request, facts=facts, gradients=gradients, compute_ms=compute_ms)
    else:
        from gpudiag.app.recommend.recommend import recommend as measure
        from gpudiag.commands.progress.probes import ProbeProgressBar
        from gpudiag.commands.progress.status_line import StrategyBenchmarkProgress

        with ProbeProgressBar() as probing, StrategyBenchmarkProgress() as progress:
            result = measure(request, progress.heard, progress.say, probing)
    from gpudiag.report.terminal.recommendation import render_recommendation

    show(result, render_recommendation, as_json=as_json, width=width)


def _refuse(options: dict[str, object]) -> None:
    """Refuse options that are valid only with `--predict-only`."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} goes with --predict-only", "Add --predict-only, or leave it out.")
