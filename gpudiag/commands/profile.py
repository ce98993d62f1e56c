"""`gpudiag profile`: train, record, analyse."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import (
    AllRanks,
    BatchSize,
    Full,
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
from gpudiag.commands.command_line.output import from_here, show_analysis
from gpudiag.commands.command_line.parallel_option import METAVAR, read_layout
from gpudiag.commands.command_line.user_command import (
    CommandOptions,
    command_after_separator,
    refuse_other_options,
    run_user_command,
)
from gpudiag.errors import UsageError
from gpudiag.model.job import (
    CHANGES,
    COMPRESSIONS,
    DATA_SOURCES,
    MEMORY_FORMATS,
    NCCL_ALGORITHMS,
    PRECISIONS,
    TRAINED_MODELS,
    Change,
    CommunicationOptions,
    Rendezvous,
    RunOptions,
)
from gpudiag.model.run import SCHEDULES
from gpudiag.model.run_directory import SOURCE_TEXT_VARIABLE
from gpudiag.training.frameworks.registry import framework_option
from gpudiag.training.models.registry import DEFAULT_WORKLOAD, WORKLOADS
from gpudiag.training.strategies.registry import default_strategy, strategies

EXAMPLES = (
    ("gpudiag profile -- torchrun --nproc-per-node 4 train.py", "your own command, unchanged"),
    ("gpudiag profile --stop-after -- python train.py", "the same, ended when all is measured"),
    ("gpudiag profile", f"{DEFAULT_WORKLOAD} on every GPU, or on 2 CPU processes where there is none"),
    ("gpudiag profile resnet50 --devices 4 --precision bf16 --memory-format nhwc", "ResNet-50 on four GPUs"),
    ("gpudiag profile resnet50 --try channels-last,fused,compile", "savings of changes, predicted and measured"),
    ("gpudiag profile gpt --no-p2p", "the cost of training without peer access"),
    ("gpudiag profile gpt --parallel pp=2,dp=2,microbatches=8", "two pipeline stages, two replicas"),
    ("gpudiag profile mytraining:main --output runs/first", "your own function, in each process"),
    ("gpudiag profile resnet50 --model trivial --strategy independent", "the time of its input alone"),
    ("gpudiag profile resnet50 --framework tensorflow --strategy hierarchical-copy", "the same under TensorFlow"),
    ("gpudiag profile resnet50 --strategy independent --json > floor.json", "the step without communication"),
    ("gpudiag profile gpt --nnodes 2 --rdzv-endpoint host0:29500 --output runs/two", "on two nodes: the same on each"),
)


#: Ways to call the command, the main way first.
USAGES = ("[OPTIONS] -- COMMAND...", "[OPTIONS] [WORKLOAD | MODULE:FUNCTION]")
#: Parameters below each heading in the help.
GROUPS = {
    "What to profile": ("workload",),
    "Measurement": ("stop_after", "steps", "warmup", "output", "no_source"),
    "Report": ("full", "all_ranks", "width", "as_json"),
    "Workloads: job": (
        *("framework", "strategy", "devices", "parallel", "batch_size", "precision", "memory_format"),
        *("compile_model", "try_", "python", "timeout", "probe"),
    ),
    "Workloads: input and model": ("data", "loader_workers", "prefetch", "model", "volume", "keep_prediction"),
    "Workloads: communication": ("bucket_mb", "compress", "accumulate", "nccl_algo", "ps_device", "no_p2p"),
    "Workloads: several nodes": ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_backend"),
}


def _defaults(framework: str) -> str:
    """Return the framework's default strategies for the help."""
    return f"{default_strategy(framework, on_gpu=True)} on GPUs, else {default_strategy(framework, on_gpu=False)}"


