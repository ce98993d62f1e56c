"""`gpudiag profile`: train, record, analyse."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import AllRanks, Full, Json, Width
from gpudiag.commands.command_line.output import show_analysis
from gpudiag.commands.command_line.own_command import command_behind, refuse_options, run_own_command
from gpudiag.commands.command_line.run_options import (
    BatchSize,
    OneMemoryFormat,
    OnePrecision,
    Python,
    Timeout,
    run_options,
)
from gpudiag.errors import UsageError
from gpudiag.model.job import (
    COMPRESSIONS,
    DATA_SOURCES,
    NCCL_ALGORITHMS,
    TRAINED_MODELS,
    Rendezvous,
)
from gpudiag.training.models.registry import DEFAULT_WORKLOAD, WORKLOADS
from gpudiag.training.strategies.registry import default_strategy, strategies

EXAMPLES = (
    ("gpudiag profile -- torchrun --nproc-per-node 4 train.py", "your own command, unchanged"),
    ("gpudiag profile --stop-after -- python train.py", "the same, ended when all is measured"),
    ("gpudiag profile", f"{DEFAULT_WORKLOAD} on every GPU, or on 2 CPU processes where there is none"),
    ("gpudiag profile resnet50 --devices 4 --precision bf16 --memory-format nhwc", "ResNet-50 on four GPUs"),
    ("gpudiag profile gpt --no-p2p", "what it costs to go without peer access"),
    ("gpudiag profile mytraining:main --output runs/first", "a function of your own, in each process"),
    ("gpudiag profile resnet50 --model trivial --strategy independent", "what its input alone takes"),
    ("gpudiag profile resnet50 --framework tensorflow --strategy hierarchical-copy", "the same under TensorFlow"),
    ("gpudiag profile resnet50 --strategy independent --json > floor.json", "the step without any exchange"),
    ("gpudiag profile gpt --nnodes 2 --rdzv-endpoint host0:29500 --output runs/two", "on two nodes: the same on each"),
)


def _defaults(framework: str) -> str:
    return f"{default_strategy(framework, on_gpu=True)} on GPUs, else {default_strategy(framework, on_gpu=False)}"


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


def _check_words(words: list[str], *, stop_after: bool) -> None:
    """What was meant where a script or a command is given like the name of a workload."""
    if len(words) > 1 or (words and words[0].endswith(".py")):
        started = " ".join(words if len(words) > 1 else ("python", *words))
        raise UsageError(
            f"{words[0]} is no workload, and no command that is here", f"Write: gpudiag profile -- {started}"
        )
    if stop_after:
        raise UsageError(
            "--stop-after goes with a command of your own", "Write: gpudiag profile --stop-after -- COMMAND"
        )


def profile(
    context: typer.Context,
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD | MODULE:FUNCTION | -- COMMAND...]",
            help=f"What to train: {', '.join(WORKLOADS)}; a function of your own that is called in each process and "
            "trains within gpudiag.profile(); or, behind --, a command of your own as you start it (torchrun, python, "
            f"accelerate launch, deepspeed, srun, mpirun). Default: {DEFAULT_WORKLOAD}.",
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
            metavar="|".join(strategies()),
            help=f"How gradients are exchanged. Default: {_defaults('pytorch')}. "
            f"With --framework tensorflow: {', '.join(strategies('tensorflow'))}; default: {_defaults('tensorflow')}.",
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
    stop_after: Annotated[
        bool, typer.Option("--stop-after", help="End a command of your own when all is measured.")
    ] = False,
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
    full: Full = False,
    width: Width = None,
) -> None:
    """Train, record traces, and say where each step's time went.

    A job of your own, unchanged: gpudiag profile -- torchrun train.py

    Leaves out steps until their times have settled, times steps without the profiler, records a few with it, and
    analyses the traces. On several nodes, each analyses the ranks whose traces it can see.
    """
    words = workload or []
    command = command_behind(context)
    if command is not None:
        refuse_options(context)
        code = run_own_command(
            command,
            output=output,
            stop=stop_after,
            steps=steps,
            warmup=_warmup(warmup),
            all_ranks=all_ranks,
            full=full,
            width=width,
        )
        raise typer.Exit(code)
    _check_words(words, stop_after=stop_after)
    if nnodes > 1 and rdzv_endpoint is None:
        raise UsageError("--nnodes needs --rdzv-endpoint", "Give one node's HOST:PORT, the same on every node.")
    meeting = (
        Rendezvous(endpoint=rdzv_endpoint, backend=rdzv_backend, node_rank=node_rank)
        if rdzv_endpoint is not None
        else None
    )
    options = run_options(
        locals(),
        workload=words[0] if words else DEFAULT_WORKLOAD,
        volume=_volume(volume),
        warmup=_warmup(warmup),
        compile=compile_model,
        nodes=nnodes,
        rendezvous=meeting,
    )
    from gpudiag.app.profile.profile import profile as run
    from gpudiag.commands.progress.run import RunProgress

    with RunProgress() as progress:
        done = run(options, progress)
    show_analysis(done.analysis, as_json=as_json, all_ranks=all_ranks, full=full, width=width)
    typer.echo(f"gpudiag: saved in {done.run_dir}", err=True)
