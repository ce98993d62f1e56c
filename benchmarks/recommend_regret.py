"""How good `gpudiag recommend` is: every strategy measured, beside what was predicted and what would be recommended.

    python benchmarks/recommend_regret.py [--output DIR] [--p2p on,off] [--workloads vgg16,resnet50,gpt,mlp]

One set of processes per setting of peer access trains all workloads with all strategies, by turns. For each workload:
predicted and measured step of each strategy, the error, and the regret: how much slower the strategy that `recommend`
would have chosen, from the few that it would have measured, is than the fastest of all. Prints Markdown. About 5
minutes on 4 GPUs; `--from DIR` prints the tables of an earlier run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec

from gpudiag import pipeline
from gpudiag.model.contest import CONTEST_SCHEMA, PLAN_FILE, Contest, ContestPlan, Entry, contest_file
from gpudiag.prediction.finalists import finalists_of
from gpudiag.recommendation.candidates import candidates, why_not
from gpudiag.recommendation.verdict import judge
from gpudiag.run_files import read_json, write_json

_JOB = "gpudiag.workloads.contest.job:run"


def main() -> int:
    """Measure, or read what was measured, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path("gpudiag-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-regret"
    )
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--p2p", default="on,off")
    parser.add_argument("--workloads", default="vgg16,resnet50,gpt,mlp")
    parser.add_argument("--devices", type=int)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--precision", default=None)
    options = parser.parse_args()
    settings = options.p2p.split(",")
    names = options.workloads.split(",")
    directory = options.source or options.output
    if options.source is None:
        for setting in settings:
            measure(directory / setting, names, options, p2p=setting == "on")
    worst_regret = worst_error = 0.0
    for setting in settings:
        for name in names:
            path = directory / setting / contest_file(name)
            if path.is_file():
                regret, error = show(read_json(path, Contest, CONTEST_SCHEMA), setting)
                worst_regret, worst_error = max(worst_regret, regret), max(worst_error, error)
    print(f"worst regret {worst_regret:.1f} %, worst error of a step time {worst_error:.0f} %")
    return 0 if worst_regret <= 2.0 else 1


def measure(run_dir: Path, names: list[str], options: argparse.Namespace, *, p2p: bool) -> None:
    """Train all workloads with all strategies, in one launch."""
    began = time.monotonic()
    prepared = pipeline.prepare(
        pipeline.Request(workload=_JOB, devices=options.devices, p2p=p2p, run_dir=run_dir, timeout_s=120.0)
    )
    prepared = pipeline.measure_links(prepared)
    devices = prepared.plan.processes
    chosen = candidates()
    plan = ContestPlan(
        device=prepared.plan.job.device,
        devices=devices,
        p2p=p2p,
        entries=tuple(
            Entry(
                workload=name,
                precision=options.precision,
                candidates=chosen,
                cannot=why_not(prepared.facts, chosen, devices),
                finalists=0,
                seconds=0.0,
            )
            for name in names
        ),
        least_rounds=options.rounds,
        most_rounds=options.rounds,
        block_ms=200.0,
        least_steps=3,
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / PLAN_FILE, plan)
    pipeline.train(prepared, lambda _: None)
    print(f"{run_dir}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def show(contest: Contest, setting: str) -> tuple[float, float]:
    """Print one workload's table; its regret and its worst error, in percent."""
    measured = {one.candidate.label: one for one in contest.turns if one.round_ms and one.cannot is None}
    means = {label: statistics.fmean(one.round_ms) for label, one in measured.items()}
    racing = {label: mean for label, mean in means.items() if label != "independent"}
    finalists = {one.label for one in finalists_of(contest.predictions, 3)} | {"independent"}
    few = msgspec.structs.replace(
        contest, turns=tuple(one for one in contest.turns if one.candidate.label in finalists)
    )
    found = judge(few)
    fastest = min(racing, key=lambda label: racing[label])
    regret = 100 * (racing[found.recommended] / racing[fastest] - 1)
    precise = f"batch {contest.batch_size}, {contest.precision}"
    print(f"\n`{contest.workload}`, {contest.devices} x {contest.device_name}, {precise}, peer access {setting}\n")
    print("| strategy | predicted ms | measured ms | error | would be measured |")
    print("| --- | ---: | ---: | ---: | --- |")
    worst = 0.0
    for one in contest.predictions:
        label = one.candidate.label
        if label not in means:
            why = one.cannot or next((turn.cannot for turn in contest.turns if turn.candidate == one.candidate), None)
            print(f"| {label} | — | — | — | {why or 'not measured'} |")
            continue
        predicted = one.step_ms or 0.0
        error = 100 * (predicted / means[label] - 1)
        worst = max(worst, abs(error))
        print(f"| {label} | {predicted:.2f} | {means[label]:.2f} | {error:+.0f} % | {_mark(label, finalists)} |")
    print(f"\nrecommended: {found.recommended} ({found.verdict}); fastest: {fastest}; regret {regret:.1f} %")
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in contest.seconds.items())
    print(f"seconds: {phases}")
    return regret, worst


def _mark(label: str, finalists: set[str]) -> str:
    return "yes" if label in finalists else ""


if __name__ == "__main__":
    sys.exit(main())
