"""Options of a run that do not go together, whatever the machine has."""

from __future__ import annotations

import msgspec

from gpudiag.errors import UsageError
from gpudiag.model.job import INDEPENDENT, RunOptions
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.models.registry import is_own, workload_entry


def check_options(options: RunOptions) -> RunOptions:
    """The options, with what the workload settles itself.

    Raises:
        UsageError: a workload that does not exist, or options that do not go together.
    """
    framework_named(options.framework).check(options)
    if is_own(options.workload):
        _check_own(options)
        return options
    entry = workload_entry(options.workload)
    if options.memory_format == "nhwc" and not entry.images:
        raise UsageError(f"{options.workload} has no images, so --memory-format does not apply", "Leave it out.")
    _check_input(options)
    return _check_prediction(options, trains=entry.trains)


def _check_input(options: RunOptions) -> None:
    """Options of the input that do not go together."""
    if options.data in {"device", "host"} and options.loader_workers is not None:
        raise UsageError(f"--loader-workers does not go with --data {options.data}", "Leave one of them out.")
    if options.data == "zmq" and options.loader_workers == 0:
        raise UsageError("--data zmq needs a process that makes batches", "Give --loader-workers 1 or more.")
    if options.data == "device" and (options.prefetch or options.model == "none"):
        option = "--prefetch" if options.prefetch else "--model none"
        raise UsageError(f"{option} does not go with --data device: its batch is there already", "Leave it out.")
    if options.prefetch and options.model == "none":
        raise UsageError("--prefetch does not go with --model none: nothing is copied", "Leave it out.")


def _check_prediction(options: RunOptions, *, trains: bool) -> RunOptions:
    """The same options; for a workload that predicts, with the strategy that suits it. Refuses what does not."""
    predicting = {"--volume": options.volume, "--keep-prediction": options.keep_prediction or None}
    training = {
        "--data": options.data,
        "--loader-workers": options.loader_workers,
        "--prefetch": options.prefetch or None,
        "--model": options.model,
        "--strategy": None if options.strategy == INDEPENDENT else options.strategy,
    }
    named = [option for option, value in (predicting if trains else training).items() if value is not None]
    if named:
        why = "which predicts no volume" if trains else "which predicts a volume from disk and exchanges nothing"
        raise UsageError(f"{named[0]} does not go with {options.workload}, {why}", "Leave it out.")
    return options if trains else msgspec.structs.replace(options, strategy=INDEPENDENT)


def _check_own(options: RunOptions) -> None:
    """Options that choose how built-in workloads train have no meaning for a user's own function."""
    given = {
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
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise UsageError(
            f"{named[0]} does not go with {options.workload}: a function of your own decides that itself",
            "Leave it out.",
        )
