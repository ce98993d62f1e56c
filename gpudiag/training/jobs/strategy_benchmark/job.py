"""The strategy benchmark, which `gpudiag recommend` starts in each training process.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from gpudiag.errors import GpudiagError
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.benchmarks.strategy_benchmark import (
    NO_TIME,
    RANKED_ROUNDS,
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
#: Of the time that is left, what the step without exchange may take to settle, and its parts to be seen.
_ALONE = 0.3
#: The first strategy gets so many rounds beside `independent`, whatever the time: one round has no interval.
_LEAST_ROUNDS = 2
#: More than any measurement takes.
_NO_LIMIT_S = 1e9
#: What ending the processes takes, as a share of what starting them took: 6 of 18 s and 9 of 19 on busy cores.
_ENDING = 0.5


def run_strategy_benchmark(plan: StrategyBenchmarkPlan, run_dir: Path) -> None:
    """Run this process's share; rank 0 writes each workload's result to the run directory."""
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    facts = read_json(run_dir / FACTS_FILE, Facts, FACTS_SCHEMA)
    save_rank(run_dir, world)
    start_s = max(0.0, time.time() - plan.began)
    for number, entry in enumerate(plan.entries):
        until = None
        if plan.limit_s is not None:
            # The first one pays for what is loaded and connected once, so it may take what it needs; the others keep
            # half of an equal part each.
            kept_s = (len(plan.entries) - number - 1) * plan.limit_s / (2 * len(plan.entries))
            until = plan.began + plan.limit_s - _ENDING * start_s - kept_s
        found = _Benchmark(world, plan, entry, facts, progress, until=until, start_s=start_s).measure()
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
        until: float | None,
        start_s: float,
    ) -> None:
        self._began = time.perf_counter()
        self._until = until
        self.world = world
        self.plan = plan
        self.entry = entry
        self.facts = facts
        self.progress = progress
        self.seconds: dict[str, float] = defaultdict(float, start=start_s)
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
            self._admit(subject, _INDEPENDENT, kept_s=(1 - _ALONE) * self._left_s())
            if _INDEPENDENT.label not in self.sides:
                raise GpudiagError(f"{entry.workload} cannot be trained: {self.failed[_INDEPENDENT.label]}")
            # Ranks may differ a little; the slowest is what the others would wait for.
            mine = subject.parts(self.step_ms[_INDEPENDENT.label], longest_s=_ALONE * self._left_s())
            parts = max(world.gather(mine), key=lambda one: one.compute.step_ms if one.compute else 0.0)
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
                self._set_up(subject, finalists)
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
            with suppress(OSError):  # a full disk: the result's own file says so, with its name
                print(line, file=sys.stderr, flush=True)  # noqa: T201  # the log is this process's standard error

    def _left_s(self) -> float:
        """What is left of the time, the same on every rank; negative once it is over."""
        return float(self.world.first(_NO_LIMIT_S if self._until is None else self._until - time.time()))

    def _set_up(self, subject: Subject, finalists: Sequence[Candidate]) -> None:
        """Make sides, in this order, of as many as there is time to warm up and give turns; of one at least."""
        for number, candidate in enumerate(finalists):
            self._beat()
            left_s = self._left_s()
            step_s = max(self.step_ms.values()) / 1e3
            turns_s = RANKED_ROUNDS * (1 + self._run_in) * step_s
            before = [self.setup_s[one.label] for one in finalists[:number]]
            each_s = turns_s + (statistics.fmean(before) if before else (_FIRST_STEPS + self.plan.least_steps) * step_s)
            for_more_s = left_s - len(self.sides) * turns_s
            if len(self.step_ms) > 1 and for_more_s < each_s:  # one has been measured beside `independent`
                self.failed.update({one.label: NO_TIME for one in finalists[number:]})
                return
            # Of those that still can be, each has an equal part of the time.
            share_s = for_more_s / max(1.0, min(len(finalists) - number, for_more_s / each_s))
            self._admit(subject, candidate, kept_s=left_s - share_s + turns_s)

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

    def _admit(self, subject: Subject, candidate: Candidate, *, kept_s: float) -> None:
        """Make a side and warm it up until no more than `kept_s` is left; if any rank cannot, none has it."""
        began = time.perf_counter()
        self._try(subject, candidate, kept_s)
        took = self.setup_s[candidate.label] = round(time.perf_counter() - began, 3)
        label = candidate.label
        step = self.failed.get(label) or f"{self.step_ms[label]:.2f} ms a step"
        self._log(f"{label} set up in {took:.2f} s, {step}{', too slow for turns' if label in self.slow_ms else ''}")

    def _try(self, subject: Subject, candidate: Candidate, kept_s: float) -> None:
        problem = None
        side = None
        try:
            side = Side(self.world, subject, candidate)
        except Exception as error:  # noqa: BLE001  # whatever keeps one strategy from working, the others go on
            problem = f"{type(error).__name__}: {error}" if not isinstance(error, GpudiagError) else str(error)
        told = next((one for one in self.world.gather(problem) if one), None)
        if told is None and side is not None:
            try:
                self.step_ms[candidate.label] = self._warm(side, candidate.label, kept_s)
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

    def _warm(self, side: Side, label: str, kept_s: float) -> float:
        """Train until two looks agree, or no more than `kept_s` is left; the step time in ms, the same on every rank.

        One that is slow beyond doubt needs no precision: it is looked at a few times, and done with.
        """
        first = 0.0
        for number in range(_FIRST_STEPS):  # the last of them is about as long as those to come
            first = self._slowest(side.timed(1, run_in=0))
            if number and self._left_s() < kept_s:
                return first
        few = max(1, min(_FIRST_STEPS, round(self.plan.block_ms / first))) if self._is_slow(first) else _FIRST_STEPS
        self._beat()
        before = self._slowest(side.timed(few, run_in=0))
        looks = [before]
        for _ in range(_MOST_LOOKS):
            slow = self._is_slow(before)
            if slow and len(looks) >= 2 and (len(looks) >= _SLOW_LOOKS or abs(looks[-1] / looks[-2] - 1) < _AGREE):
                self.slow_ms[label] = looks[-2:]
                return statistics.fmean(looks[-2:])
            if self._left_s() < kept_s:
                break
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

        One that turned out to be slow when others had warmed up has few. When the time is over, only the first two
        (`independent` and the first strategy) go on to the fewest rounds.
        """
        rounds = {candidate.label: list(self.slow_ms.get(candidate.label, ())) for candidate in order}
        running = [candidate for candidate in order if candidate.label in self.sides]
        steps = self._steps_of_turns(running)
        began = time.perf_counter()
        for number in range(self.plan.most_rounds):
            self.progress.tell("timed", number, self.plan.most_rounds)
            shift = number % len(running)
            for candidate in (*running[shift:], *running[:shift]):
                if number >= _SLOW_LOOKS and self._is_slow(self.step_ms[candidate.label]):
                    continue
                over = self._left_s() < 0.0  # asking waits for all ranks, so that they begin the turn together
                if over and (number >= _LEAST_ROUNDS or candidate not in running[:2]):
                    continue
                times = self.sides[candidate.label].timed(steps[candidate.label], run_in=self._run_in)
                rounds[candidate.label].append(max(self.world.gather(statistics.fmean(times) if times else 0.0)))
            enough = number + 1 >= self.plan.least_rounds and time.perf_counter() - began > self.entry.seconds
            if self.world.first(enough) or (number + 1 >= _LEAST_ROUNDS and self._left_s() < 0.0):
                break
        for candidate in running:
            if len(rounds[candidate.label]) < _LEAST_ROUNDS:
                self.failed.setdefault(candidate.label, NO_TIME)
        return tuple(
            Turns(
                candidate=candidate,
                round_ms=tuple(round(value, 6) for value in rounds[candidate.label]),
                steps=steps.get(candidate.label, 1 if candidate.label in self.slow_ms else 0),
                cannot=self.failed.get(candidate.label),
            )
            for candidate in order
        )

    @property
    def _run_in(self) -> int:
        return _RUN_IN_STEPS if self.world.on_gpu else 1

    def _steps_of_turns(self, running: Sequence[Candidate]) -> dict[str, int]:
        """Timed steps per turn; fewer than are wanted where the time left is too short for rounds of such turns."""
        turn_ms = 1e3 * self._left_s() / (self.plan.least_rounds * len(running))
        steps = {}
        for label in (candidate.label for candidate in running):
            step_ms = self.step_ms[label]
            possible = max(1.0, turn_ms / step_ms - self._run_in)
            steps[label] = int(min(self._steps(step_ms), possible))
        return steps
