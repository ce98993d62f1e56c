"""`gpudiag scale`: measure the missing points, then draw conclusions."""

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
from gpudiag.app.scale.launches import Launch, next_launch, plan, started_again, with_start
from gpudiag.app.scale.points import NEED_PEERS, Point, Site, all_points, halved, to_profile
from gpudiag.app.scale.recordings import analysed
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

#: Time in seconds to start processes. If less of the budget is left, nothing is launched.
_START_S = 12.0
#: Shortest time in seconds that a launch gets for its points.
_SHORTEST_S = 5.0

#: Called with each message of a training process, and the launch of this process (without points for a point that is
#: trained in its own processes).
Observer = Callable[["Progress", "Launch"], None]


def scale(request: ScaleRequest, observer: Observer, say: Callable[[str], None]) -> Scaling | None:
    """Measure the requested points that are missing, draw conclusions, and write `scaling.json`.

    With `measure_only`, draw no conclusions and return None. `say` is called with each action in words.
    """
    store = Store(request.output)
    with locked(request.output):
        # The launch has no training options, because the plan of each launch contains the trainings.
        run = msgspec.structs.replace(request.run, output=str(request.output / "launch-0"))
        benchmark = _ScalingBenchmark(request, store, prepare_program(run), observer, say)
        benchmark.measure()
        if request.measure_only:
            _check_any(benchmark.points.values(), request)
            return None
        say("analysing")
        return _conclude(request, benchmark.points, benchmark.facts, benchmark.remarks + _unreadable_points(store))


def conclude_again(request: ScaleRequest) -> Scaling:
    """Draw conclusions from the points in `request.output`, without training. This needs no GPU."""
    store = Store(request.output, reading=True) if (request.output / POINTS).is_dir() else None
    points = store.points() if store is not None else {}
    if store is None or not points:
        raise UnreadableInputError(f"{request.output}: holds no points", "Give a directory that `gpudiag scale` wrote.")
    facts = request.output / FACTS_FILE
    modes = {record.mode for record in points.values()}
    mode = request.mode if request.mode in modes else modes.pop()  # weak or strong, usually the same for all points
    run = msgspec.structs.replace(request.run, command=store.command(request.run.command))
    request = msgspec.structs.replace(request, mode=mode, run=run)
    return _conclude(request, points, load_facts(facts) if facts.is_file() else None, _unreadable_points(store))


def _conclude(
    request: ScaleRequest, points: dict[str, PointRecord], facts: Facts | None, remarks: list[Remark]
) -> Scaling:
    """Draw all conclusions from the saved points of the request's mode, and write them."""
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
    """Raise WorkerFailedError if no point is measured."""
    if not any(record.status == "measured" for record in points):
        error = next((record.error for record in points if record.error), None)
        raise WorkerFailedError(
            f"no point could be measured{f': {error}' if error else ''}", f"See {request.output}/points."
        )


def _unreadable_points(store: Store) -> list[Remark]:
    return [Remark(code="unreadable-point", message=note) for note in store.notes]


