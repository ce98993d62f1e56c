"""The strategy benchmark: `gpudiag recommend` starts `run` in each training process, as a user's function.

For each workload of the plan: a step without exchange, its parts, and when each gradient is there; all-reduces of its
buckets over each transport; from these and the machine's facts a prediction for each candidate; then the best few, each
with a copy of the model of its own, by turns, so that a drift of the machine hits all alike.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.benchmarks.strategy_benchmark import (
    NO_TIME,
    PLAN_FILE,
    STRATEGY_BENCHMARK_PLAN_SCHEMA,
    Entry,
    StrategyBenchmark,
    StrategyBenchmarkPlan,
    Turns,
    benchmark_file,
)
from gpudiag.model.facts import FACTS_SCHEMA, Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.model.run import RankRecord
from gpudiag.model.run_directory import FACTS_FILE, read_json, write_json
from gpudiag.prediction.buckets import ddp_buckets
from gpudiag.prediction.curves import curves_of
from gpudiag.prediction.situation import Situation
from gpudiag.training.frameworks.pytorch.devices import device_name, software
from gpudiag.training.jobs.strategy_benchmark import transports
from gpudiag.training.jobs.strategy_benchmark.side import Side
from gpudiag.training.jobs.strategy_benchmark.subject import Subject
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.session import record
from gpudiag.training.session.launched import launched
from gpudiag.training.session.place import this_place
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.strategies.predict import finalists_of, predict
from gpudiag.training.strategies.registry import transports_of

_INDEPENDENT = Candidate(strategy=INDEPENDENT)

#: Steps after a switch that are not timed: the host runs ahead again.
_RUN_IN_STEPS = 2
#: The first steps of a side: compilation, autotuning, allocation, connections; DDP forms its buckets anew after one.
_FIRST_STEPS = 3
#: A side is warm when two looks in a row agree this well, or after so many of them.
_AGREE, _MOST_LOOKS = 0.03, 6
#: Slower than another by this factor is slow beyond doubt: such a one has no turns, and this many looks at most while
#: it warms up are its rounds.
_SLOW, _SLOW_LOOKS = 1.5, 3
#: So many candidates are measured, in so many rounds, whatever the time: one is no choice, and one round no interval.
_LEAST, _LEAST_ROUNDS = 2, 2


def run() -> None:
    """This process's share; the plan is in the launch's run directory."""
    started = launched()
    if started is None:
        raise UsageError("the benchmark is started by gpudiag only", "Run `gpudiag recommend`.")
    run_dir = started.run_dir
    plan = read_json(run_dir / PLAN_FILE, StrategyBenchmarkPlan, STRATEGY_BENCHMARK_PLAN_SCHEMA)
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    facts = read_json(run_dir / FACTS_FILE, Facts, FACTS_SCHEMA)
    save_rank(run_dir, world)
    began = time.perf_counter()
    for number, entry in enumerate(plan.entries):
        limit_s = None
        if plan.limit_s is not None:
            # The first one pays for what is loaded and connected once, so it may take what it needs; the others keep
            # half of an equal part each.
            kept_s = (len(plan.entries) - number - 1) * plan.limit_s / (2 * len(plan.entries))
            limit_s = plan.limit_s - (time.perf_counter() - began) - kept_s
        found = _Benchmark(world, plan, entry, facts, progress, limit_s=limit_s).measure()
        if world.rank == 0:
            write_json(run_dir / benchmark_file(entry.workload), found)
        gc.collect()
        if world.on_gpu:
            torch.cuda.empty_cache()
    world.gather(None)
    progress.tell("done")
    world.close()


def save_rank(run_dir: Path, world: World) -> None:
    """Leave this rank's record, which the launcher looks for."""
    place = this_place()
    mine = RankRecord(
        rank=place.rank,
        local_rank=place.local_rank,
        host=place.host,
        pid=place.pid,
        device=str(world.device),
        device_name=device_name(world.device),
    )
    record.write_rank(run_dir, mine)


