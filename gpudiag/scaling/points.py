"""From what was asked to the points to measure, most worth first.

A point's worth is what would be missing without it. Worked example, with strategies nccl and cpu-reduce on up to 4
GPUs: first nccl on 4 and its baseline on 1, which give one efficiency; then `independent` on 4, the floor; then
cpu-reduce on 4 and on 1; then the sizes between. Of several batch sizes, precisions and so on, the first of each makes
a complete picture before the second adds to it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpudiag.errors import HardwareMissingError, UsageError
from gpudiag.model.job import DATA_SOURCES, MEMORY_FORMATS, PRECISIONS, Job
from gpudiag.model.scaling import ScalePoint
from gpudiag.strategies.registry import STRATEGIES, strategy_entry
from gpudiag.strategies.tensorflow.registry import DEFAULT_ON_CPUS, DEFAULT_ON_GPUS, tensorflow_strategy_entry
from gpudiag.workloads.registry import workload_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpudiag.scaling.asked import Asked

NO_P2P = "-no-p2p"
INDEPENDENT = "independent"

#: Fields of a job that a point names itself.
_NAMED = frozenset(
    (
        "workload",
        "framework",
        "strategy",
        "device",
        "devices",
        "batch_size",
        "precision",
        "memory_format",
        "data",
        "p2p",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point before it is measured: its job, its record so far, and its place in the queue (0 comes first)."""

    job: Job
    point: ScalePoint
    worth: tuple[int, ...] = (0,)

    @property
    def by_itself(self) -> bool:
        """It needs a launch of its own: one process drives all devices, or the framework starts its own."""
        if self.point.framework == "tensorflow":
            return True
        return STRATEGIES[self.job.strategy].one_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where it will be measured: `gpus` that training may use, 0 for CPU processes, and `cpus` that it may use."""

    gpus: int
    cpus: int

    @property
    def device(self) -> str:
        """As in a job."""
        return "cuda" if self.gpus else "cpu"

    @property
    def most(self) -> int:
        """As many devices as a point can have. On CPUs at least two processes, which then share a core."""
        return self.gpus or max(self.cpus, 2)


def cases(asked: Asked, site: Site) -> list[Case]:
    """All points that were asked for, most worth first. Those that cannot be are there too, with their error.

    Raises:
        UsageError: a name that does not exist, or options that do not go together.
        HardwareMissingError: more devices than there are.
    """
    sizes = _sizes(asked, site)
    strategies = _strategies(asked, site)
    found: dict[str, Case] = {}
    workloads = asked.workloads or (("resnet20-cifar",) if site.gpus == 0 else ("resnet50",))
    for place, name in enumerate(workloads):
        for variant, made in enumerate(_variants(asked, site, name, max(sizes))):
            exchanging = strategies if workload_entry(name).trains else (INDEPENDENT,)
            for devices, strategy in itertools.product(sizes, exchanging):
                worth = (_tier(devices, strategy, sizes, strategies) + 10 * variant, place)
                _add(found, _case(asked, made, strategy, tuple(range(devices)), worth))
        if place == 0:
            first = next(iter(_variants(asked, site, name, max(sizes))))
            _add_subsets(found, asked, site, first, strategies)
    return in_order(found.values())


def in_order(found: Iterable[Case]) -> list[Case]:
    """Most worth first; of equal worth the one with most devices, so that they all load their libraries at once.

    On 4 H200s a process's first three steps of ResNet-50 took 9 s; with one device before four that was paid twice.
    """
    return sorted(found, key=lambda case: (case.worth, -case.point.devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """What all points of one curve share."""

    workload: str
    device: str
    batch: int
    """Per device, or of the whole step in strong mode."""
    precision: str
    memory_format: str
    data: str
    threads: int | None


def _variants(asked: Asked, site: Site, name: str, largest: int) -> list[_Variant]:
    entry = workload_entry(name)
    batch = entry.gpu_batch if site.gpus else entry.cpu_batch
    batches = asked.batch_sizes or (batch * (largest if asked.mode == "strong" else 1),)
    default = "nhwc" if asked.framework == "tensorflow" else "nchw"
    formats = [one for one in asked.memory_formats or (default,) if one == default or entry.images] or [default]
    for one, valid, option in (
        *((one, PRECISIONS, "--precision") for one in asked.precisions),
        *((one, MEMORY_FORMATS, "--memory-format") for one in asked.memory_formats),
        *((one, DATA_SOURCES, "--data") for one in asked.data),
    ):
        if one not in valid:
            raise UsageError(f"{option} knows no '{one}'", f"There are: {', '.join(valid)}.")
    precisions = asked.precisions or (("tf32",) if site.gpus else ("fp32",))
    return [
        _Variant(
            workload=name,
            device=site.device,
            batch=batch,
            precision=precision,
            memory_format=layout,
            data=data,
            threads=None if site.gpus else max(1, site.cpus // largest),
        )
        for batch, precision, layout, data in itertools.product(batches, precisions, formats, asked.data or ("device",))
    ]


def _sizes(asked: Asked, site: Site) -> tuple[int, ...]:
    there = f"{site.gpus} GPU{'s' * (site.gpus != 1)}" if site.gpus else f"no GPU, and CPUs for {site.most} processes"
    for devices in asked.devices:
        if devices > site.most:
            raise HardwareMissingError(f"--devices {devices}: this machine has {there}")
    if asked.devices:
        return tuple(sorted({1, *asked.devices}))
    largest = site.gpus or 2
    powers = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
    return (*powers, largest)


def _strategies(asked: Asked, site: Site) -> tuple[str, ...]:
    if asked.framework == "tensorflow":
        return _tensorflow_strategies(asked, site)
    chosen = asked.strategies or ((("nccl", INDEPENDENT)) if site.gpus else ("gloo", INDEPENDENT))
    for name in chosen:
        bare = name.removesuffix(NO_P2P)
        if bare not in STRATEGIES or (name != bare and not site.gpus):
            strategy_entry(name if name == bare else bare)
            raise UsageError(f"strategy {name} needs GPUs", f"Use {bare}.")
        if strategy_entry(bare).needs_gpu and not site.gpus:
            raise HardwareMissingError(
                f"strategy {name} needs GPUs, and this machine has none to use", "Use --strategies gloo,independent."
            )
    return tuple(dict.fromkeys(chosen))


def _tensorflow_strategies(asked: Asked, site: Site) -> tuple[str, ...]:
    chosen = asked.strategies or ((DEFAULT_ON_GPUS if site.gpus else DEFAULT_ON_CPUS), INDEPENDENT)
    for name in chosen:
        if tensorflow_strategy_entry(name).needs_gpu and not site.gpus:
            raise HardwareMissingError(
                f"strategy {name} needs GPUs, and this machine has none to use", f"Use --strategies {DEFAULT_ON_CPUS}."
            )
    return tuple(dict.fromkeys(chosen))


def _tier(devices: int, strategy: str, sizes: Sequence[int], strategies: Sequence[str]) -> int:
    at_the_ends = devices in (1, max(sizes))
    if strategy == strategies[0]:
        return 0 if at_the_ends else 3
    if strategy == INDEPENDENT:
        return 1 if devices == max(sizes) else 4
    return 2 if at_the_ends else 5


def _add(found: dict[str, Case], case: Case) -> None:
    """Note a point once, at the earlier of its places in the queue."""
    known = found.get(case.point.id)
    if known is None:
        found[case.point.id] = case
    elif case.worth < known.worth:
        found[case.point.id] = replace(known, worth=case.worth)


def _add_subsets(
    found: dict[str, Case], asked: Asked, site: Site, variant: _Variant, strategies: Sequence[str]
) -> None:
    """Each GPU by itself, and each pair, compared on one workload."""
    if asked.mode == "strong" or asked.framework == "tensorflow":
        return  # TensorFlow jobs take the first devices; what a device does alone is a question of weak scaling
    everyone = range(site.most if site.gpus else max(_sizes(asked, site)))
    if (asked.alone and site.gpus > 1) or asked.pairs:
        for device in everyone:
            case = _case(asked, variant, INDEPENDENT, (device,), (1, -1))
            point = msgspec.structs.replace(case.point, alone=True)
            known = found.get(point.id, case)
            found[point.id] = Case(job=case.job, point=point, worth=min(case.worth, known.worth))
    if asked.pairs:
        for pair in itertools.combinations(everyone, 2):
            for strategy in strategies:
                if strategy != INDEPENDENT:
                    _add(found, _case(asked, variant, strategy, pair, (4, -1)))


def _case(asked: Asked, variant: _Variant, strategy: str, indices: tuple[int, ...], worth: tuple[int, ...]) -> Case:
    devices = len(indices)
    error = None
    batch = variant.batch
    if asked.mode == "strong":
        batch, left = divmod(variant.batch, devices)
        if left or batch == 0:
            error = (
                f"a batch of {variant.batch} samples does not divide among {devices} devices: "
                "partial batches are no strong scaling; choose --batch-size as a multiple of every number of devices"
            )
            batch = max(1, batch)
    # One device has no peers whose access could be switched off, and some strategies need peers to exchange with.
    p2p = not strategy.endswith(NO_P2P) or devices == 1
    tensorflow = asked.framework == "tensorflow"
    bare = on_one_device(strategy) if devices == 1 and not tensorflow else strategy.removesuffix(NO_P2P)
    made: dict[str, Any] = {
        **asked.job_options,
        "workload": variant.workload,
        "framework": "tensorflow" if tensorflow else "pytorch",
        "strategy": bare,
        "device": variant.device,
        "batch_size": batch,
        "precision": variant.precision,
        "memory_format": variant.memory_format,
        "data": variant.data,
        "p2p": p2p,
    }
    job = Job(**made)
    point = ScalePoint(
        id="",
        workload=job.workload,
        framework=job.framework,
        strategy=bare + ("" if p2p else NO_P2P),
        devices=devices,
        device_indices=indices,
        batch_per_device=batch,
        global_batch=variant.batch if asked.mode == "strong" else batch * devices,
        mode=asked.mode,
        precision=variant.precision,
        memory_format=variant.memory_format,
        data=variant.data,
        options=_options(job),
        threads=variant.threads,
        status="failed" if error else "not measured",
        error=error,
    )
    return Case(job=job, point=msgspec.structs.replace(point, id=point_id(point)), worth=worth)


def on_one_device(strategy: str) -> str:
    """What a strategy comes to on a single device, which has nobody to exchange with: itself, or no exchange."""
    bare = strategy.removesuffix(NO_P2P)
    entry = STRATEGIES.get(bare)
    return INDEPENDENT if entry is not None and entry.least_devices > 1 else bare


def halved(case: Case) -> Case:
    """The same point with half the samples per device."""
    batch = case.point.batch_per_device // 2
    point = msgspec.structs.replace(
        case.point,
        batch_per_device=batch,
        global_batch=batch * case.point.devices,
        status="not measured",
        error=None,
        halved_from=case.point.id,
    )
    point = msgspec.structs.replace(point, id=point_id(point))
    return Case(job=msgspec.structs.replace(case.job, batch_size=batch), point=point, worth=case.worth)


def point_id(point: ScalePoint) -> str:
    """A name that says what the point is, with a digest of all that makes it so: `resnet50-nccl-4x64-bf16-1f3a9c`.

    Independent of the order in which points are asked for, so that a later call knows what an earlier one has measured.
    """
    identity = (
        point.workload,
        point.framework,
        point.strategy,
        point.device_indices,
        point.batch_per_device,
        point.global_batch,
        point.mode,
        point.precision,
        point.memory_format,
        point.data,
        sorted(point.options.items()),
        point.threads,
    )
    digest = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:8]
    readable = f"{point.workload}-{point.strategy}-{point.devices}x{point.batch_per_device}-{point.precision}"
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', readable)}-{digest}"


def _options(job: Job) -> dict[str, str]:
    """What of a job is neither named by the point nor the default."""
    default = Job(workload=job.workload, strategy=job.strategy, device=job.device, framework=job.framework)
    changed = {
        name: str(getattr(job, name))
        for name in job.__struct_fields__
        if name not in _NAMED | {"exchange"} and getattr(job, name) != getattr(default, name)
    }
    return {**changed, **job.exchange.given()}
