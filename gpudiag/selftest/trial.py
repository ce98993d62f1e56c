"""Train with faults, record, analyse, judge: from what is asked to the finished table."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag import pipeline, preparation
from gpudiag.errors import UnreadableInputError, UsageError
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.selftest import (
    ABLATION_FILE,
    ABLATION_SCHEMA,
    CLEAN_EXCHANGE,
    PLAN_FILE,
    SELFTEST_FILE,
    SELFTEST_SCHEMA,
    Ablation,
    FaultPlan,
    LeftOut,
    Selftest,
    SelftestPlan,
)
from gpudiag.run_files import RUN_FILE, read_json, write_json
from gpudiag.selftest.catalogue import CATALOGUE, choose, plan_of
from gpudiag.selftest.judge import cost_of, exchange_of, judge, tolerance_in_words
from gpudiag.selftest.tensorflow import JOB as TENSORFLOW_JOB
from gpudiag.selftest.tensorflow import in_tensorflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.job import Framework, MemoryFormat, Precision
    from gpudiag.model.selftest import Cost
    from gpudiag.preparation import Prepared
    from gpudiag.selftest.catalogue import CatalogueEntry
    from gpudiag.worker.progress import Progress

    #: Told of each message of a training process, with the faults of its launch in order.
    Observer = Callable[[Progress, tuple[str, ...]], None]

#: What the launcher starts in each training process.
_JOB = "gpudiag.workloads.faults.job:run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A workload as the selftest trains it: so that its clean step has nothing worth a finding."""

    workload: str
    batch_size: int
    precision: Precision
    memory_format: MemoryFormat


