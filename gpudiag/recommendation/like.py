"""All-reduces on a model's own bucket sizes, over each transport of this machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag import pipeline, preparation
from gpudiag.errors import UsageError
from gpudiag.model.like import LIKE_FILE, LIKE_PLAN_FILE, LIKE_SCHEMA, Like, LikePlan, ModelBuckets
from gpudiag.prediction.buckets import ddp_buckets
from gpudiag.recommendation.outlook import describe_workload
from gpudiag.run_files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.facts import Collective
    from gpudiag.worker.progress import Progress

_JOB = "gpudiag.workloads.contest.like:run"
#: Different sizes that are measured; those between them follow from these.
_SIZES = 8
_ON_GPUS = ("nccl", "cpu-reduce", "cpu-reduce-bf16", "gloo-device")
_ON_CPUS = ("gloo", "cpu-reduce")


def measure_like(
    workload: str,
    observer: Callable[[Progress], None],
    *,
    devices: int | None = None,
    python: str = sys.executable,
    timeout_s: float = 120.0,
) -> ModelBuckets:
    """Measure each transport on the buckets in which DistributedDataParallel sends this workload's gradients.

    On GPUs NCCL without peer access is a second launch, since NCCL decides that when it starts.

    Raises:
        UsageError: no such workload, or one device, which exchanges nothing.
        FrameworkMissingError, WorkerFailedError: as `gpudiag profile`.
    """
    found: list[Collective] = []
    buckets: tuple[int, ...] = ()
    wanted: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpudiag-like-") as directory:
        for p2p in (True, False):
            run_dir = Path(directory) / ("p2p" if p2p else "no-p2p")
            prepared = preparation.prepare(
                preparation.Request(
                    workload=_JOB, devices=devices, p2p=p2p, run_dir=run_dir, python=python, timeout_s=timeout_s
                )
            )
            on_gpu = prepared.plan.job.device == "cuda"
            if prepared.plan.processes < 2:
                raise UsageError(
                    "one device exchanges nothing", "Choose two or more with --devices, or leave --like out."
                )
            if p2p:
                sizes = describe_workload(workload, on_gpu=on_gpu, python=python).gradients.sizes
                buckets = tuple(sum(sizes[i] for i in bucket) for bucket in ddp_buckets(sizes))
            elif not on_gpu:
                break
            transports = (_ON_GPUS if on_gpu else _ON_CPUS) if p2p else ("nccl-no-p2p",)
            wanted += transports
            run_dir.mkdir(parents=True)
            plan = LikePlan(device=prepared.plan.job.device, transports=transports, sizes=chosen_sizes(buckets, _SIZES))
            write_json(run_dir / LIKE_PLAN_FILE, plan)
            pipeline.train(prepared, observer)
            found += read_json(run_dir / LIKE_FILE, Like, LIKE_SCHEMA).collectives
    measured = {one.strategy for one in found}
    return ModelBuckets(
        workload=workload,
        bucket_bytes=buckets,
        collectives=tuple(found),
        skipped={name: "it could not be used here" for name in wanted if name not in measured},
    )


def chosen_sizes(buckets: tuple[int, ...], most: int) -> tuple[int, ...]:
    """A few of the buckets' sizes that span all of them, rising."""
    every = sorted(set(buckets))
    if len(every) <= most:
        return tuple(every)
    return tuple(sorted({every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)}))
