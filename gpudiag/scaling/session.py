"""`gpudiag scale` from beginning to end: measure what is missing, then say what it means."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gpudiag import pipeline, preparation
from gpudiag.errors import (
    GpudiagError,
    HardwareMissingError,
    UnreadableInputError,
    UsageError,
    WorkerFailedError,
)
from gpudiag.model.scaling import SCALING_FILE, SCALING_SCHEMA, Machine, Remark, Scaling
from gpudiag.model.sweep import SWEEP_FILE
from gpudiag.run_files import FACTS_FILE, read_json, write_json
from gpudiag.scaling.conclude import conclude
from gpudiag.scaling.launches import Launch, next_launch, plan
from gpudiag.scaling.measured import which_gpus, with_figures
from gpudiag.scaling.points import INDEPENDENT, Case, Site, cases, halved, in_order, on_one_device
from gpudiag.scaling.store import POINTS, Store, check_machine, writing
from gpudiag.workloads.registry import workload_entry

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.facts import Facts
    from gpudiag.model.scaling import ScalePoint
    from gpudiag.preparation import Prepared
    from gpudiag.scaling.asked import Asked
    from gpudiag.worker.progress import Progress

#: The launcher's name for the sweep, as for any function of a user's own.
_JOB = "gpudiag.workloads.sweep:run"

#: Starting processes, before their first point begins: nothing is launched for less.
_START_S = 12.0

#: Called with each message of a training process and the cases of its launch.
Observer = Callable[["Progress", "Launch"], None]


@dataclass(slots=True, kw_only=True)
class _State:
    """What is measured and what is left."""

    store: Store
    first: Prepared
    machine: Machine
    points: dict[str, ScalePoint]
    timed: list[Case]
    profiled: list[Case]
    remarks: list[Remark]


def scale(asked: Asked, observer: Observer, say: Callable[[str], None]) -> Scaling | None:
    """Measure all points that are asked for and not there yet, and write `scaling.json`; None when only to measure.

    Args:
        asked: what to measure.
        observer: called with each message of each training process.
        say: called with each thing that is done, in words.

    Raises:
        UsageError: a name that does not exist, or an output directory with points of another machine.
        HardwareMissingError: more devices than there are.
        FrameworkMissingError: the interpreter cannot train.
        GpudiagError: results cannot be written; what was measured is kept.
        WorkerFailedError: not one point could be measured.
    """
    store = Store(asked.output)
    first = _prepared(asked)
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
    wanted = cases(asked, site)
    known = store.points()
    check_machine(known, machine, asked.output)
    state = _State(store=store, first=first, machine=machine, points=known, timed=[], profiled=[], remarks=[])
    for case in wanted:
        before = known.get(case.point.id)
        if case.point.status == "failed":  # it cannot be, whatever runs
            _note(state, case.point)
            continue
        missing = before is None or (before.status != "measured" and (asked.again or before.status == "not measured"))
        if missing and not _harvest(state, case):
            state.timed.append(case)
    state.profiled = [
        case for case in _to_profile(asked, wanted) if not case.by_itself and not _is_profiled(store, case.point.id)
    ]
    with writing(asked.output):
        write_json(asked.output / FACTS_FILE, facts)
    there = sum(case.point.id in known and known[case.point.id].status == "measured" for case in wanted)
    say(f"{len(wanted)} points, {there} of them there already" if there else f"{len(wanted)} points")
    _measure(asked, state, observer, say)
    if asked.measure_only:
        _check_any(state.points.values(), asked)
        return None
    say("analysing")
    return finish(asked, state.points, facts, state.remarks + _notes(store))


def finish(asked: Asked, points: dict[str, ScalePoint], facts: Facts | None, remarks: list[Remark]) -> Scaling:
    """Draw all conclusions from saved points and write them down."""
    scaling = conclude(
        asked.output,
        points,
        facts,
        remarks=remarks,
        mode=asked.mode,
        command=asked.command,
        wanted=asked.wanted,
    )
    with writing(asked.output):
        write_json(asked.output / SCALING_FILE, scaling)
    _check_any(scaling.points, asked)
    return scaling


def _check_any(points: Collection[ScalePoint], asked: Asked) -> None:
    if not any(point.status == "measured" for point in points):
        why = next((point.error for point in points if point.error), None)
        raise WorkerFailedError(f"no point could be measured{f': {why}' if why else ''}", f"See {asked.output}/points.")


def _measure(asked: Asked, state: _State, observer: Observer, say: Callable[[str], None]) -> None:
    """Launch after launch, until nothing is left or the budget is used up."""
    began_s = time.monotonic()
    number = 0
    while state.timed or state.profiled:
        left_s = None if asked.budget_s is None else asked.budget_s - (time.monotonic() - began_s)
        if left_s is not None and left_s < _START_S:
            say(f"the budget is used up: {len(state.timed)} points are left for another call")
            state.remarks.append(_budget_remark(state))
            return
        lone = next((case for case in state.timed if case.by_itself), None)
        if lone is not None and (lone is state.timed[0] or all(case.by_itself for case in state.timed)):
            say(f"measuring {lone.point.id}, in processes of its own ({len(state.timed)} left)")
            _run_by_itself(asked, state, lone, observer)
            continue
        launch = next_launch([case for case in state.timed if not case.by_itself], state.profiled)
        number += 1
        if left_s is not None:
            # Launches share what is left by the number of their points.
            of_all = len(state.timed) + len(state.profiled)
            left_s = max(5.0, left_s * len(launch.cases) / of_all - _START_S)
        _run(asked, state, launch, directory=asked.output / f"launch-{number}", left_s=left_s, observer=observer)


def _run(
    asked: Asked, state: _State, launch: Launch, *, directory: Path, left_s: float | None, observer: Observer
) -> None:
    """One launch; afterwards every case of it whose turn came is out of the queue."""
    store = state.store
    prepared = _for_launch(state.first, launch, directory)
    with writing(asked.output):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / SWEEP_FILE, plan(launch, asked, left_s))
    for case in launch.timed:
        store.clear(case.point.id)
    for case in launch.profiled:
        store.clear(case.point.id, profile=True)
    failure: GpudiagError | None = None
    try:
        pipeline.train(prepared, lambda message: observer(message, launch))
    except WorkerFailedError as error:
        failure = error
    except OSError as error:
        with writing(asked.output):
            raise error from None
    _take_in(asked, state, launch, failure)
    if failure is None:
        shutil.rmtree(directory, ignore_errors=True)


def _run_by_itself(asked: Asked, state: _State, case: Case, observer: Observer) -> None:
    """A point that cannot share its processes: timed and recorded in one run, as `gpudiag profile` does it."""
    point, job = case.point, case.job
    state.timed.remove(case)
    directory = state.store.directory(point.id)
    began_s = time.monotonic()
    try:
        prepared = preparation.prepare(
            preparation.Request(
                workload=job.workload,
                framework=job.framework,
                strategy=job.strategy,
                devices=point.devices,
                batch_size=job.batch_size,
                precision=job.precision,
                memory_format=job.memory_format if workload_entry(job.workload).images else None,
                data=job.data,
                compile=job.compile,
                p2p=job.p2p,
                run_dir=directory,
                python=asked.python,
                timeout_s=asked.timeout_s,
                command=asked.command,
            )
        )
        state.store.clear(point.id)
        pipeline.train(prepared, lambda message: observer(message, Launch(timed=(), profiled=())))
    except (WorkerFailedError, UsageError, HardwareMissingError) as error:
        _note(state, msgspec.structs.replace(point, status="failed", error=str(error)))
        if asked.halve and "memory" in str(error).lower() and point.batch_per_device > 1:
            state.timed.insert(0, halved(case))
        return
    timed = msgspec.structs.replace(point, seconds=time.monotonic() - began_s)
    _note(state, with_figures(timed, state.store.run(point.id), None, state.machine))


def _take_in(asked: Asked, state: _State, launch: Launch, failure: GpudiagError | None) -> None:
    store = state.store
    begun = 0
    for case in launch.timed:
        outcome = store.outcome(case.point.id)
        if outcome is None:
            continue
        begun += 1
        state.timed.remove(case)
        if not outcome.done and outcome.error is None:
            outcome = msgspec.structs.replace(outcome, error=str(failure) if failure else "its processes were ended")
        point = with_figures(case.point, store.run(case.point.id), outcome, state.machine)
        _note(state, point)
        memory = outcome.out_of_memory or "out of memory" in (point.error or "").lower()
        if point.status == "failed" and asked.halve and memory and point.batch_per_device > 1:
            state.timed.insert(0, halved(case))
    for case in launch.profiled:
        outcome = store.outcome(case.point.id, profile=True)
        if outcome is None:
            continue
        begun += 1
        state.profiled.remove(case)
        if not outcome.done:
            why = outcome.error or (str(failure) if failure else "its processes were ended")
            state.remarks.append(Remark(code="not-profiled", message=f"{case.point.id} was not profiled: {why}"))
    if begun == 0:
        # Nothing will be different the next time.
        if failure is not None and not any(point.status == "measured" for point in state.points.values()):
            raise failure
        why = str(failure) if failure is not None else "no time was left for it"
        state.remarks.append(Remark(code="not-measured", message=f"{len(launch.cases)} points: {why}"))
        for case in launch.timed:
            state.timed.remove(case)
        for case in launch.profiled:
            state.profiled.remove(case)


def _note(state: _State, point: ScalePoint) -> None:
    state.points[point.id] = point
    state.store.save(point)


def _harvest(state: _State, case: Case) -> bool:
    """Take a point whose job was done when an earlier call was ended before it could note that."""
    outcome = state.store.outcome(case.point.id)
    if outcome is None or not outcome.done:
        return False
    point = with_figures(case.point, state.store.run(case.point.id), outcome, state.machine)
    if point.status == "measured":
        _note(state, point)
    return point.status == "measured"


def _to_profile(asked: Asked, wanted: list[Case]) -> list[Case]:
    """Points to record: for `auto`, the largest of each curve that exchanges, and the baselines of those; for `first`,
    those of the strategy that was named first."""
    possible = [case for case in wanted if case.point.status != "failed"]
    if asked.profile == "none":
        return []
    if asked.profile == "all":
        return possible
    whole = [case for case in possible if case.point.device_indices == tuple(range(case.point.devices))]
    most = max((case.point.devices for case in whole), default=1)
    if most == 1:
        return whole[:1]
    first = [case for case in whole if case.worth[0] < 10]  # of several batches, precisions ... the first
    largest = [case for case in first if case.point.devices == most and case.point.strategy != INDEPENDENT]
    if asked.profile == "first":
        largest = [case for case in largest if case.worth[0] == 0]
    strategies = {on_one_device(case.point.strategy) for case in largest}
    ones = [case for case in first if case.point.devices == 1 and case.point.strategy in strategies]
    return in_order([*largest, *ones])


def _is_profiled(store: Store, point_id: str) -> bool:
    outcome = store.outcome(point_id, profile=True)
    return outcome is not None and outcome.done


def _command_before(asked: Asked) -> tuple[str, ...]:
    """The command that measured, where it left a result or the record of a point."""
    with contextlib.suppress(UnreadableInputError):
        return read_json(asked.output / SCALING_FILE, Scaling, SCALING_SCHEMA).command or asked.command
    store = Store(asked.output)
    runs = (store.run(point_id) for point_id in store.points())
    return next((run.command for run in runs if run is not None and run.command), asked.command)


def _notes(store: Store) -> list[Remark]:
    return [Remark(code="unreadable-point", message=note) for note in store.notes]


def _budget_remark(state: _State) -> Remark:
    names = ", ".join(case.point.id for case in (*state.timed, *state.profiled)[:5])
    count = len(state.timed) + len(state.profiled)
    return Remark(
        code="budget",
        message=f"{count} points were left out when the budget was used up ({names}{', ...' if count > 5 else ''}); "
        "the same command goes on with them",
    )


def _prepared(asked: Asked) -> Prepared:
    """The machine and the interpreter, looked at once."""
    if asked.framework not in ("torch", "tensorflow"):
        raise UsageError(f"--framework knows no '{asked.framework}'", "There are: torch, tensorflow.")
    return preparation.prepare(
        preparation.Request(
            workload=_JOB,
            framework="tensorflow" if asked.framework == "tensorflow" else "pytorch",
            run_dir=asked.output / "launch-0",
            python=asked.python,
            timeout_s=asked.timeout_s,
            command=asked.command,
        )
    )


def _for_launch(first: Prepared, launch: Launch, directory: Path) -> Prepared:
    """What a launch's processes need: the same on the same machine, in as many processes as it takes."""
    cpus = first.facts.host.usable_cpus or 1
    plan_of_first = first.plan
    return msgspec.structs.replace(
        first,
        plan=replace(
            plan_of_first,
            job=msgspec.structs.replace(plan_of_first.job, p2p=launch.p2p),
            run_dir=directory,
            processes=launch.processes,
            threads=max(1, cpus // launch.processes),
        ),
    )


def _software(prepared: Prepared) -> dict[str, str]:
    known = {
        name: version
        for name, version in (("torch", prepared.interpreter.torch), ("tensorflow", prepared.interpreter.tensorflow))
        if version and name == ("tensorflow" if prepared.plan.job.framework == "tensorflow" else "torch")
    }
    if prepared.facts.host.driver:
        known["driver"] = prepared.facts.host.driver
    return known


def conclude_again(asked: Asked) -> Scaling:
    """Conclude anew from the points in `asked.output`; trains nothing and needs no GPU.

    Raises:
        UnreadableInputError: there are none.
    """
    from gpudiag.probing.facts_file import load_facts  # noqa: PLC0415  # only here

    if not (asked.output / POINTS).is_dir():
        raise UnreadableInputError(f"{asked.output}: holds no points", "Give a directory that `gpudiag scale` wrote.")
    store = Store(asked.output)
    known = store.points()
    if not known:
        raise UnreadableInputError(f"{asked.output}: holds no points", "Give a directory that `gpudiag scale` wrote.")
    facts = asked.output / FACTS_FILE
    modes = {point.mode for point in known.values()}
    mode = asked.mode if asked.mode in modes else modes.pop()
    asked = replace(asked, mode=mode, command=_command_before(asked))
    return finish(asked, known, load_facts(facts) if facts.is_file() else None, remarks=_notes(store))
