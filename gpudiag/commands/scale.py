"""`gpudiag scale`: measure throughput from one device to all of them, and attribute the losses."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import Json, Python, Width, known_word, split_words, this_command
from gpudiag.commands.command_line.output import show
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.scale_request import RECORDED, Network, ScaleRequest, Wanted
from gpudiag.model.job import DATA_SOURCES, INDEPENDENT, MEMORY_FORMATS, PRECISIONS, RunOptions
from gpudiag.training.frameworks.registry import framework_option
from gpudiag.training.models.registry import WORKLOADS
from gpudiag.training.strategies.registry import default_strategy, strategies

if TYPE_CHECKING:
    from gpudiag.model.benchmarks.scaling import Scaling

EXAMPLES = (
    ("gpudiag scale", "one workload on 1, 2, 4 ... devices, up to all of them"),
    ("gpudiag scale --quick", "a first look, on any machine, within two minutes"),
    (
        "gpudiag scale resnet50 vgg16 --strategies nccl,nccl-no-p2p,cpu-reduce,independent --precision bf16",
        "compare four strategies",
    ),
    (
        "gpudiag scale resnet50 --precision fp32,fp16 --batch-size 64,128 --compile-both",
        "precisions, batches and compiler; `gpudiag table --form ladder` draws them",
    ),
    ("gpudiag scale resnet50 --batch-size 32,64 --output runs/rn50", "repeat it to continue after an interruption"),
    ("gpudiag scale resnet50 --strong --batch-size 256", "256 samples per step on any number of devices"),
    ("gpudiag scale resnet50 --subsets pairs", "every pair of GPUs, compared by the link between them"),
    ("gpudiag scale resnet50 --measure-only --output runs/rn50", "conclude later with --from, also on another machine"),
    ("gpudiag scale --from runs/rn50 --network 50 --samples 115e6", "forecasts from an earlier run; trains nothing"),
    ("gpudiag scale --from runs/rn50 --iterations 1e5", "iterations per minute, and days to 100,000 of them"),
)

#: Seconds per unit of time.
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Return the numbers of a list such as `1,2,4`."""
    words = split_words(text)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} takes numbers such as 1,2,4, not '{text}'", "See `gpudiag scale --help`.")
    return tuple(int(word) for word in words)


