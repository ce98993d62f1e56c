"""Prepare a run: choose the values of missing options, refuse impossible runs, and measure the links."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.app.profile.parallel import check_sizes
from gpudiag.app.profile.refusals import check_options
from gpudiag.errors import FrameworkMissingError, HardwareMissingError, UsageError
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.measure import failed_probes, probe_machine
from gpudiag.machine.probes.cache import cached_measurements, keep_measurements
from gpudiag.machine.probes.plan import installed
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.facts import Facts, nccl_transport
from gpudiag.model.job import Job, RunOptions
from gpudiag.model.run import OWN_STRATEGY
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.jobs.parallel.sizes import gpt_sizes
from gpudiag.training.launch import Interpreter, Plan, inspect_interpreter
from gpudiag.training.models.registry import is_own
from gpudiag.training.strategies.registry import check_communication, default_strategy, strategy_entry
from gpudiag.training.strategies.strategy import Strategy

#: Default number of processes on a machine without GPUs.
_CPU_PROCESSES = 2


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can be launched."""

    plan: Plan
    interpreter: Interpreter
    facts: Facts

    def describe(self) -> str:
        """Describe the run in one line."""
        plan = self.plan
        several = plan.job.devices > 1
        devices = plan.processes * plan.job.devices
        noun = "GPU" if plan.job.device == "cuda" else "CPU device" if several else "CPU process"
        count = f"{devices} {noun}{'' if devices == 1 else 'es' if noun.endswith('s') else 's'}"
        if several:
            count += " in one process"
        nodes = f" on each of {plan.job.nodes} nodes" if plan.job.nodes > 1 else ""
        strategy = "" if plan.job.strategy == OWN_STRATEGY else f", {plan.job.strategy}"
        if plan.job.parallel is not None:
            strategy += f", {plan.job.parallel}"
        framework = framework_named(plan.job.framework).title
        return f"training {plan.job.title}{strategy}, {count}{nodes}, {framework} {self.interpreter.framework}"


def prepare(options: RunOptions) -> Prepared:
    """Choose the values of missing options, and refuse a run that is impossible on this machine."""
    options = check_options(options)
    framework = framework_named(options.framework)
    entry = None if options.strategy is None else strategy_entry(options.strategy, framework.name)
    interpreter, facts = _inspect(options)
    _check_gpus(options, entry, facts)
    devices = _devices(options, facts)
    if options.parallel is not None:
        check_sizes(options.parallel, gpt_sizes(on_gpu=usable_gpus(facts) > 0), options.batch_size)
    if entry is None and not is_own(options.workload):
        entry = strategy_entry(default_strategy(framework.name, on_gpu=usable_gpus(facts) > 0), framework.name)
    processes = _processes(options, entry, devices)
    if entry is not None:
        check_communication(entry, options.exchange, devices=devices, nodes=options.nodes, precision=options.precision)
    strategy = OWN_STRATEGY if entry is None else entry.name
    return _prepared(options, interpreter, facts, strategy=strategy, devices=devices, processes=processes)


def prepare_program(options: RunOptions) -> Prepared:
    """Prepare one process per device for one of gpudiag's training programs, whose plan determines what is trained."""
    interpreter, facts = _inspect(options)
    devices = _devices(options, facts)
    return _prepared(options, interpreter, facts, strategy=OWN_STRATEGY, devices=devices, processes=devices)


def _inspect(options: RunOptions) -> tuple[Interpreter, Facts]:
    """Inspect the interpreter and the machine, and check that the framework can use the machine's devices."""
    interpreter = inspect_interpreter(options.python, options.framework)
    facts = gather_inventory()
    _check_framework(options, interpreter, usable_gpus(facts))
    return interpreter, facts


