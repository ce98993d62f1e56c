"""`gpudiag profile`: train, record, analyse."""

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from gpudiag.commands.options import AllRanks, BatchSize, Json, OneMemoryFormat, OnePrecision, Python, Timeout, Width
from gpudiag.errors import UsageError
from gpudiag.model.job import (
    COMPRESSIONS,
    DATA_SOURCES,
    FRAMEWORKS,
    MEMORY_FORMATS,
    NCCL_ALGORITHMS,
    PRECISIONS,
    TRAINED_MODELS,
    Compression,
    ExchangeOptions,
    NcclAlgorithm,
)
from gpudiag.strategies.registry import STRATEGIES
from gpudiag.strategies.tensorflow.registry import TENSORFLOW_STRATEGIES
from gpudiag.workloads.registry import DEFAULT_WORKLOAD, WORKLOADS

EXAMPLES = (
    ("gpudiag profile", f"{DEFAULT_WORKLOAD} on every GPU, or on 2 CPU processes where there is none"),
    ("gpudiag profile resnet50 --devices 4 --precision bf16 --memory-format nhwc", "ResNet-50 on four GPUs"),
    ("gpudiag profile gpt --no-p2p", "what it costs to go without peer access"),
    ("gpudiag profile mytraining:main --output runs/first", "a function of your own, in each process"),
    ("gpudiag profile resnet50 --model trivial --strategy independent", "what its input alone takes"),
    ("gpudiag profile resnet50 --framework tensorflow --strategy hierarchical-copy", "the same under TensorFlow"),
    ("gpudiag profile resnet50 --strategy independent --json > floor.json", "the step without any exchange"),
    ("gpudiag profile gpt --nnodes 2 --rdzv-endpoint host0:29500 --output runs/two", "on two nodes: the same on each"),
)


def _one_of(option: str, value: str | None, valid: tuple[str, ...]) -> None:
    if value is not None and value not in valid:
        raise UsageError(f"{option} knows no '{value}'", f"There are: {', '.join(valid)}.")


def _warmup(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"--warmup takes 'auto' or a number of steps, not '{text}'", "See `gpudiag profile --help`.")
    return int(text)


