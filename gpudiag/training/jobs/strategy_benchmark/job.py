"""Run the strategy benchmark of `gpudiag recommend` in each training process.

A candidate is a strategy with its options. For each workload of the plan the benchmark measures a step without
communication, the phases of this step, the time at which each gradient is ready, and all-reduces of the workload's
buckets over each transport. From these times and the machine's facts each candidate's step time is predicted. Then the
best candidates are timed in turns, so that drift of the machine affects all candidates equally. Each candidate trains a
copy of the model.
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

import torch

from gpudiag.errors import GpudiagError
from gpudiag.model.benchmarks.prediction import Candidate, Gradients
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
from gpudiag.model.run_directory import FACTS_FILE, read_json, write_json
from gpudiag.prediction.curves import curves_of
from gpudiag.prediction.overlap import ddp_buckets
from gpudiag.prediction.situation import Situation
from gpudiag.training.frameworks.pytorch.runtime import device_name, software
from gpudiag.training.jobs.strategy_benchmark import gradient_bandwidth
from gpudiag.training.jobs.strategy_benchmark.subject import StrategyTrainer, Subject
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.strategies.predict import finalists_of, predict
from gpudiag.training.strategies.registry import transports_of

_INDEPENDENT = Candidate(strategy=INDEPENDENT)

#: Number of untimed steps at the beginning of a turn, in which the host runs ahead again.
_RUN_IN_STEPS = 2
#: Number of first steps, which include compilation, autotuning, allocation, connecting and DDP's rebuilding of buckets.
_FIRST_STEPS = 3
#: A look is a measurement of a candidate's step time during warm-up. Warm-up ends when two consecutive looks differ by
#: less than this share, or when this number of looks has followed the first look.
_AGREE, _MOST_LOOKS = 0.03, 6
#: A candidate is slow if its step time exceeds another candidate's by this factor. A slow candidate has no turns, but
#: at most this number of looks, of which the last two count as rounds.
_SLOW, _SLOW_LOOKS = 1.5, 3
#: Share of the remaining time for the warm-up of `independent` (no communication), and again for measuring its phases.
_ALONE = 0.3
#: Minimum number of rounds of `independent` and the first strategy. A single round has no confidence interval.
_LEAST_ROUNDS = 2
#: Remaining seconds if the time is not limited.
_NO_LIMIT_S = 1e9
#: Time to end the processes, as a share of the time to start them. On busy cores, processes that started in 18 s ended
#: in 6 s, and processes that started in 19 s ended in 9 s.
_ENDING = 0.5


def run_strategy_benchmark(plan: StrategyBenchmarkPlan, run_dir: Path) -> None:
    """Run the benchmark together with the other processes. Rank 0 writes each workload's result to `run_dir`."""
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    facts = read_json(run_dir / FACTS_FILE, Facts, FACTS_SCHEMA)
    world.save_rank(run_dir)
    start_s = max(0.0, time.time() - plan.began)
    for number, entry in enumerate(plan.entries):
        until = None
        if plan.limit_s is not None:
            # Reserve half of an equal share of the time for each remaining workload. So the first workload may take
            # longer, because its time includes loading and connecting.
            kept_s = (len(plan.entries) - number - 1) * plan.limit_s / (2 * len(plan.entries))
            until = plan.began + plan.limit_s - _ENDING * start_s - kept_s
        benchmark = _Benchmark(world, plan, entry, facts, progress, until=until, start_s=start_s).measure()
        if world.rank == 0:
            write_json(run_dir / benchmark_file(entry.workload), benchmark)
        gc.collect()
        if world.on_gpu:
            torch.cuda.empty_cache()
    world.gather(None)  # wait until rank 0 has written
    progress.tell("done")
    world.close()