def _warmup(text: str) -> int | None:
    """Return the number of warm-up steps; None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"--warmup takes 'auto' or a number of steps, not '{text}'", "See `gpudiag profile --help`.")
    return int(text)


def _volume(text: str | None) -> tuple[int, int, int] | None:
    """Return the extents Z, Y, X of `--volume` in voxels; None if the option is not given."""
    if text is None:
        return None
    extents = text.split(",")
    if len(extents) != 3 or not all(extent.isdecimal() and int(extent) > 0 for extent in extents):
        raise UsageError(
            f"--volume takes three numbers of voxels, Z,Y,X, not '{text}'", "For example: --volume 55,575,575."
        )
    z, y, x = map(int, extents)
    return z, y, x


def _tries(text: str | None) -> tuple[Change, ...]:
    """Return each change of `--try` once. Raise UsageError for an empty list or an unknown change."""
    words = ("",) if text is not None and not split_words(text) else split_words(text)
    changes = [known_word("--try", word, CHANGES) for word in words]
    return tuple(dict.fromkeys(change for change in changes if change is not None))


def _check_workload(words: list[str], *, stop_after: bool) -> None:
    """Refuse `words` that are a script or a command, but not after `--`. Refuse `--stop-after` with a workload."""
    if len(words) > 1 or (words and words[0].endswith(".py")):
        command = " ".join(words if len(words) > 1 else ("python", *words))
        raise UsageError(
            f"{words[0]} is neither a workload nor a command on this machine", f"Write: gpudiag profile -- {command}"
        )
    if stop_after:
        raise UsageError(
            "--stop-after goes only with your own command", "Write: gpudiag profile --stop-after -- COMMAND"
        )


def profile(
    context: typer.Context,
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND... | WORKLOAD | MODULE:FUNCTION]",
            help="After --, your own command as you start it (torchrun, python, accelerate launch, deepspeed, srun, "
            f"mpirun). Or a built-in workload: {', '.join(WORKLOADS)}; default: {DEFAULT_WORKLOAD}. Or your own "
            "function, called in each process, which trains within gpudiag.profile().",
            show_default=False,
        ),
    ] = None,
    *,
    framework: Annotated[
        str,
        typer.Option(
            metavar="torch|tensorflow", help="Framework of the training; --strategy and defaults depend on it."
        ),
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
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar=METAVAR,
            help="Divide gpt over processes: pipeline stages (pp), replicas (dp), experts (ep), parts of sequences "
            "(cp) and of matrices (tp). Their product is the number of processes. With pp also microbatches=N and "
            f"schedule={'|'.join(SCHEDULES)}.",
        ),
    ] = None,
    batch_size: BatchSize = None,
    precision: OnePrecision = None,
    memory_format: OneMemoryFormat = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(DATA_SOURCES),
            help="Source of batches: device memory, pinned host memory, a DataLoader, or other processes over ZeroMQ. "
            "Default: loader.",
        ),
    ] = None,
    loader_workers: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Loader processes for each training process. Default: 2 on GPUs, 0 on CPUs."
        ),
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch", help="Copy each batch to the GPU during the step before it.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(TRAINED_MODELS),
            help="Replace the model by one weight per input value (trivial) or by nothing (none), to time the input "
            "alone. Default: whole.",
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(
            metavar="Z,Y,X", help="Size in voxels of the volume that unet3d-predict predicts.", show_default=False
        ),
    ] = None,
    keep_prediction: Annotated[
        bool,
        typer.Option("--keep-prediction", help="Keep the predicted volume, prediction.zarr, in the run directory."),
    ] = False,
    compile_model: Annotated[bool, typer.Option("--compile", help="Train torch.compile(model).")] = False,
    bucket_mb: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="MB", help="Size of DDP's gradient buckets. Default: PyTorch's 25."),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(COMPRESSIONS), help="Precision of gradients in communication. Default: their own."
        ),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Batches per step; gradients are exchanged once, after the last.")
    ] = 1,
    nccl_algo: Annotated[
        str | None, typer.Option(metavar="|".join(NCCL_ALGORITHMS), help="Algorithm that NCCL uses (NCCL_ALGO).")
    ] = None,
    ps_device: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="For ps-gpu: keep all variables on this device. Default: spread."),
    ] = None,
    no_p2p: Annotated[bool, typer.Option("--no-p2p", help="Train without peer access (NCCL_P2P_DISABLE=1).")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps timed without the profiler. Default: about 3 s.")
    ] = None,
    warmup: Annotated[
        str, typer.Option(metavar="auto|N", help="Steps left out first; auto: until step times are steady.")
    ] = "auto",
    stop_after: Annotated[
        bool, typer.Option("--stop-after", help="End your own command when the measurement is complete.")
    ] = False,
    try_: Annotated[
        str | None,
        typer.Option(
            "--try",
            metavar=",".join(CHANGES),
            help="Changes, separated by commas: after the recording, train the job with each of them for some seconds, "
            "by turns with the unchanged job, and report predicted and measured savings.",
        ),
    ] = None,
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
        int | None, typer.Option(min=0, metavar="N", help="Number of this node; only --rdzv-backend static needs it.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Meeting point of the nodes, as for torchrun.")
    ] = None,
    rdzv_backend: Annotated[str, typer.Option(metavar="NAME", help="Rendezvous backend, as for torchrun.")] = "c10d",
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            help="Measure the links between GPUs first (5 to 15 s), or do not. Default: measure unless done within a "
            "day.",
            show_default=False,
        ),
    ] = None,
    no_source: Annotated[
        bool, typer.Option("--no-source", help="Save no text of your source lines, only files and line numbers.")
    ] = False,
    as_json: Json = False,
    all_ranks: AllRanks = False,
    full: Full = False,
    width: Width = None,
) -> None:
    """Train, record traces, and say where each step's time went.

    Your own job, unchanged:

    \b
      gpudiag profile -- torchrun --nproc-per-node 4 train.py

    Leaves out steps until their times are steady, times steps without the profiler, records a few with it, and
    prints the report as soon as they are analysed; the job goes on. On several nodes, each node analyses the ranks
    whose traces it can see.

    Options of workloads, and --json, do not go with a command of your own.
    """
    words = workload or []
    if no_source:
        os.environ[SOURCE_TEXT_VARIABLE] = "0"
    command = command_after_separator(context)
    if command is not None:
        refuse_other_options(context)
        options = CommandOptions(
            stop_after=stop_after,
            output=output,
            steps=steps,
            warmup=_warmup(warmup),
            all_ranks=all_ranks,
            full=full,
            width=width,
        )
        raise typer.Exit(run_user_command(command, options))
    _check_workload(words, stop_after=stop_after)
    if nnodes > 1 and rdzv_endpoint is None:
        raise UsageError("--nnodes needs --rdzv-endpoint", "Give one node's HOST:PORT, the same on every node.")
    rendezvous = (
        Rendezvous(endpoint=rdzv_endpoint, backend=rdzv_backend, node_rank=node_rank)
        if rdzv_endpoint is not None
        else None
    )
    run_options = RunOptions(
        workload=words[0] if words else DEFAULT_WORKLOAD,
        framework=framework_option(framework).name,
        strategy=strategy,
        devices=devices,
        batch_size=batch_size,
        precision=known_word("--precision", precision, PRECISIONS),
        memory_format=known_word("--memory-format", memory_format, MEMORY_FORMATS),
        data=known_word("--data", data, DATA_SOURCES),
        loader_workers=loader_workers,
        prefetch=prefetch,
        model=known_word("--model", model, TRAINED_MODELS),
        volume=_volume(volume),
        keep_prediction=keep_prediction,
        compile=compile_model,
        p2p=not no_p2p,
        exchange=CommunicationOptions(
            bucket_mb=bucket_mb,
            compress=known_word("--compress", compress, COMPRESSIONS),
            accumulate=accumulate,
            nccl_algo=known_word("--nccl-algo", nccl_algo, NCCL_ALGORITHMS),
            ps_device=ps_device,
        ),
        steps=steps,
        warmup=_warmup(warmup),
        output=None if output is None else str(output),
        python=python or sys.executable,
        timeout_s=timeout,
        nodes=nnodes,
        rendezvous=rendezvous,
        command=this_command(),
        probe=probe,
        tries=_tries(try_),
        parallel=read_layout(parallel),
    )
    from gpudiag.app.profile.profile import profile as run
    from gpudiag.app.report import REPORT_FILE
    from gpudiag.commands.progress.run import RunProgress

    with RunProgress() as progress:
        profiled = run(run_options, progress)
    show_analysis(
        profiled.analysis,
        as_json=as_json,
        all_ranks=all_ranks,
        full=full,
        width=width,
        paths=[from_here(profiled.run_dir)],
        page=from_here(profiled.run_dir / REPORT_FILE),
    )
    typer.echo(f"gpudiag: saved in {profiled.run_dir}", err=True)