class _Benchmark:
    """One workload."""

    def __init__(
        self,
        world: World,
        plan: StrategyBenchmarkPlan,
        entry: Entry,
        facts: Facts,
        progress: ProgressSender,
        *,
        limit_s: float | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self._limit_s = limit_s
        self.world = world
        self.plan = plan
        self.entry = entry
        self.facts = facts
        self.progress = progress
        self.seconds: dict[str, float] = defaultdict(float)
        self.sides: dict[str, Side] = {}
        self.setup_s: dict[str, float] = {}
        self.step_ms: dict[str, float] = {}
        self.slow_ms: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}
        self._beats = 0

    def measure(self) -> StrategyBenchmark:
        """All of it; the same on every rank but for what only rank 0 needs."""
        world, entry = self.world, self.entry
        with self._timing("model"):
            subject = Subject(world, entry)
        with self._timing("compute"):
            self._admit(subject, _INDEPENDENT)
            if _INDEPENDENT.label not in self.sides:
                raise GpudiagError(f"{entry.workload} cannot be trained: {self.failed[_INDEPENDENT.label]}")
            # Ranks may differ a little; the slowest is what the others would wait for.
            parts = max(
                world.gather(subject.parts(self.step_ms[_INDEPENDENT.label])),
                key=lambda one: one.compute.step_ms if one.compute else 0.0,
            )
        with self._timing("transports"):
            self._beat()
            measured = transports.measure(world, self._transports(), self._sizes(parts))
        predictions = predict(
            self.facts,
            parts,
            entry.candidates,
            self.plan.devices,
            p2p=self.plan.p2p,
            curves=curves_of(measured),
            cannot=entry.cannot,
        )
        turns: tuple[Turns, ...] = ()
        if self.plan.measure:
            possible = [one.candidate for one in predictions if one.cannot is None and one.candidate != _INDEPENDENT]
            finalists = finalists_of(predictions, entry.finalists) if entry.finalists else possible
            with self._timing("setup"):
                for number, candidate in enumerate(finalists):
                    self._beat()
                    if self._over(self._turns_s()) and number >= _LEAST:
                        self.failed[candidate.label] = NO_TIME
                    else:
                        self._admit(subject, candidate)
            with self._timing("turns"):
                turns = self._turns([_INDEPENDENT, *finalists])
        for side in self.sides.values():
            side.close()
        return StrategyBenchmark(
            workload=entry.workload,
            device_name=device_name(world.device),
            devices=self.plan.devices,
            batch_size=subject.batch_size,
            p2p=self.plan.p2p,
            peer_access=Situation(self.facts, parts, self.plan.devices, p2p=self.plan.p2p).peer_access
            if world.on_gpu
            else None,
            precision=subject.precision,
            memory_format=subject.memory_format,
            gradients=parts,
            transports=tuple(measured),
            predictions=predictions,
            turns=turns,
            software=software(),
            seconds={name: round(value, 3) for name, value in self.seconds.items()},
            setup_s=self.setup_s,
        )

    @contextmanager
    def _timing(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began
        self._log(phase)

    def _log(self, what: str) -> None:
        """Leave in the rank's log what is done, and when."""
        if self.world.rank == 0:
            line = f"{time.perf_counter() - self._began:7.2f} s  {self.entry.workload}: {what}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201  # the log is this process's standard error

    def _over(self, kept_s: float = 0.0) -> bool:
        """Whether the time is used up but for so many seconds; the same on every rank."""
        used = self._limit_s is not None and time.perf_counter() - self._began + kept_s > self._limit_s
        return bool(self.world.first(used))

    def _turns_s(self) -> float:
        """What turns of all that are set up will take at least."""
        steps_ms = (self.step_ms[label] for label in self.sides)
        return _LEAST_ROUNDS * sum((self._steps(step) + _RUN_IN_STEPS) * step / 1e3 for step in steps_ms)

    def _beat(self) -> None:
        """Tell that something goes on."""
        self._beats += 1
        self.progress.tell("warmup", self._beats)

    def _transports(self) -> dict[str, Candidate]:
        """Those that any candidate uses."""
        possible = [candidate for candidate in self.entry.candidates if candidate.label not in self.entry.cannot]
        return transports_of(possible, on_gpu=self.world.on_gpu, p2p=self.plan.p2p)

    def _sizes(self, parts: Any) -> list[int]:
        buckets = [sum(parts.sizes[i] for i in bucket) for bucket in ddp_buckets(parts.sizes)]
        # Half of the smallest: what a bucket in bf16 has on the wire.
        return transports.chosen_sizes([*buckets, min(buckets) // 2])

    def _admit(self, subject: Subject, candidate: Candidate) -> None:
        """Make a side and warm it up; if any rank cannot, none has it."""
        began = time.perf_counter()
        self._try(subject, candidate)
        took = self.setup_s[candidate.label] = round(time.perf_counter() - began, 3)
        label = candidate.label
        step = self.failed.get(label) or f"{self.step_ms[label]:.2f} ms a step"
        self._log(f"{label} set up in {took:.2f} s, {step}{', too slow for turns' if label in self.slow_ms else ''}")

    def _try(self, subject: Subject, candidate: Candidate) -> None:
        problem = None
        side = None
        try:
            side = Side(self.world, subject, candidate)
        except Exception as error:  # noqa: BLE001  # whatever keeps one strategy from working, the others go on
            problem = f"{type(error).__name__}: {error}" if not isinstance(error, GpudiagError) else str(error)
        told = next((one for one in self.world.gather(problem) if one), None)
        if told is None and side is not None:
            try:
                self.step_ms[candidate.label] = self._warm(side, candidate.label)
            except Exception as error:  # noqa: BLE001  # as above; ranks in a collective fail together or time out
                problem = f"{type(error).__name__}: {error}" if not isinstance(error, GpudiagError) else str(error)
            told = next((one for one in self.world.gather(problem) if one), None)
        if told is not None or side is None:
            self.failed[candidate.label] = (told or "could not be made").splitlines()[0][:300]
            if side is not None:
                side.close()
            return
        if candidate.label in self.slow_ms:
            side.close()
        else:
            self.sides[candidate.label] = side

    def _warm(self, side: Side, label: str) -> float:
        """Train until two looks agree; the step time in ms, the same on every rank.

        One that is slow beyond doubt needs no precision: it is looked at a few times, and done with.
        """
        # The last of the first steps is about as long as those to come.
        first = max(self.world.gather((side.timed(_FIRST_STEPS, run_in=0) or [0.0])[-1]))
        few = max(1, min(_FIRST_STEPS, round(self.plan.block_ms / first))) if self._is_slow(first) else _FIRST_STEPS
        self._beat()
        before = self._slowest(side.timed(few, run_in=0))
        looks = [before]
        for _ in range(_MOST_LOOKS):
            slow = self._is_slow(before)
            if slow and len(looks) >= 2 and (len(looks) >= _SLOW_LOOKS or abs(looks[-1] / looks[-2] - 1) < _AGREE):
                self.slow_ms[label] = looks[-2:]
                return statistics.fmean(looks[-2:])
            self._beat()
            now = self._slowest(side.timed(few if slow else self._steps(before), run_in=0))
            looks.append(now)
            if not slow and abs(now / before - 1) < _AGREE:
                return now
            before = now
        return before

    def _is_slow(self, step_ms: float) -> bool:
        """Whether another strategy is faster beyond doubt."""
        rivals = [known for label, known in self.step_ms.items() if label != _INDEPENDENT.label]
        return bool(rivals) and step_ms > _SLOW * min(rivals)

    def _steps(self, step_ms: float) -> int:
        return max(self.plan.least_steps, round(self.plan.block_ms / step_ms))

    def _slowest(self, times: list[float]) -> float:
        """The median step of the slowest rank."""
        return float(max(self.world.gather(statistics.median(times) if times else 0.0)))

    def _turns(self, order: list[Candidate]) -> tuple[Turns, ...]:
        """Rounds in which each candidate has its turn, in an order that moves on by one from round to round.

        One that turned out to be slow when others had warmed up has few.
        """
        rounds = {candidate.label: list(self.slow_ms.get(candidate.label, ())) for candidate in order}
        running = [candidate for candidate in order if candidate.label in self.sides]
        steps = {candidate.label: self._steps(self.step_ms[candidate.label]) for candidate in running}
        began = time.perf_counter()
        run_in = _RUN_IN_STEPS if self.world.on_gpu else 1
        for number in range(self.plan.most_rounds):
            self.progress.tell("timed", number, self.plan.most_rounds)
            shift = number % len(running)
            for candidate in (*running[shift:], *running[:shift]):
                if number >= _SLOW_LOOKS and self._is_slow(self.step_ms[candidate.label]):
                    continue
                self.world.gather(None)
                times = self.sides[candidate.label].timed(steps[candidate.label], run_in=run_in)
                means = self.world.gather(statistics.fmean(times) if times else 0.0)
                rounds[candidate.label].append(max(means))
            enough = number + 1 >= self.plan.least_rounds and time.perf_counter() - began > self.entry.seconds
            if self.world.first(enough) or (number and self._over()):
                break
        return tuple(
            Turns(
                candidate=candidate,
                round_ms=tuple(round(value, 6) for value in rounds[candidate.label]),
                steps=steps.get(candidate.label, 1 if candidate.label in self.slow_ms else 0),
                cannot=self.failed.get(candidate.label),
            )
            for candidate in order
        )
