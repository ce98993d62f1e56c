"""List the requested points (trainings to measure), most important first.

Worked example, with strategies nccl and cpu-reduce on up to 4 GPUs. First come nccl on 4 GPUs and its baseline on 1
GPU, which together give an efficiency. Then come `independent` on 4 GPUs (the step without communication), cpu-reduce
on 4 GPUs and on 1 GPU, and at last all strategies on 2 GPUs. If several batch sizes, precisions or other settings are
requested, all points of the first setting come before the points of the second setting.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

from gpudiag.app.scale.store import Store
from gpudiag.errors import HardwareMissingError, UsageError, there_are
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.benchmarks.scaling import NO_P2P, PointRecord
from gpudiag.model.job import (
    DATA_SOURCES,
    INDEPENDENT,
    MEMORY_FORMATS,
    PRECISIONS,
    Job,
    Precision,
    RunOptions,
    computed_in,
)
from gpudiag.training.frameworks.registry import FRAMEWORKS, framework_named
from gpudiag.training.models.registry import workload_entry
from gpudiag.training.strategies.registry import default_strategy, strategies, strategy_entry

#: Frameworks and strategies that cannot run on one device.
NEED_PEERS = frozenset(
    (framework, name)
    for framework in FRAMEWORKS
    for name, strategy in strategies(framework).items()
    if strategy.least_devices > 1
)

#: Fields of a job that define the training, but are not fields of a point.
_OPTIONS = ("loader_workers", "prefetch", "model", "volume", "keep_prediction", "steps", "warmup", "compile")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A point to measure.

    Attributes:
        job: the training.
        record: the settings of the point, and its measurements if there are any.
        priority: points with the lowest priority are measured first.
        start: number of this start of the point's processes, from 1.
    """

    job: Job
    record: PointRecord
    priority: tuple[int, ...] = (0,)
    start: int = 1

    @property
    def directory(self) -> str:
        """Directory of this start, relative to the benchmark's directory."""
        return Store.relative(self.record.id, start=self.start)

    @property
    def by_itself(self) -> bool:
        """True if the point needs a separate launch: one process drives all devices, or jobs cannot share processes."""
        shared = framework_named(self.job.framework).shares_launches
        return not shared or strategy_entry(self.job.strategy, self.job.framework).one_process


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of GPUs (0 for CPU processes) and of CPU cores that training may use."""

    gpus: int
    cpus: int

    @property
    def most(self) -> int:
        """Largest number of devices of a point; at least two without GPUs, because processes can share a core."""
        return self.gpus or max(self.cpus, 2)


def all_points(request: ScaleRequest, site: Site) -> list[Point]:
    """Return all requested points, most important first. The record of an impossible point has an error."""
    sizes = _sizes(request, site)
    requested = _strategies(request, site)
    points: dict[str, Point] = {}
    workloads = request.workloads or (("resnet20-cifar",) if site.gpus == 0 else ("resnet50",))
    for position, name in enumerate(workloads):
        variants = _variants(request, site, name)
        strategies_of_workload = requested if workload_entry(name).trains else (INDEPENDENT,)
        for number, variant in enumerate(variants):
            for devices, strategy in itertools.product(sizes, strategies_of_workload):
                # Tiers are below 10, so that all points of a setting come before those of the next setting.
                priority = (_tier(devices, strategy, sizes, requested) + 10 * number, position)
                _add(points, _point(request, site, variant, strategy, tuple(range(devices)), priority=priority))
        if position == 0:  # single GPUs and pairs are measured with one setting only
            _add_subsets(points, request, site, variants[0], requested)
    return in_order(points.values())


def in_order(points: Iterable[Point]) -> list[Point]:
    """Sort by priority. Among points of equal priority, points with more devices come first.

    If the largest point is measured first, all processes load their libraries at the same time. On 4 H200s, the first
    three steps of ResNet-50 took 9 s. If the point on 1 GPU came before the point on 4, the 9 s would be spent twice.
    """
    return sorted(points, key=lambda point: (point.priority, -point.record.devices))


def _variants(request: ScaleRequest, site: Site, name: str) -> list[RunOptions]:
    """Return the options of each setting of a workload; in strong scaling `batch_size` counts all devices together."""
    entry = workload_entry(name)
    batch = entry.default_batch(on_gpu=bool(site.gpus))
    batches = request.batch_sizes or (batch * (max(_sizes(request, site)) if request.mode == "strong" else 1),)
    default = framework_named(request.run.framework).memory_format
    _check_words(request)
    # Only images can have another layout than the default.
    layouts = [value for value in request.memory_formats if value == default or entry.images] or [default]
    requested = cast("Sequence[Precision | None]", request.precisions or (None,))
    precisions = dict.fromkeys(computed_in(precision, on_gpu=site.gpus > 0) for precision in requested)
    return [
        msgspec.structs.replace(
            request.run,
            workload=name,
            batch_size=batch,
            precision=precision,
            memory_format=layout,
            data=data,
            compile=compiled,
        )
        for batch, precision, layout, data, compiled in itertools.product(
            batches, precisions, layouts, request.data or ("device",), request.compiled or (request.run.compile,)
        )
    ]


def _check_words(request: ScaleRequest) -> None:
    """Raise UsageError if an option has an unknown value."""
    for values, valid, option in (
        (request.precisions, PRECISIONS, "--precision"),
        (request.memory_formats, MEMORY_FORMATS, "--memory-format"),
        (request.data, DATA_SOURCES, "--data"),
    ):
        for value in values:
            if value not in valid:
                raise UsageError(f"{option} knows no '{value}'", there_are(value, valid))


def _sizes(request: ScaleRequest, site: Site) -> tuple[int, ...]:
    """Return the numbers of devices: 1 and the requested numbers, or else powers of two and the largest number."""
    devices_here = (
        f"{site.gpus} GPU{'s' * (site.gpus != 1)}" if site.gpus else f"no GPU, and CPUs for {site.most} processes"
    )
    for devices in request.devices:
        if devices > site.most:
            raise HardwareMissingError(f"--devices {devices}: this machine has {devices_here}")
    if request.devices:
        return tuple(sorted({1, *request.devices}))
    largest = site.gpus or 2
    powers = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
    return (*powers, largest)


def _strategies(request: ScaleRequest, site: Site) -> tuple[str, ...]:
    """Return the requested strategies, or else the default strategy and `independent`."""
    framework = framework_named(request.run.framework)
    names = request.strategies or (default_strategy(framework.name, on_gpu=site.gpus > 0), INDEPENDENT)
    for name in names:
        # Only shared launches have the setting of peer access, which the suffix `NO_P2P` of a strategy switches off.
        bare = name.removesuffix(NO_P2P) if framework.shares_launches else name
        entry = strategy_entry(bare, framework.name)
        if name != bare and not site.gpus:
            raise UsageError(f"strategy {name} needs GPUs", f"Use {bare}.")
        if entry.needs_gpu and not site.gpus:
            raise HardwareMissingError(
                f"strategy {name} needs GPUs, and this machine has none to use",
                f"Use --strategies {default_strategy(framework.name, on_gpu=False)},{INDEPENDENT}.",
            )
    return tuple(dict.fromkeys(names))


def _tier(devices: int, strategy: str, sizes: Sequence[int], strategies: Sequence[str]) -> int:
    """Return the importance of a point, 0 for the most important; see the module's example."""
    smallest_or_largest = devices in (1, max(sizes))
    if strategy == strategies[0]:
        return 0 if smallest_or_largest else 3
    if strategy == INDEPENDENT:
        return 1 if devices == max(sizes) else 4
    return 2 if smallest_or_largest else 5


