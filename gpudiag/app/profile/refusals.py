"""Refuse options of a run that conflict on any machine."""

from __future__ import annotations

import msgspec

from gpudiag.app.profile.parallel import check_parallel
from gpudiag.errors import UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK, INDEPENDENT, RunOptions
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.models.registry import is_own, workload_entry


def check_options(options: RunOptions) -> RunOptions:
    """Refuse options that conflict, and return the options with the strategy that the workload implies."""
    framework_named(options.framework).check(options)
    _check_tries(options)
    options = check_parallel(options)
    if is_own(options.workload):
        _check_user_function(options)
        return options
    entry = workload_entry(options.workload)
    if options.memory_format == "nhwc" and not entry.images:
        raise UsageError(f"{options.workload} has no images, so --memory-format does not apply", "Leave it out.")
    _check_input(options)
    return _check_prediction(options, trains=entry.trains)


def _check_tries(options: RunOptions) -> None:
    """Refuse `--try` for runs that do not support it."""
    if not options.tries:
        return
    framework = framework_named(options.framework)
    if framework.name != DEFAULT_FRAMEWORK:
        raise UsageError(f"--try is not supported for {framework.title}", "Leave it out.")
    if options.nodes > 1:
        raise UsageError("--try trains on one node only", "Leave --nnodes or --try out.")
    if options.model == "none" or not (is_own(options.workload) or workload_entry(options.workload).trains):
        raise UsageError("--try needs a workload that trains a model", "Leave it out.")


def _check_input(options: RunOptions) -> None:
    """Refuse input options that conflict."""
    if options.data in {"device", "host"} and options.loader_workers is not None:
        raise UsageError(f"--loader-workers does not go with --data {options.data}", "Leave one of them out.")
    if options.data == "zmq" and options.loader_workers == 0:
        raise UsageError("--data zmq needs a process that makes batches", "Give --loader-workers 1 or more.")
    if options.data == "device" and (options.prefetch or options.model == "none"):
        option = "--prefetch" if options.prefetch else "--model none"
        raise UsageError(
            f"{option} does not go with --data device, whose batch is on the device already", "Leave it out."
        )
    if options.prefetch and options.model == "none":
        raise UsageError("--prefetch does not go with --model none: nothing is copied", "Leave it out.")


def _check_prediction(options: RunOptions, *, trains: bool) -> RunOptions:
    """Refuse prediction options if the workload `trains`. Otherwise refuse training options, and set the strategy."""
    predicting = {"--volume": options.volume, "--keep-prediction": options.keep_prediction or None}
    training = {
        "--data": options.data,
        "--loader-workers": options.loader_workers,
        "--prefetch": options.prefetch or None,
        "--model": options.model,
        "--strategy": None if options.strategy == INDEPENDENT else options.strategy,
    }
    given = [option for option, value in (predicting if trains else training).items() if value is not None]
    if given:
        reason = "which predicts no volume" if trains else "which predicts a volume from disk without communication"
        raise UsageError(f"{given[0]} does not go with {options.workload}, {reason}", "Leave it out.")
    return options if trains else msgspec.structs.replace(options, strategy=INDEPENDENT)


def _check_user_function(options: RunOptions) -> None:
    """For a user-defined function, refuse options that apply only to built-in workloads."""
    workload_options = {
        "--strategy": options.strategy,
        "--batch-size": options.batch_size,
        "--precision": options.precision,
        "--memory-format": options.memory_format,
        "--data": options.data,
        "--loader-workers": options.loader_workers,
        "--prefetch": options.prefetch or None,
        "--model": options.model,
        "--volume": options.volume,
        "--keep-prediction": options.keep_prediction or None,
        "--compile": options.compile or None,
        **{f"--{name.replace('_', '-')}": value for name, value in options.exchange.given().items()},
    }
    given = [option for option, value in workload_options.items() if value is not None]
    if given:
        raise UsageError(
            f"{given[0]} does not go with {options.workload}: your own function decides that itself", "Leave it out."
        )