#: Compute-heavy and large in gradients; both keep a recent GPU busier than the host that launches for it. The batch of
#: the second is so large that exchanging its gradients, of which the last 150 MB lie bare, is no finding.
GPU_TRAININGS = (
    Training(workload="resnet50", batch_size=64, precision="bf16", memory_format="nhwc"),
    Training(workload="gpt", batch_size=12, precision="bf16", memory_format="nchw"),
)
#: Much compute for 1 MB of gradients: gloo exchanges them in about a millisecond.
CPU_TRAININGS = (Training(workload="resnet20-cifar", batch_size=8, precision="fp32", memory_format="nchw"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks `gpudiag selftest` for.

    Attributes:
        output: where run directories and the result go.
        faults: names; empty for all.
        workloads: names among those trained on this device; empty for all.
        quick: fewer and shorter blocks, and one workload.
        devices: how many; None for all GPUs, or two CPU processes.
        python: interpreter of the training processes.
        timeout_s: how long a process may show no progress.
        framework: what trains.
        command: the command line, for the records.
    """

    output: Path
    faults: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    quick: bool = False
    devices: int | None = None
    python: str = sys.executable
    timeout_s: float = 300.0
    framework: Framework = "pytorch"
    command: tuple[str, ...] = ()


def selftest(asked: Asked, observer: Observer, say: Callable[[str], None]) -> Selftest:
    """Train, record, analyse and judge. What was measured is in the output directory, also after a failure.

    Args:
        asked: what to do.
        observer: called with each message of each training process.
        say: called with each thing that is done, in words.

    Raises:
        UsageError: a name that does not exist, or nothing is left to do.
        HardwareMissingError, FrameworkMissingError, WorkerFailedError: as `gpudiag profile`.
    """
    first = _prepared(asked, asked.output, p2p=True)
    device, world_size = first.plan.job.device, first.plan.world_size
    trainings = _trainings(asked, device)
    chosen, left_out = choose(
        asked.faults,
        device=device,
        world_size=world_size,
        usable_cpus=first.facts.host.usable_cpus or 1,
        peer_access=any(link.peer_access for link in first.facts.links),
    )
    if asked.framework == "tensorflow":
        chosen, left_out = in_tensorflow(chosen, left_out, asked.faults)
    if not chosen:
        raise UsageError("none of the faults asked for can be put in here", f"{left_out[0].fault}: {left_out[0].why}.")
    for training in trainings:
        for p2p in (True, False):
            entries = tuple(entry for entry in chosen if entry.p2p == p2p)
            if entries:
                what = "" if p2p else " without peer access"
                say(f"{training.workload}{what}: {', '.join(entry.name for entry in entries)}")
                _launch(asked, training, entries, observer, p2p=p2p)
    say("analysing")
    return judge_directory(asked.output, left_out=left_out)


def judge_directory(output: Path, *, left_out: tuple[LeftOut, ...] | None = None) -> Selftest:
    """Analyse all runs of an earlier selftest again, judge them, and save the result beside them.

    Args:
        output: where the selftest wrote.
        left_out: what it could not put in; as its own result says when not given.

    Raises:
        UnreadableInputError: there is none in the directory, or its files are broken.
    """
    runs = sorted(path.parent for path in output.glob(f"*/*/{ABLATION_FILE}") if (path.parent / RUN_FILE).is_file())
    ablations = [read_json(run / ABLATION_FILE, Ablation, ABLATION_SCHEMA) for run in runs]
    known = [(run, found) for run, found in zip(runs, ablations, strict=True) if found.fault.name in CATALOGUE]
    if not known:
        raise UnreadableInputError(f"{output}: holds no selftest's runs", "Give the directory that a selftest wrote.")
    order = list(CATALOGUE)
    known.sort(key=lambda one: (one[1].workload, order.index(one[1].fault.name)))
    analyses = _analyses([run for run, _ in known])
    timed = [read_json(path, Ablation, ABLATION_SCHEMA) for path in output.glob(f"*/{CLEAN_EXCHANGE}/{ABLATION_FILE}")]
    exchanges = _exchanges(ablations) | {one.workload: cost_of(one.blocks) for one in timed}
    rows = []
    software: dict[str, str] = {}
    for (run, ablation), analysis in zip(known, analyses, strict=True):
        record = read_json(run / RUN_FILE, RunRecord, RUN_SCHEMA)
        software = record.software
        expected = CATALOGUE[ablation.fault.name].expected(ablation.device, ablation.fault.ranks, ablation.world_size)
        rows.append(
            judge(
                ablation,
                expected,
                analysis,
                window_error_ms=_window_error_ms(record),
                exchange=exchanges.get(ablation.workload),
                run_dir=str(run.relative_to(output)),
            )
        )
    first = known[0][1]
    if left_out is None:
        earlier = output / SELFTEST_FILE
        left_out = read_json(earlier, Selftest, SELFTEST_SCHEMA).left_out if earlier.is_file() else ()
    result = Selftest(
        device=first.device,
        device_name=first.device_name,
        world_size=first.world_size,
        tolerance=tolerance_in_words(first.device),
        rows=tuple(rows),
        left_out=left_out,
        software=software,
    )
    write_json(output / SELFTEST_FILE, result)
    return result


def _exchanges(ablations: list[Ablation]) -> dict[str, Cost]:
    """By workload, what the clean job's exchange costs on GPUs, where no ablation of its own says so."""
    by_name = {(one.workload, one.fault.name): cost_of(one.blocks) for one in ablations if one.device == "cuda"}
    return {
        workload: exchange_of(clean, by_name[workload, "slow-exchange"])
        for (workload, name), clean in by_name.items()
        if name == "none" and (workload, "slow-exchange") in by_name
    }


def _prepared(asked: Asked, run_dir: Path, *, p2p: bool) -> Prepared:
    return preparation.prepare(
        preparation.Request(
            workload=TENSORFLOW_JOB if asked.framework == "tensorflow" else _JOB,
            framework=asked.framework,
            process_per_device=True,
            devices=asked.devices,
            p2p=p2p,
            run_dir=run_dir,
            python=asked.python,
            timeout_s=asked.timeout_s,
            command=asked.command,
        )
    )


def _trainings(asked: Asked, device: str) -> tuple[Training, ...]:
    there = GPU_TRAININGS if device == "cuda" else CPU_TRAININGS
    names = [training.workload for training in there]
    for name in asked.workloads:
        if name not in names:
            raise UsageError(f"the selftest trains no '{name}' here", f"There are: {', '.join(names)}.")
    wanted = asked.workloads or (names[:1] if asked.quick else names)
    return tuple(training for training in there if training.workload in wanted)


def _launch(
    asked: Asked, training: Training, entries: tuple[CatalogueEntry, ...], observer: Observer, *, p2p: bool
) -> None:
    directory = asked.output / (training.workload if p2p else f"{training.workload}-no-p2p")
    prepared = _prepared(asked, directory, p2p=p2p)
    device, world_size = prepared.plan.job.device, prepared.plan.world_size
    plan = SelftestPlan(
        workload=training.workload,
        device=device,
        batch_size=training.batch_size,
        precision=training.precision,
        memory_format="nhwc" if asked.framework == "tensorflow" else training.memory_format,
        faults=tuple(plan_of(entry, device=device, world_size=world_size) for entry in entries),
        # A GPU that is ours alone needs less repetition than cores that are shared.
        pairs=2 if asked.quick else 3 if device == "cuda" else 4,
        block_ms=400.0 if asked.quick else 500.0 if device == "cuda" else 600.0,
        least_steps=6 if asked.quick else 8,
        active=8,
        warm_up_s=3.0 if device == "cuda" else 2.0,
        background=(FaultPlan(name=CLEAN_EXCHANGE, kind="whole-exchange"),) if p2p and world_size > 1 else (),
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / PLAN_FILE, plan)
    names = tuple(entry.name for entry in entries)
    pipeline.train(prepared, lambda message: observer(message, names))


def _analyses(runs: list[Path]) -> list[Analysis]:
    """Analyse runs side by side, as each takes one core for seconds."""
    workers = min(len(runs), os.cpu_count() or 1, 8)
    if workers < 2:
        return [pipeline.analyze_run(run) for run in runs]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(pipeline.analyze_run, runs))


def _window_error_ms(record: RunRecord) -> float:
    return max((rank.profiled.standard_error_ms for rank in record.ranks if rank.profiled is not None), default=0.0)


def default_output() -> Path:
    """Where a selftest goes unless told."""
    return Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-selftest"
