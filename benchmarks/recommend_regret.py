"""Measure the prediction error and regret of `gpudiag recommend` against measurements of every strategy.

    python benchmarks/recommend_regret.py [--output DIR] [--p2p on,off] [--workloads vgg16,resnet50,gpt,mlp]

For each setting of peer access, one set of processes trains all workloads with all strategies in turn. For each
workload, the result is the predicted and measured step time of each strategy, the prediction error, and the regret.
Regret is by how many percent the strategy that `recommend` would choose is slower than the fastest strategy. The choice
is simulated from the same measurements, restricted to the finalists of `recommend`. The real `recommend` measures more
rounds, so that the simulated choice is at most as good as the real one. A strategy that is more than 1.5 times as slow
as another in the warm-up is not measured further.

The output is Markdown. The measurement of one setting of peer access takes about `--seconds`. Workloads already
measured in `--output` are not measured again, so that an interrupted run can continue. `--from DIR` prints the tables
of an earlier run. With `--again` the predictions are recomputed from the recorded measurements of the machine, the
model and the transports.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpudiag.app.profile.prepare import measure_links, prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.recommend.candidates import candidates, why_not
from gpudiag.app.recommend.verdict import judge
from gpudiag.model.benchmarks.strategy_benchmark import (
    STRATEGY_BENCHMARK_SCHEMA,
    Entry,
    StrategyBenchmark,
    StrategyBenchmarkPlan,
    benchmark_file,
)
from gpudiag.model.facts import FACTS_SCHEMA, Facts
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import FACTS_FILE, read_json
from gpudiag.prediction.curves import curves_of
from gpudiag.statistics import mean_of
from gpudiag.training.models.registry import workload_entry
from gpudiag.training.strategies.predict import finalists_of, predict

if TYPE_CHECKING:
    from gpudiag.training.session.progress import Progress


def main() -> int:
    """Measure or read the results, and print them; return 1 if a regret exceeds 2 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-regret"
    )
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--p2p", default="on,off")
    parser.add_argument("--workloads", default="vgg16,resnet50,gpt,mlp")
    parser.add_argument("--devices", type=int)
    parser.add_argument("--rounds", type=int, default=4, help="at least")
    parser.add_argument("--seconds", type=float, default=100.0, help="for each setting")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--precision", default=None)
    options = parser.parse_args()
    for name in options.workloads.split(","):
        workload_entry(name)
    settings = options.p2p.split(",")
    names = options.workloads.split(",")
    directory = options.source or options.output
    if options.source is None:
        for setting in settings:
            left = [name for name in names if result_of(directory / setting, name) is None]
            if left:
                measure(directory / setting / f"launch{time.strftime('%H%M%S')}", left, options, p2p=setting == "on")
    worst_regret = worst_error = 0.0
    for setting in settings:
        for name in names:
            path = result_of(directory / setting, name)
            if path is not None:
                benchmark = read_json(path, StrategyBenchmark, STRATEGY_BENCHMARK_SCHEMA)
                regret, error = show(predicted_again(benchmark, path.parent) if options.again else benchmark, setting)
                worst_regret, worst_error = max(worst_regret, regret), max(worst_error, error)
    print(f"worst regret {worst_regret:.1f} %, worst error of a step time {worst_error:.0f} %")
    return 0 if worst_regret <= 2.0 else 1


def result_of(directory: Path, name: str) -> Path | None:
    """Return the path of one workload's result below the directory of its launch, or None if there is no result."""
    return next(iter(sorted(directory.glob(f"**/{benchmark_file(name)}"))), None)


def predicted_again(benchmark: StrategyBenchmark, run_dir: Path) -> StrategyBenchmark:
    """Return a benchmark's measurements with predictions that the current predictor makes from the recorded facts."""
    facts = read_json(run_dir / FACTS_FILE, Facts, FACTS_SCHEMA)
    chosen = [prediction.candidate for prediction in benchmark.predictions]
    cannot = {
        prediction.candidate.label: prediction.cannot
        for prediction in benchmark.predictions
        if prediction.cannot is not None
    }
    curves = curves_of(benchmark.transports)
    again = predict(
        facts, benchmark.gradients, chosen, benchmark.devices, p2p=benchmark.p2p, curves=curves, cannot=cannot
    )
    return msgspec.structs.replace(benchmark, predictions=again)