def _add(points: dict[str, Point], point: Point) -> None:
    """Add a point. If the point exists already, keep the lower (more important) of both priorities."""
    known = points.get(point.record.id)
    if known is None:
        points[point.record.id] = point
    elif point.priority < known.priority:
        points[point.record.id] = msgspec.structs.replace(known, priority=point.priority)


def _add_subsets(
    points: dict[str, Point], request: ScaleRequest, site: Site, variant: RunOptions, strategies: Sequence[str]
) -> None:
    """Add each GPU alone and each pair of GPUs, if they are requested, before other points of the same tier."""
    # Single devices are compared only in weak scaling. Points with separate launches always use the first devices.
    if request.mode == "strong" or not framework_named(request.run.framework).shares_launches:
        return
    # Without GPUs, devices are the processes of the largest point.
    devices = range(site.most if site.gpus else max(_sizes(request, site)))
    if (request.alone and site.gpus > 1) or request.pairs:
        for device in devices:
            point = _point(request, site, variant, INDEPENDENT, (device,), priority=(1, -1))
            record = msgspec.structs.replace(point.record, alone=True)
            known = points.get(record.id, point)  # the point may exist, as a baseline
            points[record.id] = Point(job=point.job, record=record, priority=min(point.priority, known.priority))
    if request.pairs:
        for pair in itertools.combinations(devices, 2):
            for strategy in strategies:
                if strategy != INDEPENDENT:
                    _add(points, _point(request, site, variant, strategy, pair, priority=(4, -1)))