def _volume(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    extents = text.split(",")
    if len(extents) != 3 or not all(extent.isdecimal() and int(extent) > 0 for extent in extents):
        raise UsageError(
            f"--volume takes three numbers of voxels, Z,Y,X, not '{text}'", "For example: --volume 55,575,575."
        )
    z, y, x = map(int, extents)
    return z, y, x


def profile(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD | MODULE:FUNCTION]",
            help=f"What to train: {', '.join(WORKLOADS)}, or a function of your own that is called in each process and "
            f"trains within gpudiag.profile(). Default: {DEFAULT_WORKLOAD}.",
            show_default=False,
        ),
    ] = None,
    *,
    framework: Annotated[
        str, typer.Option(metavar="torch|tensorflow", help="What trains; --strategy and defaults differ.")
    ] = "torch",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(STRATEGIES),
            help="How gradients are exchanged. Default: nccl on GPUs, else gloo. "
            f"With --framework tensorflow: {', '.join(TENSORFLOW_STRATEGIES)}; default: nccl on GPUs, else cpu-reduce.",
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="GPUs (or CPU processes) per node. Default: all GPUs, or 2.")
    ] = None,
    batch_size: BatchSize = None,
    precision: OnePrecision = None,
    memory_format: OneMemoryFormat = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(DATA_SOURCES),
            help="Batches lie on the device, in pinned host memory, or come from a DataLoader or from other processes "
            "over ZeroMQ. Default: loader.",
        ),
    ] = None,
    loader_workers: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Processes that make batches, for each that trains. Default: 2 on GPUs, 0 on CPUs."
        ),
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch", help="Copy each batch to the GPU while the step before it runs.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(TRAINED_MODELS),
            help="Train one weight per input value instead, or nothing: what the input alone takes. Default: whole.",
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(metavar="Z,Y,X", help="Voxels of the volume that unet3d-predict predicts.", show_default=False),
    ] = None,
    keep_prediction: Annotated[
        bool,
        typer.Option("--keep-prediction", help="Leave the predicted volume, prediction.zarr, in the run directory."),
    ] = False,
    compile_model: Annotated[bool, typer.Option("--compile", help="Train torch.compile(model).")] = False,
    bucket_mb: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="MB", help="Gradients that travel together (DDP). Default: PyTorch's 25."),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(metavar="|".join(COMPRESSIONS), help="Precision in which gradients travel. Default: their own."),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Batches per step, exchanged once after the last.")
    ] = 1,
    nccl_algo: Annotated[
        str | None, typer.Option(metavar="|".join(NCCL_ALGORITHMS), help="Algorithm that NCCL takes (NCCL_ALGO).")
    ] = None,
    ps_device: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="ps-gpu: all variables on this device. Default: spread.")
    ] = None,
    no_p2p: Annotated[bool, typer.Option("--no-p2p", help="Train without peer access (NCCL_P2P_DISABLE=1).")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps timed without the profiler. Default: about 3 s.")
    ] = None,
    warmup: Annotated[
        str, typer.Option(metavar="auto|N", help="Steps left out first; auto: until their times have settled.")
    ] = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run directory. Default: gpudiag-runs/<time>-<workload>-<strategy>.", show_default=False
        ),
    ] = None,
    python: Python = None,
    timeout: Timeout = 600.0,
    nnodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes in the job; start it on each.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="This node's number; only --rdzv-backend static needs it.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the nodes meet, as for torchrun.")
    ] = None,
    rdzv_backend: Annotated[str, typer.Option(metavar="NAME", help="How they meet, as for torchrun.")] = "c10d",
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            help="Measure the links between several GPUs first (about 5 s), or do not. Default: unless they were "
            "measured within a day.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    all_ranks: AllRanks = False,
    width: Width = None,
) -> None:
    """Train, record traces, and say where each step's time went.

    Leaves out steps until their times have settled, times steps without the profiler, records a few with it, and
    analyses the traces. On several nodes, each analyses the ranks whose traces it can see.
    """
    words = workload or []
    if len(words) > 1:
        raise UsageError(
            "profiling an unchanged command is not supported yet",
            "Put its training loop into gpudiag.profile(), or name a function of it as module:function.",
        )
    _one_of("--framework", framework, tuple(FRAMEWORKS))
    _one_of("--precision", precision, PRECISIONS)
    _one_of("--memory-format", memory_format, MEMORY_FORMATS)
    _one_of("--data", data, DATA_SOURCES)
    _one_of("--model", model, TRAINED_MODELS)
    _one_of("--compress", compress, COMPRESSIONS)
    _one_of("--nccl-algo", nccl_algo, NCCL_ALGORITHMS)
    from gpudiag import pipeline, preparation
    from gpudiag.commands.probe_progress import ProbeProgress
    from gpudiag.commands.progress_lines import RunProgress
    from gpudiag.commands.report_files import REPORT_FILE, run_html, step_beside
    from gpudiag.launch import Rendezvous

    if nnodes > 1 and rdzv_endpoint is None:
        raise UsageError("--nnodes needs --rdzv-endpoint", "Give one node's HOST:PORT, the same on every node.")
    asked = preparation.Request(
        workload=words[0] if words else DEFAULT_WORKLOAD,
        framework=FRAMEWORKS[framework],
        strategy=strategy,
        devices=devices,
        batch_size=batch_size,
        precision=precision,
        memory_format=memory_format,
        data=data,
        loader_workers=loader_workers,
        prefetch=prefetch,
        model=model,
        volume=_volume(volume),
        keep_prediction=keep_prediction,
        compile=compile_model,
        p2p=not no_p2p,
        exchange=ExchangeOptions(
            bucket_mb=bucket_mb,
            compress=cast("Compression | None", compress),
            accumulate=accumulate,
            nccl_algo=cast("NcclAlgorithm | None", nccl_algo),
            ps_device=ps_device,
        ),
        steps=steps,
        warmup=_warmup(warmup),
        run_dir=output,
        python=python or sys.executable,
        timeout_s=timeout,
        nodes=nnodes,
        rendezvous=None
        if rdzv_endpoint is None
        else Rendezvous(endpoint=rdzv_endpoint, backend=rdzv_backend, node_rank=node_rank),
        command=("gpudiag", *sys.argv[1:]),
        probe=probe,
    )
    prepared = preparation.prepare(asked)
    typer.echo(f"gpudiag: {prepared.describe()}", err=True)
    with ProbeProgress() as probing:
        prepared = preparation.measure_links(prepared, asked.probe, probing)
    with RunProgress(prepared.plan.processes) as progress:
        pipeline.train(prepared, progress.heard)
        progress.say("analysing")
        run_dir = prepared.plan.run_dir
        analysis = pipeline.analyze_run(run_dir)
        run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    if as_json:
        from gpudiag.reporting.json_output import encode

        sys.stdout.write(encode(analysis).decode())
    else:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.terminal import render_analysis

        render_analysis(analysis, report_console(width=width), all_ranks=all_ranks)
    sys.stdout.flush()
    inference = pipeline.inference_of(prepared.plan.run_dir)
    if inference is not None:
        rate = f"{inference.mvox_per_s:.3g} Mvox/s"
        typer.echo(f"gpudiag: {inference.voxels:,} voxels written in {inference.seconds:.1f} s: {rate}", err=True)
    typer.echo(f"gpudiag: saved in {prepared.plan.run_dir}", err=True)
