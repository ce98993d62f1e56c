"""`gpudiag bandwidth`: measure links, and time all-reduces of a model's gradient buckets over each transport."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.app.profile.prepare import prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.recommend.candidates import candidates, why_not
from gpudiag.app.recommend.offline_recommendation import describe_workload
from gpudiag.app.topology import check_gpu, with_findings
from gpudiag.errors import UsageError
from gpudiag.machine.facts_file import load_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.measure import failed_probes, probe_machine
from gpudiag.machine.probes.cache import keep_measurements
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.benchmarks.gradient_bandwidth import (
    GRADIENT_BANDWIDTH_FILE,
    GRADIENT_BANDWIDTH_SCHEMA,
    GradientBandwidth,
    GradientBandwidthPlan,
    ModelBuckets,
)
from gpudiag.model.facts import Collective, Facts
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import read_json
from gpudiag.prediction.overlap import ddp_buckets
from gpudiag.training.models.registry import training_entry
from gpudiag.training.session.progress import Progress
from gpudiag.training.strategies.registry import transports_of

#: Maximum number of bucket sizes that are measured. The times of other sizes are interpolated.
_SIZES = 8


class MeasuredBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """The facts with measured links, the buckets of the requested model, and the names of the probes that failed."""

    facts: Facts
    buckets: ModelBuckets | None = None
    failed: tuple[str, ...] = ()


def bandwidth(
    on_probe: Callable[[ProbeStep], None],
    observer: Callable[[Progress], None],
    say: Callable[[str], None],
    *,
    source: Path | None = None,
    quick: bool = False,
    workload: str | None = None,
    require_gpu: bool = False,
    timeout_s: float = 60.0,
    save: Path | None = None,
) -> MeasuredBandwidth:
    """Measure this machine's links, or read saved measurements, and add findings.

    Args:
        on_probe: called from several threads with the current probe.
        observer: called with each message of the processes that communicate.
        say: called with each action in words.
        source: file of facts to read instead of measuring; None to measure.
        quick, timeout_s: whether to measure fewer sizes, and the time limit of each probe in seconds.
        workload: also measure all-reduces of this model's gradient buckets; None for no model.
        require_gpu: fail if there is no GPU.
        save: file to which the facts are written, if any.
    """
    if workload is not None:
        training_entry(workload, "--like")  # refuse an unknown workload before measuring
    if source is not None and (quick or workload is not None):
        raise UsageError(f"{'--quick' if quick else '--like'} measures and --from does not", "Give one of them.")
    facts = gather_inventory() if source is None else load_facts(source)
    if require_gpu:
        check_gpu(facts, "measure")
    failed: tuple[str, ...] = ()
    if source is None:
        facts = probe_machine(facts, quick=quick, timeout_s=timeout_s, on_progress=on_probe)
        failed = failed_probes(facts)
        if not failed:
            keep_measurements(facts)  # `gpudiag profile` can then use these measurements
    buckets = None
    if workload is not None:
        say(f"all-reduces of the buckets of {workload}")
        buckets = measure_gradient_bandwidth(workload, observer, timeout_s=timeout_s)
        facts = msgspec.structs.replace(
            facts,
            collectives=(*facts.collectives, *buckets.collectives),
            probes={**facts.probes, "like": {"workload": workload, "bucket_bytes": list(buckets.bucket_bytes)}},
        )
    return MeasuredBandwidth(facts=with_findings(facts, save), buckets=buckets, failed=failed)


def measure_gradient_bandwidth(
    workload: str, observer: Callable[[Progress], None], *, timeout_s: float
) -> ModelBuckets:
    """Measure each transport on the buckets that DistributedDataParallel makes of this workload's gradients.

    NCCL reads the setting of peer access when it starts. So on GPUs, NCCL without peer access is measured in a second
    launch, which leaves out transports of the first. `observer` and `timeout_s` are as for `bandwidth`.
    """
    measured: list[Collective] = []
    buckets: tuple[int, ...] = ()
    requested: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpudiag-gradients-") as directory:
        for p2p in (True, False):
            run_dir = Path(directory) / ("p2p" if p2p else "no-p2p")
            prepared = prepare_program(RunOptions(workload=workload, p2p=p2p, output=str(run_dir), timeout_s=timeout_s))
            job = prepared.plan.job
            on_gpu = job.device == "cuda"
            if prepared.plan.processes < 2:
                raise UsageError("one device does not communicate", "Leave --like out.")
            if p2p:
                sizes = describe_workload(workload, on_gpu=on_gpu, python=job.python).gradients.sizes
                # Bytes of each bucket, which DDP describes by the indices of its gradients.
                buckets = tuple(sum(sizes[i] for i in bucket) for bucket in ddp_buckets(sizes))
            elif not on_gpu:
                break
            all_candidates = candidates()
            refused = why_not(prepared.facts, all_candidates, prepared.plan.processes)
            possible = [candidate for candidate in all_candidates if candidate.label not in refused]
            used = transports_of(possible, on_gpu=on_gpu, p2p=p2p)
            transports = {name: candidate for name, candidate in used.items() if name not in requested}
            requested += transports
            plan = GradientBandwidthPlan(device=job.device, transports=transports, sizes=chosen_sizes(buckets, _SIZES))
            train(prepared, observer, plan)
            result = read_json(run_dir / GRADIENT_BANDWIDTH_FILE, GradientBandwidth, GRADIENT_BANDWIDTH_SCHEMA)
            measured += result.collectives
    measured_names = {collective.strategy for collective in measured}
    return ModelBuckets(
        workload=workload,
        bucket_bytes=buckets,
        collectives=tuple(measured),
        skipped={name: "not available here" for name in requested if name not in measured_names},
    )


def chosen_sizes(buckets: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return at most `most` distinct sizes, evenly spaced in sorted order, including the smallest and the largest."""
    sizes = sorted(set(buckets))
    if len(sizes) <= most:
        return tuple(sizes)
    return tuple(sorted({sizes[round(i * (len(sizes) - 1) / (most - 1))] for i in range(most)}))
