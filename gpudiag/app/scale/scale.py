"""`gpudiag scale` from beginning to end: measure what is missing, then say what it means."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

import gpudiag
from gpudiag.analysis.scaling.conclude import conclude
from gpudiag.analysis.scaling.measured import which_gpus, with_figures
from gpudiag.app.profile.prepare import Prepared, prepare, prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.report import write_scaling
from gpudiag.app.scale.launches import Launch, next_launch, plan
from gpudiag.app.scale.points import NEED_PEERS, Point, Site, all_points, halved, to_profile
from gpudiag.app.scale.recordings import analysed
from gpudiag.app.scale.starts import started_again, with_start
from gpudiag.app.scale.store import POINTS, Store, check_machine, writing
from gpudiag.errors import (
    GpudiagError,
    HardwareMissingError,
    UnreadableInputError,
    UsageError,
    WorkerFailedError,
)
from gpudiag.machine.facts_file import load_facts
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.benchmarks.scaling import SCALING_FILE, Machine, PointRecord, Remark, Scaling
from gpudiag.model.facts import Facts
from gpudiag.model.run_directory import FACTS_FILE, below, locked, write_json
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.models.registry import workload_entry
from gpudiag.training.session.progress import Progress

#: Starting processes, before their first point begins: nothing is launched for less.
_START_S = 12.0

#: Called with each message of a training process and the points of its launch.
Observer = Callable[["Progress", "Launch"], None]


class _State(msgspec.Struct, kw_only=True):
    """What is measured and what is left."""

    store: Store
    first: Prepared
    machine: Machine
    points: dict[str, PointRecord]
    timed: list[Point]
    profiled: list[Point]
    remarks: list[Remark]
    wanted: dict[str, Point]
    tried: set[str]


def scale(request: ScaleRequest, observer: Observer, say: Callable[[str], None]) -> Scaling | None:
    """Measure all points that are asked for and not there yet, and write `scaling.json`; None when only to measure.

    Args:
        request: what to measure.
        observer: called with each message of each training process.
        say: called with each thing that is done, in words.

    Raises:
        UsageError: a name that does not exist, or an output directory with points of another machine.
        HardwareMissingError: more devices than there are.
        FrameworkMissingError: the interpreter cannot train.
        GpudiagError: results cannot be written; what was measured is kept.
        WorkerFailedError: not one point could be measured.
    """
    store = Store(request.output)
    with locked(request.output):
        return _scale(store, request, observer, say)


def _scale(store: Store, request: ScaleRequest, observer: Observer, say: Callable[[str], None]) -> Scaling | None:
    first = _prepared(request)
    facts = first.facts
    gpus = tuple(gpu.name for gpu in facts.gpus if gpu.visible)
    site = Site(gpus=len(gpus), cpus=facts.host.usable_cpus or 1)
    machine = Machine(
        host=facts.host.name,
        cpu=facts.host.cpu,
        usable_cpus=facts.host.usable_cpus,
        gpus=gpus,
        which=which_gpus(facts),
        software=_software(first),
    )
    wanted = all_points(request, site)
    known = store.points()
    check_machine(known, machine, request.output)
    state = _State(
        store=store,
        first=first,
        machine=machine,
        points=known,
        timed=[],
        profiled=[],
        remarks=[],
        wanted={},
        tried=set(),
    )
    for point in wanted:
        before = known.get(point.record.id)
        if point.record.status == "failed":  # it cannot be, whatever runs
            _note(state, point.record)
            continue
        missing = before is None or (before.status != "measured" and (request.again or before.status == "not measured"))
        state.wanted[point.record.id] = point
        if missing and not _harvest(state, point):
            state.timed.append(point)
    state.profiled = [
        point
        for point in to_profile(request, wanted)
        if not point.by_itself and not _is_profiled(store, point.record.id)
    ]
    with writing(request.output):
        write_json(request.output / FACTS_FILE, facts)
    there = sum(point.record.id in known and known[point.record.id].status == "measured" for point in wanted)
    say(f"{len(wanted)} points, {there} of them there already" if there else f"{len(wanted)} points")
    _measure(request, state, observer, say)
    if request.measure_only:
        _check_any(state.points.values(), request)
        return None
    say("analysing")
    return finish(request, state.points, facts, state.remarks + _notes(store))


def finish(
    request: ScaleRequest, points: dict[str, PointRecord], facts: Facts | None, remarks: list[Remark]
) -> Scaling:
    """Draw all conclusions from saved points and write them down."""
    recorded, problems = analysed(request.output, [point for point in points.values() if point.mode == request.mode])
    scaling = conclude(
        points.values(),
        recorded,
        facts,
        remarks=[*remarks, *problems],
        mode=request.mode,
        command=request.run.command,
        version=gpudiag.__version__,
        wanted=request.wanted,
        need_peers=NEED_PEERS,
    )
    with writing(request.output):
        write_json(request.output / SCALING_FILE, scaling)
    _check_any(scaling.points, request)
    write_scaling(scaling, request.output)
    return scaling


def _check_any(points: Collection[PointRecord], request: ScaleRequest) -> None:
    if not any(record.status == "measured" for record in points):
        why = next((record.error for record in points if record.error), None)
        raise WorkerFailedError(
            f"no point could be measured{f': {why}' if why else ''}", f"See {request.output}/points."
        )


def _measure(request: ScaleRequest, state: _State, observer: Observer, say: Callable[[str], None]) -> None:
    """Launch after launch, until nothing is left or the budget is used up."""
    began_s = time.monotonic()
    number = 0
    while state.timed or state.profiled or _start_again(request, state):
        left_s = None if request.budget_s is None else request.budget_s - (time.monotonic() - began_s)
        if left_s is not None and left_s < _START_S:
            say(f"the budget is used up: {len(state.timed)} points are left for another call")
            state.remarks.append(_budget_remark(state))
            return
        lone = next((point for point in state.timed if point.by_itself), None)
        if lone is not None and (lone is state.timed[0] or all(point.by_itself for point in state.timed)):
            say(f"measuring {lone.record.id}, in processes of its own ({len(state.timed)} left)")
            _run_by_itself(request, state, lone, observer)
            continue
        launch = next_launch([point for point in state.timed if not point.by_itself], state.profiled)
        number += 1
        if left_s is not None:
            # Launches share what is left by the number of their points.
            of_all = len(state.timed) + len(state.profiled)
            left_s = max(5.0, left_s * len(launch.points) / of_all - _START_S)
        _run(
            request,
            state,
            launch,
            directory=below(request.output, f"launch-{number}"),
            left_s=left_s,
            observer=observer,
        )


def _start_again(request: ScaleRequest, state: _State) -> bool:
    state.timed = started_again(request, state.wanted, state.points, state.tried)
    state.tried.update(point.directory for point in state.timed)
    return bool(state.timed)


def _run(
    request: ScaleRequest, state: _State, launch: Launch, *, directory: Path, left_s: float | None, observer: Observer
) -> None:
    """One launch; afterwards every point of it whose turn came is out of the queue."""
    store = state.store
    prepared = _for_launch(state.first, launch, directory)
    with writing(request.output):
        directory.mkdir(parents=True, exist_ok=True)
    for point in launch.timed:
        store.clear(point.record.id, start=point.start)
    for point in launch.profiled:
        store.clear(point.record.id, profile=True)
    failure: GpudiagError | None = None
    try:
        train(prepared, lambda message: observer(message, launch), plan(launch, request, left_s))
    except WorkerFailedError as error:
        failure = error
    except OSError as error:
        with writing(request.output):
            raise error from None
    _take_in(request, state, launch, failure)
    if failure is None:
        shutil.rmtree(directory, ignore_errors=True)


def _run_by_itself(request: ScaleRequest, state: _State, point: Point, observer: Observer) -> None:
    """A point that cannot share its processes: timed and recorded in one run, as `gpudiag profile` does it."""
    record, job = point.record, point.job
    state.timed.remove(point)
    directory = state.store.directory(record.id, start=point.start)
    began_s = time.monotonic()
    try:
        prepared = prepare(
            msgspec.structs.replace(
                job,
                devices=record.devices,
                memory_format=job.memory_format if workload_entry(job.workload).images else None,
                model=None,
                output=str(directory),
            )
        )
        state.store.clear(record.id, start=point.start)
        train(prepared, lambda message: observer(message, Launch(timed=(), profiled=())))
    except (WorkerFailedError, UsageError, HardwareMissingError) as error:
        _note_start(state, point, msgspec.structs.replace(record, status="failed", error=str(error)))
        if request.halve and point.start == 1 and "memory" in str(error).lower() and record.batch_per_device > 1:
            _halve(state, point)
        return
    timed = msgspec.structs.replace(record, seconds=time.monotonic() - began_s)
    run = state.store.run(record.id, start=point.start)
    volume = state.store.volume(record.id, start=point.start)
    _note_start(state, point, with_figures(timed, run, None, state.machine, volume))


def _take_in(request: ScaleRequest, state: _State, launch: Launch, failure: GpudiagError | None) -> None:
    store = state.store
    begun = 0
    for point in launch.timed:
        outcome = store.outcome(point.record.id, start=point.start)
        if outcome is None:
            continue
        begun += 1
        state.timed.remove(point)
        if not outcome.done and outcome.error is None:
            outcome = msgspec.structs.replace(outcome, error=str(failure) if failure else "its processes were ended")
        run = store.run(point.record.id, start=point.start)
        volume = store.volume(point.record.id, start=point.start)
        record = with_figures(point.record, run, outcome, state.machine, volume)
        _note_start(state, point, record)
        memory = outcome.out_of_memory or "out of memory" in (record.error or "").lower()
        first = record.status == "failed" and point.start == 1
        if first and request.halve and memory and record.batch_per_device > 1:
            _halve(state, point)
    for point in launch.profiled:
        outcome = store.outcome(point.record.id, profile=True)
        if outcome is None:
            continue
        begun += 1
        state.profiled.remove(point)
        if not outcome.done:
            why = outcome.error or (str(failure) if failure else "its processes were ended")
            state.remarks.append(Remark(code="not-profiled", message=f"{point.record.id} was not profiled: {why}"))
    if begun == 0:
        # Nothing will be different the next time.
        if failure is not None and not any(record.status == "measured" for record in state.points.values()):
            raise failure
        why = str(failure) if failure is not None else "no time was left for it"
        state.remarks.append(Remark(code="not-measured", message=f"{len(launch.points)} points: {why}"))
        for point in launch.timed:
            state.timed.remove(point)
        for point in launch.profiled:
            state.profiled.remove(point)


def _halve(state: _State, point: Point) -> None:
    smaller = halved(point)
    state.wanted[smaller.record.id] = smaller
    state.timed.insert(0, smaller)


def _note_start(state: _State, point: Point, record: PointRecord) -> None:
    """Note a point after another start, or what became of that."""
    known, remark = with_start(point, state.points, record)
    if remark is not None:
        state.remarks.append(remark)
    _note(state, known)


def _note(state: _State, record: PointRecord) -> None:
    state.points[record.id] = record
    state.store.save(record)


def _harvest(state: _State, point: Point) -> bool:
    """Take a point whose job was done when an earlier call was ended before it could note that."""
    outcome = state.store.outcome(point.record.id)
    if outcome is None or not outcome.done:
        return False
    run, volume = state.store.run(point.record.id), state.store.volume(point.record.id)
    record = with_figures(point.record, run, outcome, state.machine, volume)
    if record.status == "measured":
        _note(state, record)
    return record.status == "measured"


def _is_profiled(store: Store, point_id: str) -> bool:
    outcome = store.outcome(point_id, profile=True)
    return outcome is not None and outcome.done


def _notes(store: Store) -> list[Remark]:
    return [Remark(code="unreadable-point", message=note) for note in store.notes]


def _budget_remark(state: _State) -> Remark:
    names = ", ".join(point.record.id for point in (*state.timed, *state.profiled)[:5])
    count = len(state.timed) + len(state.profiled)
    return Remark(
        code="budget",
        message=f"{count} points were left out when the budget was used up ({names}{', ...' if count > 5 else ''}); "
        "the same command goes on with them",
    )


def _prepared(request: ScaleRequest) -> Prepared:
    """The machine and the interpreter, looked at once."""
    run = msgspec.structs.replace(request.run, output=str(request.output / "launch-0"))
    return prepare_program(run)


def _for_launch(first: Prepared, launch: Launch, directory: Path) -> Prepared:
    """What a launch's processes need: the same on the same machine, in as many processes as it takes."""
    cpus = first.facts.host.usable_cpus or 1
    plan_of_first = first.plan
    return msgspec.structs.replace(
        first,
        plan=msgspec.structs.replace(
            plan_of_first,
            job=msgspec.structs.replace(plan_of_first.job, p2p=launch.p2p),
            run_dir=directory,
            processes=launch.processes,
            threads=max(1, cpus // launch.processes),
        ),
    )


def _software(prepared: Prepared) -> dict[str, str]:
    known = {framework_named(prepared.plan.job.framework).package: prepared.interpreter.framework}
    if prepared.facts.host.driver:
        known["driver"] = prepared.facts.host.driver
    return known


def conclude_again(request: ScaleRequest) -> Scaling:
    """Conclude anew from the points in `request.output`; trains nothing and needs no GPU.

    Raises:
        UnreadableInputError: there are none.
    """
    if not (request.output / POINTS).is_dir():
        raise UnreadableInputError(f"{request.output}: holds no points", "Give a directory that `gpudiag scale` wrote.")
    store = Store(request.output, reading=True)
    known = store.points()
    if not known:
        raise UnreadableInputError(f"{request.output}: holds no points", "Give a directory that `gpudiag scale` wrote.")
    facts = request.output / FACTS_FILE
    modes = {record.mode for record in known.values()}
    mode = request.mode if request.mode in modes else modes.pop()
    run = msgspec.structs.replace(request.run, command=store.command(request.run.command))
    request = msgspec.structs.replace(request, mode=mode, run=run)
    return finish(request, known, load_facts(facts) if facts.is_file() else None, remarks=_notes(store))
