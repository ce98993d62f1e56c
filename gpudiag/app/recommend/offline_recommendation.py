"""`gpudiag recommend --predict-only`: recommend from facts and gradient sizes, on any machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from gpudiag.app.profile.prepare import usable_gpus
from gpudiag.app.recommend.candidates import check_possible, considered, why_not
from gpudiag.app.recommend.forecast import expected_scaling
from gpudiag.app.recommend.verdict import from_predictions
from gpudiag.errors import FrameworkMissingError, UnreadableInputError, UsageError, WorkerFailedError
from gpudiag.machine.facts_file import load_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.probes.cache import cached_measurements
from gpudiag.model.benchmarks.prediction import GRADIENTS_SCHEMA, Candidate, Compute, Gradients
from gpudiag.model.benchmarks.recommendation import Recommendation, RecommendRequest
from gpudiag.model.facts import Facts, nccl_transport
from gpudiag.model.job import INDEPENDENT, RunOptions
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_bounded, read_json
from gpudiag.prediction.datasheet import estimated_compute
from gpudiag.prediction.overlap import parts_of
from gpudiag.prediction.situation import Situation
from gpudiag.training.models.registry import training_entry
from gpudiag.training.strategies.predict import predict

#: Time limit in seconds of the process that lists gradients.
_DESCRIBE_S = 120.0
#: Limits on the number of gradients in a file, and on the bytes of a gradient.
_MOST_SIZES, _MOST_SIZE = 1_000_000, 1 << 50


class _WorkloadDescription(msgspec.Struct):
    sizes: tuple[int, ...]
    flops: int | None
    batch_size: int
    input_bytes: int
    blocks: int | None = None


class _FileSchema(msgspec.Struct):
    schema: str = ""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of a model, and its FLOPs per sample if known."""

    gradients: Gradients
    flops: int | None = None