def _prepared(
    options: RunOptions, interpreter: Interpreter, facts: Facts, *, strategy: str, devices: int, processes: int
) -> Prepared:
    """Make the plan of the launch; `devices` of this machine are divided equally among `processes`."""
    job = Job.chosen(
        options,
        devices=devices // processes,
        strategy=strategy,
        device="cuda" if usable_gpus(facts) else "cpu",
        memory_format=options.memory_format or framework_named(options.framework).memory_format,
    )
    plan = Plan(
        job=job,
        run_dir=_run_directory(job),
        processes=processes,
        threads=max(1, (facts.host.usable_cpus or 1) // processes),
    )
    return Prepared(plan=plan, interpreter=interpreter, facts=facts)


def usable_gpus(facts: Facts) -> int:
    """Return the number of GPUs that training may use."""
    return sum(gpu.visible for gpu in facts.gpus)


def _check_framework(options: RunOptions, interpreter: Interpreter, gpus: int) -> None:
    """Refuse a framework that cannot use this machine's devices: `gpus` GPUs, or the CPU if there are none."""
    framework = framework_named(options.framework)
    if gpus and interpreter.cuda is None:
        raise FrameworkMissingError(
            f"there are {gpus} GPUs, but {framework.title} {interpreter.framework} of {options.python} was built "
            "without CUDA",
            "Choose another interpreter with --python, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
        )
    memory_format = options.memory_format or framework.memory_format
    if not gpus and memory_format not in framework.cpu_memory_formats:
        raise UsageError(
            f"{framework.title} has no convolutions in {memory_format} for the CPU", "Leave --memory-format out."
        )


def _check_gpus(options: RunOptions, entry: type[Strategy] | None, facts: Facts) -> None:
    """Refuse a strategy that needs GPUs if there are none."""
    if entry is not None and entry.needs_gpu and not usable_gpus(facts):
        why = facts.host.reasons.get("visible") or facts.host.reasons.get("gpus") or "none found"
        raise HardwareMissingError(
            f"strategy {entry.name} needs GPUs, and this machine has none to use ({why})",
            f"Use --strategy {default_strategy(options.framework, on_gpu=False)}, which trains on the CPU.",
        )


def _devices(options: RunOptions, facts: Facts) -> int:
    """Return the requested number of devices, or else the number of GPUs, or two CPU processes without GPUs."""
    gpus, cpus = usable_gpus(facts), facts.host.usable_cpus or 1
    # CPU processes of a divided model may share cores, because their number follows from the division.
    divided = 0 if options.parallel is None else options.parallel.processes // options.nodes
    available = gpus or max(cpus, _CPU_PROCESSES, divided)
    devices = options.devices or (gpus or _CPU_PROCESSES)
    if devices > available:
        there = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else f"no GPU, and {cpus} CPUs for {available} processes"
        raise HardwareMissingError(f"--devices {devices}: this machine has {there}")
    return devices


def _processes(options: RunOptions, entry: type[Strategy] | None, devices: int) -> int:
    """Return the strategy's number of processes; for a user-defined function, the framework's number."""
    if entry is not None:
        return entry.processes(devices)
    return 1 if framework_named(options.framework).one_process and not options.process_per_device else devices


def _run_directory(job: Job) -> Path:
    name = job.workload.replace(":", ".")
    directory = Path(job.output or f"gpudiag-runs/{time.strftime('%Y%m%d-%H%M%S')}-{name}-{job.strategy}")
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--output {directory} is a file", "Give a directory; it is created if missing.")
    return directory


def measure_links(prepared: Prepared, on_progress: Callable[[ProbeStep], None] | None = None) -> Prepared:
    """Add measurements of the machine's links if several GPUs will communicate over them, and findings in any case.

    Args:
        prepared: the run. Its job's `probe` is True to measure the links, which takes about 5 s, False not to, and None
            to do so only without measurements of the last day.
        on_progress: called from several threads with the current probe.
    """
    facts, job = prepared.facts, prepared.plan.job
    several = job.device == "cuda" and prepared.plan.ranks > 1 and usable_gpus(facts) > 1
    measured: Facts | None = None
    if several and job.probe is not False and installed("cuda.bindings"):  # which the probes need
        if job.probe is None:
            measured = cached_measurements(facts, nccl_transport(p2p=job.p2p))
        if measured is None:
            measured = probe_machine(facts, quick=True, p2p=job.p2p, on_progress=on_progress)
            if not failed_probes(measured):
                keep_measurements(measured)
    facts = measured or facts
    return msgspec.structs.replace(prepared, facts=msgspec.structs.replace(facts, findings=examine_facts(facts)))
