"""Train with faults, record, analyse, judge: from what is request to the finished table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.app.analyze import analyze_run, side_by_side
from gpudiag.app.profile.prepare import Prepared, prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.selftest.catalogue import CATALOGUE, choose, plan_of
from gpudiag.app.selftest.entry import CatalogueEntry
from gpudiag.app.selftest.judge import COMMUNICATION, LAUNCHING, communication_of, cost_of, judge, tolerance_in_words
from gpudiag.app.selftest.score import scores_of
from gpudiag.errors import UnreadableInputError, UsageError, there_are
from gpudiag.model.benchmarks.selftest import (
    ABLATION_FILE,
    ABLATION_SCHEMA,
    CLEAN_COMMUNICATION,
    FAILURE_FILE,
    FAILURE_SCHEMA,
    SELFTEST_FILE,
    SELFTEST_SCHEMA,
    Ablation,
    Cost,
    Failure,
    FaultPlan,
    LeftOut,
    Selftest,
    SelftestPlan,
)
from gpudiag.model.job import MemoryFormat, Precision, RunOptions
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import RUN_FILE, locked, read_json, write_json
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.session.progress import Progress

#: Told of each message of a training process, with the faults of its launch in order.
Observer = Callable[[Progress, tuple[str, ...]], None]


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as the selftest trains it: so that its clean step has nothing worth a finding.

    The memory format is None where the framework's own will do.
    """

    workload: str
    batch_size: int
    precision: Precision
    memory_format: MemoryFormat | None = None


#: Compute-heavy and large in gradients; both keep a recent GPU busier than the host that launches for it. The batch of
#: the second is so large that exchanging its gradients, of which the last 150 MB lie bare, is no finding.
GPU_TRAININGS = (
    Training(workload="resnet50", batch_size=64, precision="bf16", memory_format="nhwc"),
    Training(workload="gpt", batch_size=12, precision="bf16"),
)
#: Much compute for 1 MB of gradients: gloo exchanges them in about a millisecond.
CPU_TRAININGS = (Training(workload="resnet20-cifar", batch_size=8, precision="fp32"),)


class SelftestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks `gpudiag selftest` for.

    Attributes:
        run: what holds for every launch.
        output: where run directories and the result go.
        faults, jobs: names, of jobs those that are well built; none of either for all.
        workloads: names among those trained on this device; empty for all.
        quick: fewer and shorter blocks, and one workload.
    """

    run: RunOptions
    output: Path
    faults: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    quick: bool = False


def selftest(request: SelftestRequest, observer: Observer, say: Callable[[str], None]) -> Selftest:
    """Train, record, analyse and judge. What was measured is in the output directory, also after a failure.

    Args:
        request: what to do.
        observer: called with each message of each training process.
        say: called with each thing that is done, in words.

    Raises:
        UsageError: a name that does not exist, or nothing is left to do.
        HardwareMissingError, FrameworkMissingError, WorkerFailedError: as `gpudiag profile`.
    """
    first = _prepared(request, request.output, p2p=True)
    device, world_size = first.plan.job.device, first.plan.world_size
    trainings = _trainings(request, device)
    chosen, left_out = choose(
        (*request.faults, *request.jobs),
        device=device,
        world_size=world_size,
        usable_cpus=first.facts.host.usable_cpus or 1,
        peer_access=any(link.peer_access for link in first.facts.links),
        framework=framework_named(request.run.framework),
        workloads=tuple(training.workload for training in trainings),
        quick=request.quick,
    )
    if not chosen:
        raise UsageError("none of the faults asked for can be put in here", f"{left_out[0].fault}: {left_out[0].why}.")
    request.output.mkdir(parents=True, exist_ok=True)
    with locked(request.output):
        for training in trainings:
            for p2p in (True, False):
                entries = tuple(entry for entry in chosen if entry.p2p == p2p and entry.fits(training.workload))
                if entries:
                    what = "" if p2p else " without peer access"
                    say(f"{training.workload}{what}: {', '.join(entry.name for entry in entries)}")
                    _launch(request, training, entries, observer, p2p=p2p)
        say("analysing")
        return judge_directory(request.output, left_out=left_out)


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
    analyses = side_by_side(analyze_run, [run for run, _ in known])
    clean = _clean_losses(ablations)
    for path in output.glob(f"*/{CLEAN_COMMUNICATION}/{ABLATION_FILE}"):
        timed = read_json(path, Ablation, ABLATION_SCHEMA)
        clean[timed.workload] = _losses(timed)
    for workload, launching in _beside_a_graph(ablations).items():
        held = clean.get(workload, {}).get(LAUNCHING)
        if held is None or held.ms < launching.ms:
            clean[workload] = {**clean.get(workload, {}), LAUNCHING: launching}
    rows = []
    software: dict[str, str] = {}
    for (run, ablation), analysis in zip(known, analyses, strict=True):
        record = read_json(run / RUN_FILE, RunRecord, RUN_SCHEMA)
        software = record.software
        entry = CATALOGUE[ablation.fault.name]
        rows.append(
            judge(
                ablation,
                entry.expected(ablation.device, ablation.fault.ranks, ablation.world_size),
                analysis,
                window_error_ms=_window_error_ms(record),
                own=_losses(ablation) if entry.job else clean.get(ablation.workload, {}),
                run_dir=str(run.relative_to(output)),
            )
        )
    first = known[0][1]
    if left_out is None:
        earlier = output / SELFTEST_FILE
        left_out = read_json(earlier, Selftest, SELFTEST_SCHEMA).left_out if earlier.is_file() else ()
        left_out = tuple(one for one in left_out if not one.failed)
    failures = [read_json(path, Failure, FAILURE_SCHEMA) for path in sorted(output.glob(f"*/*/{FAILURE_FILE}"))]
    result = Selftest(
        device=first.device,
        device_name=first.device_name,
        world_size=first.world_size,
        tolerance=tolerance_in_words(first.device),
        rows=tuple(rows),
        left_out=(*left_out, *(LeftOut(fault=one.fault, why=one.why, failed=True) for one in failures)),
        scores=scores_of(rows),
        software=software,
    )
    write_json(output / SELFTEST_FILE, result)
    return result


def _losses(job: Ablation) -> dict[str, Cost]:
    """What a whole job loses to its own exchange and launching, by the finding that would say so."""
    launching = {LAUNCHING: cost_of(job.held)} if job.held else {}
    return {COMMUNICATION: cost_of(job.blocks)} | launching


def _clean_losses(ablations: list[Ablation]) -> dict[str, dict[str, Cost]]:
    """By workload, what the clean job's exchange costs on GPUs, where no ablation of its own says so."""
    by_name = {(one.workload, one.fault.name): cost_of(one.blocks) for one in ablations if one.device == "cuda"}
    return {
        workload: {COMMUNICATION: communication_of(clean, by_name[workload, "slow-exchange"])}
        for (workload, name), clean in by_name.items()
        if name == "none" and (workload, "slow-exchange") in by_name
    }