def _point(
    request: ScaleRequest,
    site: Site,
    variant: RunOptions,
    strategy: str,
    indices: tuple[int, ...],
    *,
    priority: tuple[int, ...],
) -> Point:
    """Return the point that trains a variant with this strategy on the devices with these indices."""
    devices = len(indices)
    error = None
    batch = step_batch = variant.batch_size or 1  # in strong scaling, the batch of all devices together
    if request.mode == "strong":
        batch, remainder = divmod(step_batch, devices)
        if remainder or batch == 0:
            error = (
                f"a batch of {step_batch} samples does not divide among {devices} devices; "
                "choose --batch-size as a multiple of every number of devices"
            )
            batch = max(1, batch)
    # On one device there is no peer access to switch off, and strategies that need peers become `independent`.
    p2p = not strategy.endswith(NO_P2P) or devices == 1
    bare = on_one_device(strategy, request.run.framework) if devices == 1 else strategy.removesuffix(NO_P2P)
    # `devices=1` is the number of devices of each process.
    job = Job.chosen(
        variant, strategy=bare, device="cuda" if site.gpus else "cpu", devices=1, batch_size=batch, p2p=p2p
    )
    record = PointRecord(
        id="",
        workload=job.workload,
        framework=job.framework,
        strategy=bare + ("" if p2p else NO_P2P),
        devices=devices,
        device_indices=indices,
        batch_per_device=batch,
        global_batch=step_batch if request.mode == "strong" else batch * devices,
        mode=request.mode,
        precision=job.precision or "",
        memory_format=job.memory_format,
        data=job.data,
        options=_options(job),
        threads=None if site.gpus else max(1, site.cpus // max(_sizes(request, site))),
        status="failed" if error else "not measured",
        error=error,
    )
    return Point(job=job, record=msgspec.structs.replace(record, id=point_id(record)), priority=priority)


def to_profile(request: ScaleRequest, wanted: list[Point]) -> list[Point]:
    """Return the points to record: none, all, or some points of the first setting, as `request.recorded` states.

    `auto` selects the point with the most devices of each strategy that communicates, and its baseline on one device.
    `first` selects these two points of the first strategy only.
    """
    possible = [point for point in wanted if point.record.status != "failed"]
    if request.recorded == "none":
        return []
    if request.recorded == "all":
        return possible
    no_subsets = [point for point in possible if point.record.device_indices == tuple(range(point.record.devices))]
    most = max((point.record.devices for point in no_subsets), default=1)
    if most == 1:
        return no_subsets[:1]  # the most important point, because no point communicates
    first_variant = [point for point in no_subsets if point.priority[0] < 10]  # see `all_points`
    return _largest_and_baselines(first_variant, most, first_strategy_only=request.recorded == "first")


def _largest_and_baselines(points: list[Point], most: int, *, first_strategy_only: bool) -> list[Point]:
    """Return the points of communicating strategies with `most` devices, and their baselines on one device."""
    largest = [point for point in points if point.record.devices == most and point.record.strategy != INDEPENDENT]
    if first_strategy_only:
        largest = [point for point in largest if point.priority[0] == 0]  # see `_tier`
    strategies = {on_one_device(point.record.strategy, point.record.framework) for point in largest}
    baselines = [point for point in points if point.record.devices == 1 and point.record.strategy in strategies]
    return in_order([*largest, *baselines])


def on_one_device(strategy: str, framework: str) -> str:
    """Return the strategy that a single device runs: `independent` if `strategy` needs peers."""
    bare = strategy.removesuffix(NO_P2P)
    return INDEPENDENT if (framework, bare) in NEED_PEERS else bare


def halved(point: Point) -> Point:
    """Return the point with half the samples per device."""
    batch = point.record.batch_per_device // 2
    record = msgspec.structs.replace(
        point.record,
        batch_per_device=batch,
        global_batch=batch * point.record.devices,
        status="not measured",
        error=None,
        halved_from=point.record.id,
    )
    record = msgspec.structs.replace(record, id=point_id(record))
    return Point(job=msgspec.structs.replace(point.job, batch_size=batch), record=record, priority=point.priority)


def point_id(record: PointRecord) -> str:
    """Return a readable name with a digest of the point's settings: `resnet50-nccl-4x64-bf16-1f3a9c42`.

    The id does not depend on the order of points, so that a later call finds earlier measurements.
    """
    identity = (
        record.workload,
        record.framework,
        record.strategy,
        record.device_indices,
        record.batch_per_device,
        record.global_batch,
        record.mode,
        record.precision,
        record.memory_format,
        record.data,
        sorted(record.options.items()),
        record.threads,
    )
    digest = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:8]
    readable = f"{record.workload}-{record.strategy}-{record.devices}x{record.batch_per_device}-{record.precision}"
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', readable)}-{digest}"


def _options(job: Job) -> dict[str, str]:
    """Return the options of a job that are not fields of a point, if they differ from their defaults."""
    default = Job(workload=job.workload, strategy=job.strategy, device=job.device, framework=job.framework)
    changed = {name: str(getattr(job, name)) for name in _OPTIONS if getattr(job, name) != getattr(default, name)}
    return {**changed, **job.exchange.given()}