class _Benchmark:
    """Run the benchmark of one workload.

    Attributes:
        seconds: duration of each phase of the benchmark; `start` is the time to start the processes (`start_s`).
        trainers: warmed-up trainers of the candidates that can have turns, by label, as in the following attributes.
        setup_s, step_ms: seconds to set up a candidate, and its step time at the end of warm-up.
        slow_ms: step times of the last two looks of a slow candidate.
        failed: reason why a candidate has no valid times.

    Args:
        until: time at which the benchmark shall end, in seconds of `time.time`; None without a limit.
    """

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
        self._until, self.world, self.plan = until, world, plan
        self.entry, self.facts, self.progress = entry, facts, progress
        self.seconds: dict[str, float] = defaultdict(float, start=start_s)
        self.trainers: dict[str, StrategyTrainer] = {}
        self.setup_s: dict[str, float] = {}
        self.step_ms: dict[str, float] = {}
        self.slow_ms: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}
        self._beats = 0

    def measure(self) -> StrategyBenchmark:
        """Run the benchmark and return its result. Only the result of rank 0 is complete."""
        world, entry = self.world, self.entry
        with self._timing("model"):
            subject = Subject(world, entry)
        with self._timing("compute"):
            self._admit(subject, _INDEPENDENT, kept_s=(1 - _ALONE) * self._left_s())
            if _INDEPENDENT.label not in self.trainers:
                raise GpudiagError(f"{entry.workload} cannot be trained: {self.failed[_INDEPENDENT.label]}")
            # Use the times of the slowest rank, because all ranks wait for that rank.
            measured = subject.gradients(self.step_ms[_INDEPENDENT.label], longest_s=_ALONE * self._left_s())
            gradients = max(world.gather(measured), key=lambda rank: rank.compute.step_ms if rank.compute else 0.0)
        with self._timing("transports"):
            self._beat()
            collectives = gradient_bandwidth.measure(world, self._transports(), self._sizes(gradients))
        predictions = predict(
            self.facts,
            gradients,
            entry.candidates,
            self.plan.devices,
            p2p=self.plan.p2p,
            curves=curves_of(collectives),
            cannot=entry.cannot,
        )
        turns: tuple[Turns, ...] = ()
        if self.plan.measure:
            possible = [
                prediction.candidate
                for prediction in predictions
                if prediction.cannot is None and prediction.candidate != _INDEPENDENT
            ]
            finalists = finalists_of(predictions, entry.finalists) if entry.finalists else possible  # 0: time all
            with self._timing("setup"):
                self._set_up_all(subject, finalists)
            with self._timing("turns"):
                turns = self._take_turns([_INDEPENDENT, *finalists])
        for trainer in self.trainers.values():
            trainer.close()
        return StrategyBenchmark(
            workload=entry.workload,
            device_name=device_name(world.device),
            devices=self.plan.devices,
            batch_size=subject.batch_size,
            p2p=self.plan.p2p,
            peer_access=Situation(self.facts, gradients, self.plan.devices, p2p=self.plan.p2p).peer_access
            if world.on_gpu
            else None,
            precision=subject.precision,
            memory_format=subject.memory_format,
            gradients=gradients,
            transports=tuple(collectives),
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

    def _log(self, text: str) -> None:
        """Write a line with the time into the log of rank 0."""
        if self.world.rank == 0:
            line = f"{time.perf_counter() - self._began:7.2f} s  {self.entry.workload}: {text}"
            with suppress(OSError):  # a full disk is reported when the result is written
                print(line, file=sys.stderr, flush=True)  # noqa: T201  # the log is this process's standard error

    def _left_s(self) -> float:
        """Return the remaining seconds of rank 0 on every rank; negative if the time is over."""
        return float(self.world.first(_NO_LIMIT_S if self._until is None else self._until - time.time()))

    def _set_up_all(self, subject: Subject, finalists: Sequence[Candidate]) -> None:
        """Set up the candidates in order, while there is time to warm up and measure them. Set up at least one."""
        for number, candidate in enumerate(finalists):
            self._beat()
            left_s = self._left_s()
            step_s = max(self.step_ms.values()) / 1e3
            turns_s = RANKED_ROUNDS * (1 + self._run_in) * step_s  # time of a candidate's turns with one step each
            # `each_s`: time of a candidate's setup, warm-up and turns, estimated from the earlier candidates.
            before = [self.setup_s[finalist.label] for finalist in finalists[:number]]
            each_s = turns_s + (statistics.fmean(before) if before else (_FIRST_STEPS + self.plan.least_steps) * step_s)
            free_s = left_s - len(self.trainers) * turns_s  # without the turns of candidates that are set up
            if len(self.step_ms) > 1 and free_s < each_s:  # `independent` and at least one candidate are set up
                self.failed.update({finalist.label: NO_TIME for finalist in finalists[number:]})
                return
            # Divide the free time equally among the remaining candidates, or among as many candidates as can be set up.
            # Each share includes the time `turns_s` for the candidate's turns.
            share_s = free_s / max(1.0, min(len(finalists) - number, free_s / each_s))
            self._admit(subject, candidate, kept_s=left_s - share_s + turns_s)

    def _beat(self) -> None:
        """Report progress."""
        self._beats += 1
        self.progress.tell("warmup", self._beats)

    def _transports(self) -> dict[str, Candidate]:
        """Return the transports of all candidates that can run, each with one candidate that uses the transport."""
        possible = [candidate for candidate in self.entry.candidates if candidate.label not in self.entry.cannot]
        return transports_of(possible, on_gpu=self.world.on_gpu, p2p=self.plan.p2p)

    def _sizes(self, gradients: Gradients) -> list[int]:
        buckets = [sum(gradients.sizes[i] for i in bucket) for bucket in ddp_buckets(gradients.sizes)]
        # Compression to bf16 halves the size of the smallest bucket.
        return gradient_bandwidth.chosen_sizes([*buckets, min(buckets) // 2])

    def _admit(self, subject: Subject, candidate: Candidate, *, kept_s: float) -> None:
        """Set up and warm up a candidate, at most until `kept_s` seconds are left. Log the result."""
        began = time.perf_counter()
        self._set_up(subject, candidate, kept_s)
        took = self.setup_s[candidate.label] = round(time.perf_counter() - began, 3)
        label = candidate.label
        step = self.failed.get(label) or f"{self.step_ms[label]:.2f} ms a step"
        self._log(f"{label} set up in {took:.2f} s, {step}{', too slow for turns' if label in self.slow_ms else ''}")

    def _set_up(self, subject: Subject, candidate: Candidate, kept_s: float) -> None:
        """Make and warm up a candidate's trainer. Record the step time in ms, or the reason for a failure.

        Keep the trainer for turns, unless the candidate has failed or is slow.
        """
        label = candidate.label
        trainer: StrategyTrainer | None = None
        try:
            trainer = StrategyTrainer(self.world, subject, candidate)
            problem = None
        except Exception as error:  # noqa: BLE001  # the other strategies continue
            problem = _described(error)
        failure = self._first_of(problem)
        if failure is None and trainer is not None:
            try:
                self.step_ms[label] = self._warm_up(trainer, label, kept_s)
            except Exception as error:  # noqa: BLE001 # ranks in a collective fail together or time out
                problem = _described(error)
            failure = self._first_of(problem)
        if failure is not None or trainer is None:
            self.failed[label] = (failure or "could not be made").splitlines()[0][:300]
        elif label not in self.slow_ms:
            self.trainers[label] = trainer
            return
        if trainer is not None:
            trainer.close()

    def _first_of(self, problem: str | None) -> str | None:
        """Return the problem of the lowest rank that has one, on every rank; None if no rank has a problem."""
        return next((text for text in self.world.gather(problem) if text), None)

    def _warm_up(self, trainer: StrategyTrainer, label: str, kept_s: float) -> float:
        """Train until two looks agree, `_MOST_LOOKS` have followed the first, or only `kept_s` seconds are left.

        Return the slowest rank's step time in ms. A slow candidate has only a few looks, because its step time need not
        be precise.
        """
        first = 0.0
        for number in range(_FIRST_STEPS):  # the last of them takes as long as later steps
            first = self._slowest(trainer.timed(1, run_in=0))
            if number and self._left_s() < kept_s:  # the very first step is no estimate of the step time
                return first
        # A look of a slow candidate has only the steps of one block.
        few = max(1, min(_FIRST_STEPS, round(self.plan.block_ms / first))) if self._is_slow(first) else _FIRST_STEPS
        self._beat()
        before = self._slowest(trainer.timed(few, run_in=0))
        looks = [before]
        for _ in range(_MOST_LOOKS):
            slow = self._is_slow(before)
            if slow and len(looks) >= 2 and (len(looks) >= _SLOW_LOOKS or abs(looks[-1] / looks[-2] - 1) < _AGREE):
                self.slow_ms[label] = looks[-2:]
                return statistics.fmean(looks[-2:])
            if self._left_s() < kept_s:
                break
            self._beat()
            now = self._slowest(trainer.timed(few if slow else self._steps(before), run_in=0))
            looks.append(now)
            if not slow and abs(now / before - 1) < _AGREE:
                return now
            before = now
        return before

    def _is_slow(self, step_ms: float) -> bool:
        """Return whether this step time exceeds that of the fastest strategy by the factor `_SLOW`."""
        rivals = [known for label, known in self.step_ms.items() if label != _INDEPENDENT.label]
        return bool(rivals) and step_ms > _SLOW * min(rivals)

    def _steps(self, step_ms: float) -> int:
        return max(self.plan.least_steps, round(self.plan.block_ms / step_ms))

    def _slowest(self, times: list[float]) -> float:
        """Return the median step time of the slowest rank, in ms. `times` is empty on ranks that do not train."""
        return float(max(self.world.gather(statistics.median(times) if times else 0.0)))

    def _take_turns(self, order: list[Candidate]) -> tuple[Turns, ...]:
        """Time rounds. In each round each candidate has a turn, in an order that rotates by one per round.

        When the time is over, only `independent` and the first strategy continue, until they have `_LEAST_ROUNDS`.
        """
        rounds = {candidate.label: list(self.slow_ms.get(candidate.label, ())) for candidate in order}
        running = [candidate for candidate in order if candidate.label in self.trainers]
        steps = self._steps_per_turn(running)
        began = time.perf_counter()
        for number in range(self.plan.most_rounds):
            self.progress.tell("timed", number, self.plan.most_rounds)
            shift = number % len(running)
            for candidate in (*running[shift:], *running[:shift]):
                if self._has_turn(candidate, number, always=running[:2]):
                    label = candidate.label
                    times = self.trainers[label].timed(steps[label], run_in=self._run_in)
                    rounds[label].append(max(self.world.gather(statistics.fmean(times) if times else 0.0)))
            enough = number + 1 >= self.plan.least_rounds and time.perf_counter() - began > self.entry.seconds
            if self.world.first(enough) or (number + 1 >= _LEAST_ROUNDS and self._left_s() < 0.0):
                break
        for candidate in running:
            if len(rounds[candidate.label]) < _LEAST_ROUNDS:
                self.failed.setdefault(candidate.label, NO_TIME)
        return tuple(self._turns(candidate, rounds[candidate.label], steps) for candidate in order)

    def _turns(self, candidate: Candidate, round_ms: list[float], steps: dict[str, int]) -> Turns:
        """Return a candidate's result: its step time in each round, and its steps per turn (slow: 1, failed: 0)."""
        label = candidate.label
        return Turns(
            candidate=candidate,
            round_ms=tuple(round(value, 6) for value in round_ms),
            steps=steps.get(label, 1 if label in self.slow_ms else 0),
            cannot=self.failed.get(label),
        )

    def _has_turn(self, candidate: Candidate, number: int, *, always: Sequence[Candidate]) -> bool:
        """Return whether a candidate has a turn in round `number`. All ranks must call this method before each turn.

        Candidates in `always` have turns until `_LEAST_ROUNDS`, even if the time is over.
        """
        # A candidate that is slow compared with one that was set up later has at most `_SLOW_LOOKS` rounds.
        if number >= _SLOW_LOOKS and self._is_slow(self.step_ms[candidate.label]):
            return False
        over = self._left_s() < 0.0  # this waits for all ranks, so they begin the turn together
        return not over or (number < _LEAST_ROUNDS and candidate in always)

    @property
    def _run_in(self) -> int:
        return _RUN_IN_STEPS if self.world.on_gpu else 1

    def _steps_per_turn(self, running: Sequence[Candidate]) -> dict[str, int]:
        """Return each candidate's number of timed steps per turn, which is reduced if time is short."""
        turn_ms = 1e3 * self._left_s() / (self.plan.least_rounds * len(running))
        steps = {}
        for label in (candidate.label for candidate in running):
            step_ms = self.step_ms[label]
            possible = max(1.0, turn_ms / step_ms - self._run_in)
            steps[label] = int(min(self._steps(step_ms), possible))
        return steps


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, GpudiagError) else f"{type(error).__name__}: {error}"