def _beside_a_graph(ablations: list[Ablation]) -> dict[str, Cost]:
    """By workload, what launching costs the clean job beside the same job as a CUDA graph.

    Of work queued beforehand a device's queue holds a thousand ops; a graph holds all of a step.
    """
    by_name = {(one.workload, one.fault.name): cost_of(one.blocks) for one in ablations if one.device == "cuda"}
    found = {}
    for (workload, name), graph in by_name.items():
        clean = by_name.get((workload, "none"))
        if name == "cuda-graph" and clean is not None:
            found[workload] = Cost(
                clean_ms=graph.faulty_ms,
                faulty_ms=clean.faulty_ms,
                ms=clean.faulty_ms - graph.faulty_ms,
                standard_error_ms=math.hypot(clean.standard_error_ms, graph.standard_error_ms),
            )
    return found


def _prepared(request: SelftestRequest, run_dir: Path, *, p2p: bool) -> Prepared:
    return prepare_program(msgspec.structs.replace(request.run, p2p=p2p, output=str(run_dir)))


def _trainings(request: SelftestRequest, device: str) -> tuple[Training, ...]:
    there = GPU_TRAININGS if device == "cuda" else CPU_TRAININGS
    names = [training.workload for training in there]
    for name in request.workloads:
        if name not in names:
            raise UsageError(f"the selftest trains no '{name}' here", there_are(name, names))
    wanted = request.workloads or (names[:1] if request.quick else names)
    return tuple(training for training in there if training.workload in wanted)


def _launch(
    request: SelftestRequest, training: Training, entries: tuple[CatalogueEntry, ...], observer: Observer, *, p2p: bool
) -> None:
    directory = request.output / (training.workload if p2p else f"{training.workload}-no-p2p")
    prepared = _prepared(request, directory, p2p=p2p)
    device, world_size = prepared.plan.job.device, prepared.plan.world_size
    plan = SelftestPlan(
        workload=training.workload,
        device=device,
        batch_size=training.batch_size,
        precision=training.precision,
        memory_format=training.memory_format or framework_named(request.run.framework).memory_format,
        faults=tuple(
            plan_of(entry, device=device, world_size=world_size, framework=request.run.framework) for entry in entries
        ),
        # GPUs may be ours alone, and their hosts drift all the same: by a fifth of ResNet-50's step within a minute.
        pairs=2 if request.quick else 4,
        block_ms=400.0 if request.quick or device == "cuda" else 600.0,
        least_steps=6 if request.quick else 8,
        active=8,
        warm_up_s=3.0 if device == "cuda" else 2.0,
        background=(FaultPlan(name=CLEAN_COMMUNICATION, kind="whole-exchange", job=True),)
        if p2p and (world_size > 1 or device == "cuda")
        else (),
    )
    names = tuple(entry.name for entry in entries)
    train(prepared, lambda message: observer(message, names), plan)


def _window_error_ms(record: RunRecord) -> float:
    return max((rank.profiled.standard_error_ms for rank in record.ranks if rank.profiled is not None), default=0.0)


def default_output() -> Path:
    """Where a selftest goes unless told."""
    return Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-selftest"