class _ScalingBenchmark:
    """Measure the points of one call of `gpudiag scale`.

    Attributes:
        points: records of all points in the output directory, by id.
        wanted: the points of this call that can run, by id.
        tried: directories of starts that this call has begun.
        first: the first launch. Later launches differ from it in directory, peer access and number of processes.
        timed, profiled: points that remain to be timed and to be profiled, most important first.
    """

    def __init__(
        self, request: ScaleRequest, store: Store, first: Prepared, observer: Observer, say: Callable[[str], None]
    ) -> None:
        self.request, self.store, self.first = request, store, first
        self.observer, self.say = observer, say
        self.facts = first.facts
        self.machine = _machine(first)
        self.remarks: list[Remark] = []
        requested = all_points(request, Site(gpus=len(self.machine.gpus), cpus=self.facts.host.usable_cpus or 1))
        self.points = store.points()
        check_machine(self.points, self.machine, request.output)
        self.wanted: dict[str, Point] = {}
        self.tried: set[str] = set()
        self.timed: list[Point] = []
        for point in requested:
            self._enqueue(point)
        self.profiled = [  # a point with a separate launch is recorded when it is timed
            point
            for point in to_profile(request, requested)
            if not point.by_itself and not self._is_profiled(point.record.id)
        ]
        with writing(request.output):
            write_json(request.output / FACTS_FILE, self.facts)
        records = [self.points.get(point.record.id) for point in requested]
        measured = sum(record is not None and record.status == "measured" for record in records)
        say(f"{len(requested)} points" + (f", {measured} of them already measured" if measured else ""))

    def _enqueue(self, point: Point) -> None:
        """Queue a point unless it cannot run or has been measured."""
        if point.record.status == "failed":
            self._note(point.record)
            return
        self.wanted[point.record.id] = point
        known = self.points.get(point.record.id)
        # A point that failed in an earlier call is measured again only on request.
        missing = known is None or (
            known.status != "measured" and (self.request.again or known.status == "not measured")
        )
        if missing and not self._recover(point):
            self.timed.append(point)

    def _recover(self, point: Point) -> bool:
        """Save the point and return True if an earlier call measured the point but ended before saving it."""
        outcome = self.store.outcome(point.record.id)
        if outcome is None or not outcome.done:
            return False
        run, volume = self.store.run(point.record.id), self.store.volume(point.record.id)
        record = with_figures(point.record, run, outcome, self.machine, volume)
        if record.status == "measured":
            self._note(record)
        return record.status == "measured"

    def _is_profiled(self, point_id: str) -> bool:
        outcome = self.store.outcome(point_id, profile=True)
        return outcome is not None and outcome.done

    def measure(self) -> None:
        """Launch until no point is left or the budget is spent."""
        budget_s, began_s = self.request.budget_s, time.monotonic()
        launches = 0
        while self.timed or self.profiled or self._start_again():
            left_s = None if budget_s is None else budget_s - (time.monotonic() - began_s)
            if left_s is not None and left_s < _START_S:
                self.say(f"the budget is used up: {len(self.timed)} points are left for another call")
                self.remarks.append(self._budget_remark())
                return
            alone = self._next_alone()
            if alone is not None:
                self.say(f"measuring {alone.record.id}, in its own processes ({len(self.timed)} left)")
                self._run_alone(alone)
                continue
            launch = next_launch([point for point in self.timed if not point.by_itself], self.profiled)
            launches += 1
            if left_s is not None:
                # The launch gets a share of the remaining time in proportion to its points, less the time to start.
                share = len(launch.points) / (len(self.timed) + len(self.profiled))
                left_s = max(_SHORTEST_S, left_s * share - _START_S)
            self._run(launch, below(self.request.output, f"launch-{launches}"), left_s)

    def _next_alone(self) -> Point | None:
        """Return a point that needs its own processes, if it is first in the queue or only such points are left."""
        alone = next((point for point in self.timed if point.by_itself), None)
        if alone is not None and (alone is self.timed[0] or all(point.by_itself for point in self.timed)):
            return alone
        return None

    def _start_again(self) -> bool:
        """Queue the points that need another start; return whether there are any."""
        self.timed = started_again(self.request, self.wanted, self.points, self.tried)
        self.tried.update(point.directory for point in self.timed)
        return bool(self.timed)

    def _run(self, launch: Launch, directory: Path, left_s: float | None) -> None:
        """Run one launch, and read its results. Points that it began, or all if it began none, leave the queues.

        After `left_s` seconds the launch begins no point; None for no limit.
        """
        prepared = _for_launch(self.first, launch, directory)
        with writing(self.request.output):
            directory.mkdir(parents=True, exist_ok=True)
        for point in launch.timed:
            self.store.clear(point.record.id, start=point.start)
        for point in launch.profiled:
            self.store.clear(point.record.id, profile=True)
        failure: GpudiagError | None = None
        try:
            train(prepared, lambda message: self.observer(message, launch), plan(launch, self.request, left_s))
        except WorkerFailedError as error:
            failure = error
        except OSError as error:
            with writing(self.request.output):  # adds a hint
                raise error from None
        self._read_results(launch, failure)
        if failure is None:  # otherwise the logs of the launch are kept
            shutil.rmtree(directory, ignore_errors=True)

    def _run_alone(self, point: Point) -> None:
        """Time and record a point in its own processes, as `gpudiag profile` does."""
        record, job, store = point.record, point.job, self.store
        self.timed.remove(point)
        directory = store.directory(record.id, start=point.start)
        began_s = time.monotonic()
        try:
            # `prepare` refuses options that do not apply to the workload, even with their default values.
            prepared = prepare(
                msgspec.structs.replace(
                    job,
                    devices=record.devices,
                    memory_format=job.memory_format if workload_entry(job.workload).images else None,
                    model=None,
                    output=str(directory),
                )
            )
            store.clear(record.id, start=point.start)
            train(prepared, lambda message: self.observer(message, Launch(timed=(), profiled=())))
        except (WorkerFailedError, UsageError, HardwareMissingError) as error:
            failed = msgspec.structs.replace(record, status="failed", error=str(error))
            self._note_start(point, failed)
            self._halve_if_out_of_memory(point, failed, out_of_memory="memory" in str(error).lower())
            return
        timed = msgspec.structs.replace(record, seconds=time.monotonic() - began_s)
        run, volume = store.run(record.id, start=point.start), store.volume(record.id, start=point.start)
        self._note_start(point, with_figures(timed, run, None, self.machine, volume))

    def _read_results(self, launch: Launch, failure: GpudiagError | None) -> None:
        """Read the results of a launch. If no point of the launch began, drop all of its points."""
        error = str(failure) if failure else "its processes were ended"
        begun = [self._read_timed(point, error) for point in launch.timed]
        begun += [self._read_profiled(point, error) for point in launch.profiled]
        if not any(begun):
            self._drop(launch, failure)

    def _read_timed(self, point: Point, error: str) -> bool:
        """Save the result of a timed point; return whether it began. `error` is saved if the point did not end."""
        store = self.store
        outcome = store.outcome(point.record.id, start=point.start)
        if outcome is None:
            return False
        self.timed.remove(point)
        if not outcome.done and outcome.error is None:
            outcome = msgspec.structs.replace(outcome, error=error)
        run, volume = store.run(point.record.id, start=point.start), store.volume(point.record.id, start=point.start)
        record = with_figures(point.record, run, outcome, self.machine, volume)
        self._note_start(point, record)
        out_of_memory = outcome.out_of_memory or "out of memory" in (record.error or "").lower()
        self._halve_if_out_of_memory(point, record, out_of_memory=out_of_memory)
        return True

    def _read_profiled(self, point: Point, error: str) -> bool:
        """Remove a profiled point from the queue, with a remark if it failed, and return whether it began.

        `error` is the reason if the point has none of its own.
        """
        outcome = self.store.outcome(point.record.id, profile=True)
        if outcome is None:
            return False
        self.profiled.remove(point)
        if not outcome.done:
            message = f"{point.record.id} was not profiled: {outcome.error or error}"
            self.remarks.append(Remark(code="not-profiled", message=message))
        return True

    def _drop(self, launch: Launch, failure: GpudiagError | None) -> None:
        """Drop a launch's points: a second attempt would fail in the same way, or (`failure` is None) no time is left.

        Raise `failure` instead if no point of the benchmark is measured.
        """
        if failure is not None and not any(record.status == "measured" for record in self.points.values()):
            raise failure
        error = str(failure) if failure is not None else "no time was left for it"
        self.remarks.append(Remark(code="not-measured", message=f"{len(launch.points)} points: {error}"))
        self.timed = [point for point in self.timed if point not in launch.timed]
        self.profiled = [point for point in self.profiled if point not in launch.profiled]

    def _halve_if_out_of_memory(self, point: Point, record: PointRecord, *, out_of_memory: bool) -> None:
        """Queue the point with half the batch if its first start failed for lack of memory."""
        failed = record.status == "failed" and point.start == 1
        if failed and out_of_memory and self.request.halve and record.batch_per_device > 1:
            smaller = halved(point)
            self.wanted[smaller.record.id] = smaller
            self.timed.insert(0, smaller)

    def _note_start(self, point: Point, record: PointRecord) -> None:
        """Save a point after its first or another start; if another start failed, add a remark."""
        merged, remark = with_start(point, self.points, record)
        if remark is not None:
            self.remarks.append(remark)
        self._note(merged)

    def _note(self, record: PointRecord) -> None:
        """Save a point."""
        self.points[record.id] = record
        self.store.save(record)

    def _budget_remark(self) -> Remark:
        """Return a remark with the number of points that were not measured, and the names of the first five."""
        left = [*self.timed, *self.profiled]
        names = ", ".join(point.record.id for point in left[:5])
        return Remark(
            code="budget",
            message=f"{len(left)} points were left out when the budget was used up "
            f"({names}{', ...' if len(left) > 5 else ''}); repeat the command to measure them",
        )


def _machine(first: Prepared) -> Machine:
    """Return the machine and the software versions of a prepared run."""
    host = first.facts.host
    software = {framework_named(first.plan.job.framework).package: first.interpreter.framework}
    if host.driver:
        software["driver"] = host.driver
    return Machine(
        host=host.name,
        cpu=host.cpu,
        usable_cpus=host.usable_cpus,
        gpus=tuple(gpu.name for gpu in first.facts.gpus if gpu.visible),
        which=which_gpus(first.facts),
        software=software,
    )


def _for_launch(first: Prepared, launch: Launch, directory: Path) -> Prepared:
    """Return `first` with the launch's directory, peer access and number of processes."""
    cpus = first.facts.host.usable_cpus or 1
    launch_plan = msgspec.structs.replace(
        first.plan,
        job=msgspec.structs.replace(first.plan.job, p2p=launch.p2p),
        run_dir=directory,
        processes=launch.processes,
        threads=max(1, cpus // launch.processes),
    )
    return msgspec.structs.replace(first, plan=launch_plan)