def measure(run_dir: Path, names: list[str], options: argparse.Namespace, *, p2p: bool) -> None:
    """Train all workloads with all strategies in one launch."""
    began = time.time()
    prepared = measure_links(
        prepare_program(
            RunOptions(workload=names[0], devices=options.devices, p2p=p2p, output=str(run_dir), timeout_s=120.0)
        )
    )
    log(began, f"facts are there; {', '.join(names)}")
    devices = prepared.plan.processes
    chosen = candidates()
    plan = StrategyBenchmarkPlan(
        device=prepared.plan.job.device,
        devices=devices,
        p2p=p2p,
        entries=tuple(
            Entry(
                workload=name,
                precision=options.precision,
                candidates=chosen,
                cannot=why_not(prepared.facts, chosen, devices),
                finalists=0,  # measure all candidates
                seconds=options.seconds / (3 * len(names)),  # a third of the time for turns
            )
            for name in names
        ),
        least_rounds=options.rounds,
        most_rounds=3 * options.rounds,
        block_ms=150.0,
        least_steps=3,
        began=began,
        limit_s=options.seconds,
    )
    train(prepared, Heard(began), plan)
    log(began, f"{run_dir} is done")


class Heard:
    """Print the time at which rank 0 enters each phase."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._last = ""

    def __call__(self, message: Progress) -> None:
        """Print the phase of a message of rank 0 if the phase is new."""
        if message.rank == 0 and message.phase != self._last:
            self._last = message.phase
            log(self._began, message.phase)


def log(began: float, what: str) -> None:
    """Print a finished action to standard error, with the seconds since `began`."""
    print(f"{time.time() - began:6.1f} s  {what}", file=sys.stderr, flush=True)


def show(benchmark: StrategyBenchmark, setting: str) -> tuple[float, float]:
    """Print one workload's table; return its regret and its largest error, in percent."""
    measured = {turn.candidate.label: turn for turn in benchmark.turns if turn.round_ms and turn.cannot is None}
    means = {label: statistics.fmean(prediction.round_ms) for label, prediction in measured.items()}
    # `independent` trains without communication, so it is no choice.
    racing = {label: mean for label, mean in means.items() if label != "independent"}
    if not racing:
        print(f"\n`{benchmark.workload}`, peer access {setting}: nothing was measured in time")
        return 0.0, 0.0
    # `recommend` measures the three strategies with the best predictions, and training without communication.
    finalists = {finalist.label for finalist in finalists_of(benchmark.predictions, 3)} | {"independent"}
    few = msgspec.structs.replace(
        benchmark, turns=tuple(turn for turn in benchmark.turns if turn.candidate.label in finalists)
    )
    verdict = judge(few)
    fastest = min(racing, key=lambda label: racing[label])
    regret = 100 * (racing[verdict.recommended] / racing[fastest] - 1)
    precise = f"batch {benchmark.batch_size}, {benchmark.precision}"
    print(
        f"\n`{benchmark.workload}`, {benchmark.devices} x {benchmark.device_name}, {precise}, peer access {setting}\n"
    )
    print("| strategy | predicted ms | measured ms (±95 %) | error | would be measured |")
    print("| --- | ---: | ---: | ---: | --- |")
    worst = 0.0
    for prediction in benchmark.predictions:
        label = prediction.candidate.label
        if label not in means:
            why = prediction.cannot or next(
                (turn.cannot for turn in benchmark.turns if turn.candidate == prediction.candidate), None
            )
            print(f"| {label} | — | — | — | {why or 'not measured'} |")
            continue
        predicted = prediction.step_ms or 0.0
        error = 100 * (predicted / means[label] - 1)
        worst = max(worst, abs(error))
        rounds = measured[label].round_ms
        spread = mean_of(rounds)
        near = f"{means[label]:.2f}" + (f" ± {spread.half_width:.2f}" if len(rounds) > 1 else "")
        print(f"| {label} | {predicted:.2f} | {near} | {error:+.0f} % | {_mark(label, finalists)} |")
    print(f"\nrecommended: {verdict.recommended} ({verdict.verdict}); fastest: {fastest}; regret {regret:.1f} %")
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in benchmark.seconds.items())
    print(f"seconds: {phases}")
    return regret, worst


def _mark(label: str, finalists: set[str]) -> str:
    return "yes" if label in finalists else ""


if __name__ == "__main__":
    sys.exit(main())
