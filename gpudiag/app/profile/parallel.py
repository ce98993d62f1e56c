"""Refuse layouts of parallelism that cannot be trained, and options that conflict with a layout."""

from __future__ import annotations

import msgspec

from gpudiag.errors import UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK, RunOptions
from gpudiag.model.run import ParallelLayout
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.jobs.parallel.sizes import INTERLEAVED_STAGES, GptSizes

#: The workload that can be divided, and the strategies by which its replicas communicate gradients.
WORKLOAD = "gpt"
SHARDED = "fsdp"
REPLICATED = ("nccl", "gloo")


def check_parallel(options: RunOptions) -> RunOptions:
    """Return the options. For a divided model, set the number of devices and the strategy that follow from its layout.

    Raises:
        UsageError: the workload cannot be divided, or options conflict.
    """
    layout = options.parallel
    if layout is None:
        return options
    if options.framework != DEFAULT_FRAMEWORK:
        raise UsageError(f"--parallel is not supported for {framework_named(options.framework).title}", "Leave it out.")
    if options.workload != WORKLOAD:
        raise UsageError(
            f"--parallel does not go with {options.workload}: only {WORKLOAD} can be divided",
            f"Write: gpudiag profile {WORKLOAD} --parallel {layout}",
        )
    _refuse_others(options)
    devices, rest = divmod(layout.processes, options.nodes)  # devices per node
    if rest or options.devices not in {None, devices}:
        raise UsageError(
            f"--parallel {layout} needs {layout.processes} processes in all, "
            f"not {options.nodes * (options.devices or 1)}",
            "Their number is the product of its sizes; leave --devices out.",
        )
    return msgspec.structs.replace(options, devices=devices, strategy=_strategy(options, layout))


def _refuse_others(options: RunOptions) -> None:
    """Refuse options that a divided model does not support."""
    given = {
        "--model": options.model if options.model not in {None, "whole"} else None,
        "--compile": options.compile or None,
        "--try": options.tries or None,
        "--precision fp16": "fp16" if options.precision == "fp16" else None,
        **{f"--{name.replace('_', '-')}": value for name, value in options.exchange.given().items()},
    }
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} does not go with --parallel", "Leave it out.")


def _strategy(options: RunOptions, layout: ParallelLayout) -> str | None:
    """Return the strategy; None for the default of the devices, which is DDP."""
    replicas = layout.dp * layout.ep * layout.cp
    known = (*REPLICATED, SHARDED)
    if options.strategy not in {None, *known}:
        raise UsageError(f"--strategy {options.strategy} does not go with --parallel", f"It takes {', '.join(known)}.")
    # DDP copies every parameter of a process to all processes, but processes have different experts and matrix parts.
    if replicas > 1 and (layout.tp > 1 or layout.ep > 1):
        if options.strategy in REPLICATED:
            raise UsageError(
                f"--strategy {options.strategy} is DDP, which does not go with tp or ep beside other replicas",
                f"Leave it out, or use {SHARDED} (FSDP2).",
            )
        return SHARDED
    return options.strategy


def check_sizes(layout: ParallelLayout, sizes: GptSizes, batch_size: int | None) -> None:
    """Refuse a layout whose sizes cannot divide this model or the batch equally.

    `batch_size` is in samples per replica; None for a size that always divides.

    Raises:
        UsageError: there are fewer layers than stages, or heads, tokens, microbatches or samples do not divide equally.
    """
    stages = layout.pp * (INTERLEAVED_STAGES if layout.schedule == "interleaved" else 1)
    if layout.pp > 1 and stages > sizes.layers:
        raise UsageError(
            f"{layout} needs {stages} stages, and the model has {sizes.layers} layers", "Use a smaller pp."
        )
    if layout.schedule == "interleaved" and layout.microbatches % layout.pp:
        raise UsageError(
            f"schedule=interleaved needs a multiple of pp={layout.pp} as microbatches, not {layout.microbatches}",
            f"For example: microbatches={2 * layout.pp}.",
        )
    for name, size, divided, what in (
        ("tp", layout.tp, sizes.heads, "attention heads"),
        ("cp", layout.cp, sizes.context, "tokens per sequence"),
    ):
        if divided % size:
            raise UsageError(
                f"{name}={size} does not divide the model's {divided} {what}",
                f"It can be {', '.join(str(count) for count in range(1, 9) if divided % count == 0)}.",
            )
    if batch_size is not None and batch_size % layout.microbatches:
        raise UsageError(
            f"--batch-size {batch_size} is not a multiple of microbatches={layout.microbatches}",
            "A replica's batch is divided into equal microbatches.",
        )
