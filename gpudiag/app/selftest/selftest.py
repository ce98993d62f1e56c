"""`gpudiag selftest`: train with faults, record the training, and judge the diagnosis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.app.analyze import analyze_run, side_by_side
from gpudiag.app.profile.prepare import Prepared, prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.selftest.catalogue import CATALOGUE, choose, fault_plan, processes_of
from gpudiag.app.selftest.entry import CatalogueEntry
from gpudiag.app.selftest.judge import (
    COMMUNICATION,
    LAUNCHING,
    ablation_cost,
    communication_cost,
    count_scores,
    judge,
    tolerance_in_words,
)
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
    FaultCost,
    FaultFailure,
    FaultPlan,
    LeftOut,
    Selftest,
    SelftestPlan,
)
from gpudiag.model.job import MemoryFormat, Precision, RunOptions
from gpudiag.model.run import RUN_SCHEMA, ParallelLayout, RunRecord
from gpudiag.model.run_directory import RUN_FILE, locked, read_json, write_json
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.jobs.faults.parallel_layouts import PARALLEL_WORKLOAD, SEQUENCES
from gpudiag.training.session.progress import Progress

#: Called with each message of a training process and the names of the faults of its launch, in order.
Observer = Callable[[Progress, tuple[str, ...]], None]


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with settings for which its clean step has no finding. `memory_format` is None for the default."""

    workload: str
    batch_size: int
    precision: Precision
    memory_format: MemoryFormat | None = None


#: The first workload has much compute, the second many gradients. Each keeps a recent GPU busy for longer than the host
#: needs to launch its work. The batch of the second workload is so large that the exposed communication of the last
#: 150 MB of gradients is negligible.
GPU_TRAININGS = (
    Training(workload="resnet50", batch_size=64, precision="bf16", memory_format="nhwc"),
    Training(workload="gpt", batch_size=12, precision="bf16"),
)
#: The workload computes much for 1 MB of gradients, which gloo exchanges in about a millisecond.
CPU_TRAININGS = (Training(workload="resnet20-cifar", batch_size=8, precision="fp32"),)


class SelftestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudiag selftest`.

    Attributes:
        run: options of every launch.
        output: directory of the runs and the result.
        faults, jobs: names of catalogue entries; if both are empty, all.
        workloads: names; empty for all that are trained on this device.
        quick: fewer and shorter blocks, and one workload.
    """

    run: RunOptions
    output: Path
    faults: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    quick: bool = False


def selftest(request: SelftestRequest, observer: Observer, say: Callable[[str], None]) -> Selftest:
    """Train, record, analyse and judge. The output directory keeps all measurements, also after a failure.

    `say` is called with each action in words.
    """
    first = _prepared(request, request.output, p2p=True)
    device, world_size = first.plan.job.device, first.plan.world_size
    trainings = _trainings(request, device)
    runnable, left_out = choose(
        (*request.faults, *request.jobs),
        device=device,
        world_size=world_size,
        usable_cpus=first.facts.host.usable_cpus or 1,
        peer_access=any(link.peer_access for link in first.facts.links),
        framework=framework_named(request.run.framework),
        workloads=tuple(training.workload for training in trainings),
        quick=request.quick,
    )
    if not runnable:
        raise UsageError("none of the requested faults can run here", f"{left_out[0].fault}: {left_out[0].why}.")
    request.output.mkdir(parents=True, exist_ok=True)
    with locked(request.output):
        for training in trainings:
            for p2p in (True, False):
                entries = tuple(
                    entry
                    for entry in runnable
                    if entry.p2p == p2p and entry.fits(training.workload) and not entry.divided
                )
                if entries:
                    suffix = "" if p2p else " without peer access"
                    say(f"{training.workload}{suffix}: {', '.join(entry.name for entry in entries)}")
                    _launch(request, training, entries, observer, p2p=p2p)
        divided = tuple(entry for entry in runnable if entry.divided)
        if divided:
            say(f"{PARALLEL_WORKLOAD}: {', '.join(entry.name for entry in divided)}")
            _launch_divided(request, divided, observer, device=device, world_size=world_size)
        say("analysing")
        return judge_directory(request.output, left_out=left_out)


def judge_directory(output: Path, *, left_out: tuple[LeftOut, ...] | None = None) -> Selftest:
    """Analyse all runs of an earlier selftest again, judge them, and save the result in its directory.

    Args:
        output: the directory of the selftest.
        left_out: the faults that could not run; None for the faults that the earlier result lists.
    """
    # The clean job's own costs are in directories without run.json, because they were not recorded.
    runs = sorted(path.parent for path in output.glob(f"*/*/{ABLATION_FILE}") if (path.parent / RUN_FILE).is_file())
    ablations = [read_json(run / ABLATION_FILE, Ablation, ABLATION_SCHEMA) for run in runs]
    judged = [
        (run, ablation) for run, ablation in zip(runs, ablations, strict=True) if ablation.fault.name in CATALOGUE
    ]
    if not judged:
        raise UnreadableInputError(f"{output}: holds no runs of a selftest", "Give the directory of a selftest.")
    order = list(CATALOGUE)  # rows are sorted by workload, divided jobs last, and then as in the catalogue
    judged.sort(
        key=lambda pair: (
            pair[1].workload == PARALLEL_WORKLOAD,
            pair[1].workload,
            order.index(pair[1].fault.name),
        )
    )
    analyses = side_by_side(analyze_run, [run for run, _ in judged])
    records = [read_json(run / RUN_FILE, RunRecord, RUN_SCHEMA) for run, _ in judged]
    clean_losses = _clean_losses(output, ablations)
    rows = []
    for (run, ablation), analysis, record in zip(judged, analyses, records, strict=True):
        entry = CATALOGUE[ablation.fault.name]
        rows.append(
            judge(
                ablation,
                entry.expected(ablation.device, ablation.fault.ranks, ablation.world_size),
                analysis,
                window_error_ms=_window_error_ms(record),
                clean_losses=_losses(ablation) if entry.job else clean_losses.get(ablation.workload, {}),
                run_dir=str(run.relative_to(output)),
            )
        )
    first = judged[0][1]
    result = Selftest(
        device=first.device,
        device_name=first.device_name,
        world_size=first.world_size,
        tolerance=tolerance_in_words(first.device),
        rows=tuple(rows),
        left_out=(*(_left_out_before(output) if left_out is None else left_out), *_failures(output)),
        scores=count_scores(rows),
        software=records[-1].software,
    )
    write_json(output / SELFTEST_FILE, result)
    return result


def _left_out_before(output: Path) -> tuple[LeftOut, ...]:
    """Return the faults that the earlier result lists as not runnable here."""
    path = output / SELFTEST_FILE
    earlier = read_json(path, Selftest, SELFTEST_SCHEMA).left_out if path.is_file() else ()
    return tuple(fault for fault in earlier if not fault.failed)


def _failures(output: Path) -> tuple[LeftOut, ...]:
    failures = [read_json(path, FaultFailure, FAILURE_SCHEMA) for path in sorted(output.glob(f"*/*/{FAILURE_FILE}"))]
    return tuple(LeftOut(fault=failure.fault, why=failure.why, failed=True) for failure in failures)


def _losses(job: Ablation) -> dict[str, FaultCost]:
    """Return the cost of a whole job's communication and launch overhead, by finding code."""
    launching = {LAUNCHING: ablation_cost(job.held)} if job.held else {}
    return {COMMUNICATION: ablation_cost(job.blocks)} | launching


def _clean_losses(output: Path, ablations: list[Ablation]) -> dict[str, dict[str, FaultCost]]:
    """Return the costs of the clean job's communication and launch overhead, by workload and finding code.

    Launch overhead is measured in two ways: against steps in which the device begins when all ops are launched, and
    against a CUDA graph. The larger cost counts.
    """
    losses = _losses_of_faults(ablations)
    for path in output.glob(f"*/{CLEAN_COMMUNICATION}/{ABLATION_FILE}"):
        background = read_json(path, Ablation, ABLATION_SCHEMA)
        losses[background.workload] = _losses(background)
    for workload, against_graph in _launch_overhead_against_graph(ablations).items():
        with_held_ops = losses.get(workload, {}).get(LAUNCHING)
        if with_held_ops is None or with_held_ops.ms < against_graph.ms:
            losses[workload] = {**losses.get(workload, {}), LAUNCHING: against_graph}
    return losses


def _gpu_costs(ablations: list[Ablation]) -> dict[tuple[str, str], FaultCost]:
    """Return the cost of each fault on GPUs, by workload and name of the fault."""
    return {
        (ablation.workload, ablation.fault.name): ablation_cost(ablation.blocks)
        for ablation in ablations
        if ablation.device == "cuda"
    }


def _losses_of_faults(ablations: list[Ablation]) -> dict[str, dict[str, FaultCost]]:
    """Return the cost of communication by workload, for older recordings, which did not measure it separately.

    The cost is computed from the blocks of the faults `none` and `slow-exchange`.
    """
    costs = _gpu_costs(ablations)
    return {
        workload: {COMMUNICATION: communication_cost(clean, costs[workload, "slow-exchange"])}
        for (workload, name), clean in costs.items()
        if name == "none" and (workload, "slow-exchange") in costs
    }


def _launch_overhead_against_graph(ablations: list[Ablation]) -> dict[str, FaultCost]:
    """Return, by workload, the launch overhead of the clean job: its step time minus its step time as a CUDA graph.

    In steps whose ops are held back until all are launched, only a part of this overhead is visible, because a launch
    queue has only a thousand places. A graph launches all ops of a step at once. `faulty_ms` of the job `cuda-graph` is
    the step time as a graph, and `faulty_ms` of the fault `none` is the step time of the clean job.
    """
    costs = _gpu_costs(ablations)
    losses = {}
    for (workload, name), graph in costs.items():
        clean = costs.get((workload, "none"))
        if name == "cuda-graph" and clean is not None:
            losses[workload] = FaultCost(
                clean_ms=graph.faulty_ms,
                faulty_ms=clean.faulty_ms,
                ms=clean.faulty_ms - graph.faulty_ms,
                standard_error_ms=math.hypot(clean.standard_error_ms, graph.standard_error_ms),
            )
    return losses


def _prepared(request: SelftestRequest, run_dir: Path, *, p2p: bool) -> Prepared:
    return prepare_program(msgspec.structs.replace(request.run, p2p=p2p, output=str(run_dir)))


def _trainings(request: SelftestRequest, device: str) -> tuple[Training, ...]:
    """Return the requested trainings; without a request, all that this device can run, or one if `quick`."""
    available = GPU_TRAININGS if device == "cuda" else CPU_TRAININGS
    names = [training.workload for training in available]
    for name in request.workloads:
        if name not in names:
            raise UsageError(f"the selftest trains no '{name}' here", there_are(name, names))
    wanted = request.workloads or (names[:1] if request.quick else names)
    return tuple(training for training in available if training.workload in wanted)


def _launch(
    request: SelftestRequest, training: Training, entries: tuple[CatalogueEntry, ...], observer: Observer, *, p2p: bool
) -> None:
    """Train a workload with each of the faults in one launch, and write the results below the output directory."""
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
            fault_plan(entry, device=device, world_size=world_size, framework=request.run.framework)
            for entry in entries
        ),
        # Several pairs are needed, because step times drift: ResNet-50's by a fifth within a minute on idle GPUs.
        pairs=2 if request.quick else 4,
        block_ms=400.0 if request.quick or device == "cuda" else 600.0,
        least_steps=6 if request.quick else 8,
        active=8,
        warm_up_s=3.0 if device == "cuda" else 2.0,
        # The clean job's own costs: communication if there are several ranks, launch overhead on GPUs. They are
        # measured once per workload, in the launch with peer access.
        background=(FaultPlan(name=CLEAN_COMMUNICATION, kind="whole-exchange", job=True),)
        if p2p and (world_size > 1 or device == "cuda") and training.workload != PARALLEL_WORKLOAD
        else (),
    )
    names = tuple(entry.name for entry in entries)
    train(prepared, lambda message: observer(message, names), plan)


def _launch_divided(
    request: SelftestRequest, entries: tuple[CatalogueEntry, ...], observer: Observer, *, device: str, world_size: int
) -> None:
    """Train divided jobs. On CPUs there may be more processes than cores, which only `parallel` permits."""
    processes = processes_of(entries[0], device=device, world_size=world_size)
    run = msgspec.structs.replace(request.run, devices=processes, parallel=ParallelLayout(dp=processes))
    training = Training(workload=PARALLEL_WORKLOAD, batch_size=SEQUENCES, precision="fp32")
    _launch(msgspec.structs.replace(request, run=run), training, entries, observer, p2p=True)


def _window_error_ms(record: RunRecord) -> float:
    """Return the standard error of the mean recorded step, on the rank where it is largest."""
    return max((rank.profiled.standard_error_ms for rank in record.ranks if rank.profiled is not None), default=0.0)


def default_output() -> Path:
    """Return the default of `--output`, named after the current time."""
    return Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-selftest"
