"""What is asked of a run, with every choice made and everything refused that cannot be, before anything starts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from gpudiag.errors import FrameworkMissingError, HardwareMissingError, UsageError
from gpudiag.model.job import ExchangeOptions, Job
from gpudiag.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.launch import Interpreter, Plan, Rendezvous
    from gpudiag.model.facts import Facts
    from gpudiag.model.job import DataSource, Framework, MemoryFormat, Precision, TrainedModel
    from gpudiag.probing.runner import Progress as ProbeProgress
    from gpudiag.strategies.registry import StrategyEntry
    from gpudiag.strategies.tensorflow.registry import TensorflowStrategyEntry


class Request(Record, frozen=True, kw_only=True):
    """What a person asks `gpudiag profile` for; None where the choice is gpudiag's."""

    workload: str
    framework: Framework = "pytorch"
    process_per_device: bool = False
    """Of a TensorFlow function: start it once per device, with `TF_CONFIG`, and not once for all devices."""
    strategy: str | None = None
    devices: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    memory_format: str | None = None
    data: str | None = None
    loader_workers: int | None = None
    prefetch: bool = False
    model: str | None = None
    volume: tuple[int, int, int] | None = None
    keep_prediction: bool = False
    compile: bool = False
    p2p: bool = True
    exchange: ExchangeOptions = ExchangeOptions()
    steps: int | None = None
    warmup: int | None = None
    run_dir: Path | None = None
    python: str = sys.executable
    timeout_s: float = 600.0
    nodes: int = 1
    rendezvous: Rendezvous | None = None
    command: tuple[str, ...] = ()
    probe: bool | None = None
    """Measure the links before: None for what was measured within a day, else anew; True for anew; False for not."""


class Prepared(Record, frozen=True, kw_only=True):
    """A request with every choice made."""

    plan: Plan
    interpreter: Interpreter
    facts: Facts

    def describe(self) -> str:
        """What is about to run, in one line."""
        plan = self.plan
        several = plan.job.devices > 1
        devices = plan.processes * plan.job.devices
        what = "GPU" if plan.job.device == "cuda" else "CPU device" if several else "CPU process"
        count = f"{devices} {what}{'' if devices == 1 else 'es' if what.endswith('s') else 's'}"
        if several:
            count += " in one process"
        nodes = f" on each of {plan.nodes} nodes" if plan.nodes > 1 else ""
        strategy = "" if plan.job.strategy == OWN_STRATEGY else f", {plan.job.strategy}"
        tensorflow = plan.job.framework == "tensorflow"
        with_what = f"TensorFlow {self.interpreter.tensorflow}" if tensorflow else f"PyTorch {self.interpreter.torch}"
        return f"training {plan.job.title}{strategy}, {count}{nodes}, {with_what}"


#: Recorded where the user's function decides how gradients are exchanged.
OWN_STRATEGY = "own"

#: Processes on a machine without GPUs.
_CPU_PROCESSES = 2