def describe_workload(name: str, *, on_gpu: bool, python: str) -> Model:
    """List the gradients of a built-in workload, in a process of the interpreter `python`, which has the framework.

    `on_gpu` selects the workload's size: for a GPU, or for a CPU process.
    """
    command = [python, "-P", "-m", "gpudiag.training.models.pytorch.gradients", name, *([] if on_gpu else ["--cpu"])]
    try:
        process = subprocess.run(command, capture_output=True, timeout=_DESCRIBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerFailedError(f"the gradients of {name} could not be listed: {error}", "Check --python.") from error
    output = process.stderr.decode(errors="replace").strip().splitlines()
    if process.returncode != 0:
        if any("No module named 'torch'" in line for line in output):
            raise FrameworkMissingError(f"{python} has no PyTorch, which is needed to list the gradients of {name}")
        raise WorkerFailedError(
            f"the gradients of {name} could not be listed: {output[-1] if output else 'no reason given'}"
        )
    try:
        description = msgspec.json.decode(process.stdout, type=_WorkloadDescription)
    except msgspec.MsgspecError as error:
        raise WorkerFailedError(f"the gradients of {name} could not be listed: {error}") from error
    gradients = Gradients(
        name=name,
        sizes=description.sizes,
        batch_size=description.batch_size,
        input_bytes=description.input_bytes * description.batch_size,
        blocks=description.blocks,
    )
    return Model(gradients=gradients, flops=description.flops)


def read_gradients(path: Path) -> Model:
    """Read gradient sizes from a file: `gpudiag/gradients/1`, a run's `run.json`, or a JSON list of bytes."""
    data = read_bounded(path)
    try:
        if data.lstrip()[:1] == b"[":
            gradients = Gradients(name=path.stem, sizes=msgspec.json.decode(data, type=tuple[int, ...]))
        elif msgspec.json.decode(data, type=_FileSchema).schema == RUN_SCHEMA:
            gradients = _gradients_of_run(path)
        else:
            gradients = read_json(path, Gradients, GRADIENTS_SCHEMA)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(
            f"{path}: no list of gradient sizes ({error})",
            "Give a JSON list of bytes per gradient, in the order of backward, or a run.json.",
        ) from error
    _check_gradients(path, gradients)
    return Model(gradients=gradients)


def _gradients_of_run(path: Path) -> Gradients:
    """Return the gradients that a run recorded. If the strategy was `independent`, its step time is the compute."""
    run = read_json(path, RunRecord, RUN_SCHEMA)
    if run.model is None or not run.model.gradient_sizes:
        raise UnreadableInputError(
            f"{path}: this run has no record of its model",
            "Record with gpudiag.profile(..., model=model), or give a JSON list of bytes per gradient.",
        )
    compute = None
    step_ms = [rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None]
    if run.strategy == INDEPENDENT and step_ms:
        compute = parts_of(max(step_ms), "measured by the run")
    return Gradients(
        name=run.workload, sizes=run.model.gradient_sizes, compute=compute, batch_size=run.batch_size_per_device
    )


def _check_gradients(path: Path, gradients: Gradients) -> None:
    """Raise UnreadableInputError if gradient sizes or `ready` times (as shares of backward) are out of range."""
    sizes = gradients.sizes
    if not sizes or len(sizes) > _MOST_SIZES or not all(0 < size <= _MOST_SIZE for size in sizes):
        raise UnreadableInputError(
            f"{path}: gradient sizes must be positive numbers of bytes", "Give one number per gradient."
        )
    ready = gradients.ready
    if ready and (len(ready) != len(sizes) or not all(0 <= share <= 1 for share in ready)):
        raise UnreadableInputError(
            f"{path}: `ready` must have one share between 0 and 1 per gradient", "Leave `ready` out."
        )


def recommend_offline(
    request: RecommendRequest,
    *,
    facts: Path | None = None,
    gradients: Path | None = None,
    compute_ms: float | None = None,
) -> Recommendation:
    """Predict every candidate and choose one, without running anything on a device.

    Args:
        request: the workload, the candidates and the devices.
        facts: file with the machine's facts; None for this machine, with measurements of the last day.
        gradients: file for `read_gradients`; None for the request's workload.
        compute_ms: the step time without communication, if it is known.
    """
    run = request.run
    candidates = considered(request)
    machine = _this_machine(run) if facts is None else load_facts(facts)
    count = _devices(machine, run)
    refused = why_not(machine, candidates, count)
    check_possible(candidates, refused, count)  # before a process imports PyTorch, which takes seconds
    if gradients is not None:
        model = read_gradients(gradients)
    else:
        name = training_entry(run.workload, "gpudiag recommend").name
        model = describe_workload(name, on_gpu=usable_gpus(machine) > 0, python=run.python)
    return _predicted(machine, model, candidates, run, count=count, refused=refused, compute_ms=compute_ms)


def _this_machine(run: RunOptions) -> Facts:
    inventory = gather_inventory()
    return cached_measurements(inventory, nccl_transport(p2p=run.p2p)) or inventory


def _devices(facts: Facts, run: RunOptions) -> int:
    """Return the requested number of devices, or else the number of GPUs, or 2 without GPUs.

    Raise UsageError if the machine has GPUs, but fewer than requested.
    """
    gpus = usable_gpus(facts)
    count = run.devices or gpus or 2
    if gpus and count > gpus:
        raise UsageError(f"--devices {count}: these facts are of a machine with {gpus}", "Choose fewer.")
    return count


def _predicted(
    facts: Facts,
    model: Model,
    candidates: tuple[Candidate, ...],
    run: RunOptions,
    *,
    count: int,
    refused: dict[str, str],
    compute_ms: float | None,
) -> Recommendation:
    """Predict the step of each candidate on `count` devices, and choose a candidate.

    `refused` has the reasons why candidates cannot run, by label. `compute_ms` is the user's step time without
    communication; None if it is not given.
    """
    gradients = model.gradients
    batch = run.batch_size or gradients.batch_size
    compute = _compute(facts, model, run, count, compute_ms)
    notes = []
    if compute is None:
        notes.append("the compute of a step is unknown, so only communication is predicted; give --compute-ms")
    elif compute.source.startswith("estimated"):
        notes.append(f"the compute of a step is {compute.source}; give --compute-ms if you know it")
    gradients = msgspec.structs.replace(gradients, compute=compute, batch_size=batch)
    predictions = predict(facts, gradients, candidates, count, p2p=run.p2p, cannot=refused)
    situation = Situation(facts, gradients, count, p2p=run.p2p)
    recommendation = from_predictions(
        predictions,
        workload=gradients.name,
        devices=count,
        batch_size=batch,
        p2p=run.p2p,
        peer_access=situation.peer_access if usable_gpus(facts) else None,
        device_name=next((gpu.name for gpu in facts.gpus if gpu.visible), facts.host.cpu),
        notes=notes,
    )
    best = next(
        prediction.candidate for prediction in predictions if prediction.candidate.label == recommendation.recommended
    )
    scaling = expected_scaling(facts, gradients, best, count, p2p=run.p2p)
    return msgspec.structs.replace(recommendation, scaling=scaling)


def _compute(facts: Facts, model: Model, run: RunOptions, devices: int, compute_ms: float | None) -> Compute | None:
    """Return the compute of a step: as given by the user, else measured, else estimated from FLOPs; None if unknown."""
    gradients = model.gradients
    batch = run.batch_size or gradients.batch_size
    if compute_ms is not None:
        return parts_of(compute_ms, "given")
    if gradients.compute is None and model.flops and batch:
        return estimated_compute(
            facts, model.flops * batch, len(gradients.sizes), precision=run.precision, processes=devices
        )
    return gradients.compute