def _seconds(option: str, text: str | None) -> float | None:
    """Return a time such as `300s` or `20m` in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} takes a time such as 300s or 20m, not '{text}'", "See `gpudiag scale --help`.")
    return float(match[1]) * _UNITS[match[2] or ""]


def scale(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help=f"Workloads to train: {', '.join(WORKLOADS)}. Default: resnet50 on GPUs, resnet20-cifar on CPUs.",
            show_default=False,
        ),
    ] = None,
    *,
    devices: Annotated[
        str | None,
        typer.Option(metavar="1,2,4", help="Numbers of devices. Default: powers of two, and all.", show_default=False),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help=f"Of {', '.join(strategies())}; nccl-no-p2p is nccl without peer access. "
            f"Default: {default_strategy('pytorch', on_gpu=True)} "
            f"({default_strategy('pytorch', on_gpu=False)} on CPUs) and {INDEPENDENT}.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="N,M",
            help="Samples per device and step; with --strong, of the whole step. Default: the workload's.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar=",".join(PRECISIONS), help="Default: tf32 on GPUs, fp32 on CPUs.", show_default=False),
    ] = None,
    memory_format: Annotated[
        str | None, typer.Option(metavar=",".join(MEMORY_FORMATS), help="Layout of images. Default: nchw.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar=",".join(DATA_SOURCES), help="Source of batches. Default: device.", show_default=False),
    ] = None,
    framework: Annotated[str, typer.Option(metavar="torch|tensorflow", help="Framework of the training.")] = "torch",
    strong: Annotated[
        bool, typer.Option("--strong", help="Keep the samples of the whole step, not those of a device, constant.")
    ] = False,
    subsets: Annotated[str | None, typer.Option(metavar="pairs", help="Also measure every pair of devices.")] = None,
    alone: Annotated[
        bool, typer.Option("--alone/--no-alone", help="Also measure every GPU alone, on the first workload.")
    ] = True,
    profile: Annotated[
        str,
        typer.Option(
            metavar="auto|first|all|none",
            help="Record the largest points and their baselines for the waterfall, for every strategy or the first.",
        ),
    ] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Train torch.compile(model).")] = False,
    compile_both: Annotated[
        bool, typer.Option("--compile-both", help="Train the plain model and the compiled one.")
    ] = False,
    accuracy: Annotated[
        float,
        typer.Option(
            min=0.01, max=50, metavar="PERCENT", help="Time steps until the 95 % interval of their mean is this narrow."
        ),
    ] = 1.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Longest duration of the unprofiled steps of a point.")
    ] = 10.0,
    starts: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Starts of each point's job; intervals include the difference between starts. Default: 2, or 1 with "
            "--quick.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="300s", help="Begin no point after this time; the most important ones come first."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: points of about a second each.")] = False,
    halve_batch: Annotated[
        bool, typer.Option("--halve-batch", help="Halve the batch of a point that runs out of memory until it fits.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure points again that failed earlier.")] = False,
    measure_only: Annotated[
        bool, typer.Option("--measure-only", help="Save the points and conclude later, with --from.")
    ] = False,
    samples: Annotated[
        float | None, typer.Option(min=1, metavar="N", help="Print the time for this many samples.")
    ] = None,
    iterations: Annotated[
        float | None, typer.Option(min=1, metavar="N", help="Print the time for this many iterations.")
    ] = None,
    volume: Annotated[
        float | None, typer.Option(min=1, metavar="VOXELS", help="Print the time for this many voxels.")
    ] = None,
    voxels_per_sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Voxels that one sample writes, for --volume; unet3d-predict counts them.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="GB/S[,US]",
            help="Forecast machines joined by this network: GB/s per machine and direction, latency in µs (5).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the results; earlier results in it are kept. Default: gpudiag-runs/<time>-scale.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Measure nothing; draw conclusions again from the points in DIR."),
    ] = None,
    python: Python = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Give up a point after this long without progress.")
    ] = 120.0,
    as_json: Json = False,
    width: Width = None,
) -> None:
    """Measure how training scales over the GPUs of this machine.

    Every combination of devices, strategies, batch sizes, precisions, layouts and data sources is a point. Each point
    is saved as soon as it is measured; the same command continues after an interruption. Samples per device are
    constant (weak scaling) unless --strong is given.
    """
    _check_options(subsets=subsets, strong=strong, measure_only=measure_only, concluding=source is not None)
    names = tuple(workloads or ())
    wanted = Wanted(
        network=_network(network),
        samples=samples,
        iterations=iterations,
        voxels=volume,
        voxels_per_sample=dict.fromkeys(names or WORKLOADS, voxels_per_sample) if voxels_per_sample else {},
    )
    _check_voxels(wanted, names, concluding=source is not None)
    directory = source or output or Path(f"gpudiag-runs/{time.strftime('%Y%m%d-%H%M%S')}-scale")
    if quick:
        starts, accuracy, seconds = starts or 1, 5.0, min(seconds, 2.0)
    run = RunOptions(
        workload="sweep",
        framework=framework_option(framework).name,
        compile=compile_model,
        python=python or sys.executable,
        timeout_s=timeout,
        command=this_command(),
    )
    request = ScaleRequest(
        run=run,
        output=directory,
        workloads=names,
        devices=_numbers("--devices", devices),
        strategies=split_words(strategies),
        batch_sizes=_numbers("--batch-size", batch_size),
        data=split_words(data),
        precisions=split_words(precision),
        memory_formats=split_words(memory_format),
        compiled=(False, True) if compile_both else (),
        mode="strong" if strong else "weak",
        pairs=subsets == "pairs",
        alone=alone,
        starts=starts or 2,
        accuracy=accuracy / 100,
        seconds=seconds,
        warmup_s=_warmup_s(quick=quick, limited=budget is not None),
        budget_s=_seconds("--budget", budget),
        recorded=known_word("--profile", profile, RECORDED) or "auto",
        halve=halve_batch,
        again=again,
        measure_only=measure_only,
        wanted=wanted,
    )
    result = _measure(request) if source is None else _conclude_again(request)
    if result is None:
        typer.echo(f"gpudiag: points saved in {directory}; conclude with: gpudiag scale --from {directory}", err=True)
    else:
        _show(result, directory, as_json=as_json, width=width)


def _show(result: "Scaling", directory: Path, *, as_json: bool, width: int | None) -> None:
    from gpudiag.report.scaling.terminal import render_scaling

    show(result, render_scaling, as_json=as_json, width=width)
    typer.echo(f"gpudiag: saved in {directory}", err=True)


def _check_options(*, subsets: str | None, strong: bool, measure_only: bool, concluding: bool) -> None:
    """Refuse options that conflict; `concluding` is True if `--from` is given."""
    known_word("--subsets", subsets, ("pairs",))
    if measure_only and concluding:
        raise UsageError("--measure-only does not go with --from", "Leave one of them out.")
    if strong and subsets:
        raise UsageError("--subsets does not go with --strong", "Leave one of them out.")


def _warmup_s(*, quick: bool, limited: bool) -> float:
    """Return the longest warm-up of a point in seconds. `limited` is True if the whole command has a time limit."""
    if quick:
        return 5.0
    return 8.0 if limited else 20.0


def _check_voxels(wanted: Wanted, names: tuple[str, ...], *, concluding: bool) -> None:
    """Refuse `--volume` if the voxels per sample are unknown. Predictions and saved points (`concluding`) have them."""
    counted = concluding or any(not WORKLOADS[name].trains for name in names if name in WORKLOADS)
    if wanted.voxels is not None and not wanted.voxels_per_sample and not counted:
        raise UsageError(
            "--volume needs --voxels-per-sample", "Give how many voxels one sample writes, or measure unet3d-predict."
        )


def _measure(request: ScaleRequest) -> "Scaling | None":
    from gpudiag.app.scale.scale import scale as measure
    from gpudiag.commands.progress.status_line import PointProgress

    with PointProgress() as progress:
        return measure(request, progress.heard, progress.say)


def _conclude_again(request: ScaleRequest) -> "Scaling":
    from gpudiag.app.scale.scale import conclude_again

    return conclude_again(request)


def _network(text: str | None) -> Network | None:
    """Parse a network such as `50,5`: its bandwidth in GB/s, and its latency in µs."""
    if text is None:
        return None
    words = split_words(text)
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or min(numbers, default=0) <= 0:
        raise UsageError(f"--network takes GB/s[,µs] such as 50,5, not '{text}'", "See `gpudiag scale --help`.")
    return Network(gb_per_s=numbers[0], latency_us=numbers[1] if len(numbers) == 2 else 5.0)