def prepare(request: Request) -> Prepared:
    """Choose what the request leaves open, and refuse what cannot be.

    Raises:
        UsageError: a name that does not exist, or options that do not go together.
        HardwareMissingError: more devices than there are, or GPUs where there is none.
        FrameworkMissingError: the interpreter lacks the framework, or has one that cannot use this machine's GPUs.
    """
    from gpudiag.launch import Plan, inspect_interpreter
    from gpudiag.probing.inventory import gather_inventory
    from gpudiag.strategies.registry import strategy_entry
    from gpudiag.strategies.tensorflow.registry import DEFAULT_ON_CPUS, DEFAULT_ON_GPUS, tensorflow_strategy_entry
    from gpudiag.workloads.registry import is_own

    own = is_own(request.workload)
    tensorflow = request.framework == "tensorflow"
    find_entry: Callable[[str], StrategyEntry | TensorflowStrategyEntry]
    find_entry = tensorflow_strategy_entry if tensorflow else strategy_entry
    if tensorflow:
        _check_tensorflow(request)
    if own:
        _check_own(request)
    else:
        request = _check_workload(request)
    entry = find_entry(request.strategy) if request.strategy is not None else None
    interpreter = inspect_interpreter(request.python, request.framework)
    facts = gather_inventory()
    gpus = sum(gpu.visible for gpu in facts.gpus)
    if gpus and interpreter.cuda is None:
        there = f"TensorFlow {interpreter.tensorflow}" if tensorflow else f"PyTorch {interpreter.torch}"
        raise FrameworkMissingError(
            f"there are {gpus} GPUs, but {there} of {request.python} was built without CUDA",
            "Choose another interpreter with --python, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
        )
    if tensorflow and not gpus and request.memory_format == "nchw":
        raise UsageError("TensorFlow has no convolutions in nchw for the CPU", "Leave --memory-format out.")
    cpus = facts.host.usable_cpus or 1
    if entry is not None and entry.needs_gpu and not gpus:
        why = facts.host.reasons.get("visible") or facts.host.reasons.get("gpus") or "none found"
        raise HardwareMissingError(
            f"strategy {entry.name} needs GPUs, and this machine has none to use ({why})",
            f"Use --strategy {DEFAULT_ON_CPUS if tensorflow else 'gloo'}, which trains on the CPU.",
        )
    available = gpus or max(cpus, _CPU_PROCESSES)
    devices = request.devices or (gpus or _CPU_PROCESSES)
    if devices > available:
        there = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else f"no GPU, and {cpus} CPUs for {available} processes"
        raise HardwareMissingError(f"--devices {devices}: this machine has {there}")
    if entry is None and not own:
        on_gpus, on_cpus = (DEFAULT_ON_GPUS, DEFAULT_ON_CPUS) if tensorflow else ("nccl", "gloo")
        entry = find_entry(on_gpus if gpus else on_cpus)
    # A TensorFlow process drives all devices unless told otherwise, a PyTorch process one.
    one = tensorflow and not request.process_per_device
    processes = entry.processes(devices) if entry is not None else 1 if one else devices
    _check_exchange(entry, request, devices)
    strategy = OWN_STRATEGY if entry is None else entry.name
    name = request.workload.replace(":", ".")
    run_dir = request.run_dir or Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{strategy}"
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError(f"--output {run_dir} is a file", "Give a directory; it is made if it is not there.")
    job = Job(
        workload=request.workload,
        framework=request.framework,
        devices=devices // processes,
        strategy=strategy,
        device="cuda" if gpus else "cpu",
        batch_size=request.batch_size,
        precision=cast("Precision | None", request.precision),
        memory_format=cast("MemoryFormat", request.memory_format or ("nhwc" if tensorflow else "nchw")),
        data=cast("DataSource", request.data or "loader"),
        loader_workers=request.loader_workers,
        prefetch=request.prefetch,
        model=cast("TrainedModel", request.model or "whole"),
        volume=request.volume,
        keep_prediction=request.keep_prediction,
        steps=request.steps,
        warmup=request.warmup,
        compile=request.compile,
        p2p=request.p2p,
        exchange=request.exchange,
    )
    plan = Plan(
        job=job,
        run_dir=run_dir,
        processes=processes,
        threads=max(1, cpus // processes),
        python=request.python,
        command=request.command,
        nodes=request.nodes,
        rendezvous=request.rendezvous,
        timeout_s=request.timeout_s,
    )
    return Prepared(plan=plan, interpreter=interpreter, facts=facts)


def measure_links(
    prepared: Prepared, probe: bool | None = None, on_progress: Callable[[ProbeProgress], None] | None = None
) -> Prepared:
    """Put figures of the machine's links beside the inventory, where several GPUs will exchange gradients over them.

    Args:
        prepared: what is about to run.
        probe: as `Request.probe`. Measuring takes about 5 s.
        on_progress: called from several threads with what is measured now.
    """
    from gpudiag.diagnosis.hardware import examine_facts
    from gpudiag.probing.cache import cached_measurements, keep_measurements
    from gpudiag.probing.machine import failed_probes, probe_machine
    from gpudiag.probing.plan import installed

    facts, job = prepared.facts, prepared.plan.job
    several = job.device == "cuda" and prepared.plan.ranks > 1 and sum(gpu.visible for gpu in facts.gpus) > 1
    measured: Facts | None = None
    if several and probe is not False and installed("cuda.bindings"):
        if probe is None:
            measured = cached_measurements(facts, "nccl" if job.p2p else "nccl-no-p2p")
        if measured is None:
            measured = probe_machine(facts, quick=True, p2p=job.p2p, on_progress=on_progress)
            if not failed_probes(measured):
                keep_measurements(measured)
    facts = measured or facts
    return msgspec.structs.replace(prepared, facts=msgspec.structs.replace(facts, findings=examine_facts(facts)))


def _check_workload(request: Request) -> Request:
    """The request for one of gpudiag's own workloads, with what that one settles itself. Refuses what does not fit."""
    from gpudiag.workloads.registry import workload_entry

    entry = workload_entry(request.workload)
    if request.memory_format == "nhwc" and not entry.images:
        raise UsageError(f"{request.workload} has no images, so --memory-format does not apply", "Leave it out.")
    _check_input(request)
    return _check_prediction(request, trains=entry.trains)


def _check_input(request: Request) -> None:
    """Options of the input that do not go together."""
    if request.data in {"device", "host"} and request.loader_workers is not None:
        raise UsageError(f"--loader-workers does not go with --data {request.data}", "Leave one of them out.")
    if request.data == "zmq" and request.loader_workers == 0:
        raise UsageError("--data zmq needs a process that makes batches", "Give --loader-workers 1 or more.")
    if request.data == "device" and (request.prefetch or request.model == "none"):
        option = "--prefetch" if request.prefetch else "--model none"
        raise UsageError(f"{option} does not go with --data device: its batch is there already", "Leave it out.")
    if request.prefetch and request.model == "none":
        raise UsageError("--prefetch does not go with --model none: nothing is copied", "Leave it out.")


def _check_prediction(request: Request, *, trains: bool) -> Request:
    """The same request; for a workload that predicts, with the strategy that suits it. Refuses what does not."""
    predicting = {"--volume": request.volume, "--keep-prediction": request.keep_prediction or None}
    training = {
        "--data": request.data,
        "--loader-workers": request.loader_workers,
        "--prefetch": request.prefetch or None,
        "--model": request.model,
        "--strategy": None if request.strategy == "independent" else request.strategy,
    }
    named = [option for option, value in (predicting if trains else training).items() if value is not None]
    if named:
        why = "which predicts no volume" if trains else "which predicts a volume from disk and exchanges nothing"
        raise UsageError(f"{named[0]} does not go with {request.workload}, {why}", "Leave it out.")
    return request if trains else msgspec.structs.replace(request, strategy="independent")


def _check_exchange(entry: StrategyEntry | TensorflowStrategyEntry | None, request: Request, devices: int) -> None:
    """A PyTorch strategy says itself what it cannot do."""
    from gpudiag.strategies.registry import StrategyEntry

    if isinstance(entry, StrategyEntry):
        entry.check(request.exchange, devices=devices, nodes=request.nodes, precision=request.precision)


def _check_tensorflow(request: Request) -> None:
    """What gpudiag's TensorFlow jobs do not do."""
    from gpudiag.workloads.registry import is_own
    from gpudiag.workloads.tensorflow.registry import check_workload

    if not is_own(request.workload):
        check_workload(request.workload)
    if request.data == "zmq":
        raise UsageError("--data zmq feeds PyTorch's processes only", "Use --data loader, a tf.data pipeline.")
    if request.data == "device" and request.strategy == "parameter-server":
        raise UsageError(
            "--data device does not go with parameter-server, whose workers take batches from the host",
            "Use --data host.",
        )
    if request.prefetch:
        raise UsageError(
            "--prefetch does not apply to --framework tensorflow, which always copies ahead", "Leave it out."
        )
    if given := request.exchange.given():
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} does not go with --framework tensorflow", "Leave it out.")
    if request.nodes > 1:
        raise UsageError(
            "--nnodes does not go with --framework tensorflow",
            "Start a program of your own on each node, with TF_CONFIG and gpudiag.profile() in it.",
        )


def _check_own(request: Request) -> None:
    """Options that choose how built-in workloads train have no meaning for a user's own function."""
    given = {
        "--strategy": request.strategy,
        "--batch-size": request.batch_size,
        "--precision": request.precision,
        "--memory-format": request.memory_format,
        "--data": request.data,
        "--loader-workers": request.loader_workers,
        "--prefetch": request.prefetch or None,
        "--model": request.model,
        "--volume": request.volume,
        "--keep-prediction": request.keep_prediction or None,
        "--compile": request.compile or None,
        **{f"--{name.replace('_', '-')}": value for name, value in request.exchange.given().items()},
    }
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise UsageError(
            f"{named[0]} does not go with {request.workload}: a function of your own decides that itself",
            "Leave it out.",
        )
