"""Compare the true cost of a TensorFlow strategy's communication with the cost in gpudiag's finding.

    python benchmarks/tensorflow_exchange.py --python TF_PYTHON --devices 4 [--strategies multi-worker,nccl,cpu-reduce]
        [--floor one|independent] [--workload resnet50] [--batch-size 64] [--rounds 1] [--output DIR]
        [-- OPTIONS OF gpudiag profile…]
    python benchmarks/tensorflow_exchange.py --from DIR

Run `gpudiag profile` with the baseline, and with each strategy on all devices. Rounds alternate between the baseline
and the strategies, so that drift of the machine affects all runs equally. The baseline runs on one device, or with
`--floor independent` on all devices without communication, in one process. The true cost is the mean unprofiled step of
a strategy minus that of the baseline, each a median over the rounds. The true cost includes communication, and
contention for everything else that devices share. CPU devices share their cores, so one CPU device is not a valid
baseline. The reported cost is the amount of `communication-bound` in the analysis, or 0 if there is no such finding.
With `--from` the table is built from existing runs.

TF_PYTHON is an interpreter with TensorFlow and msgspec, as `make tensorflow` installs it; on GPUs it needs
`tensorflow[and-cuda]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLOORS = ("one", "independent")
#: The strategy without communication, on any number of devices.
ALONE = "independent"
#: Time limit of a run in seconds; after this time the run counts as hung, because TensorFlow's profiler sometimes hangs
#: at the end of a recording.
LONGEST_S = 900
#: Requirement: largest relative difference of the reported cost to the true cost.
CLOSE = 0.25


def main() -> int:
    """Execute the runs that are missing, print the table, and write `result.json`; return 1 if a run failed."""
    options = _options()
    failed = [] if options.made else list(_run_all(options))
    rows = list(_rows(options.made or options.output))
    print(_table(rows))
    (options.made or options.output).joinpath("result.json").write_text(json.dumps(rows, indent=1) + "\n")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--strategies", default="multi-worker", help="separated by commas")
    parser.add_argument("--floor", choices=FLOORS, default="one")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("gpudiag-runs/tensorflow-exchange"))
    parser.add_argument("--from", dest="made", type=Path)
    parser.add_argument("rest", nargs="*", metavar="OPTION", help="after --: further options of gpudiag profile")
    return parser.parse_args()


def _run_all(options: argparse.Namespace) -> Iterator[str]:
    """Run every missing run; yield the names of failed runs."""
    for round_number in range(options.rounds):
        for strategy in (options.floor, *options.strategies.split(",")):
            directory = options.output / f"{strategy}-{round_number}"
            if not (directory / "analysis.json").is_file() and not _run(options, strategy, directory):
                yield directory.name


def _run(options: argparse.Namespace, strategy: str, directory: Path) -> bool:
    """Profile one strategy; return False if the run failed or timed out."""
    command = [sys.executable, "-m", "gpudiag", "profile", options.workload, "--framework", "tensorflow"]
    command += ["--strategy", ALONE if strategy in FLOORS else strategy]
    command += ["--devices", "1" if strategy == "one" else str(options.devices)]
    command += ["--batch-size", str(options.batch_size), "--python", options.python, "--output", str(directory)]
    command += ["--no-probe", "--json", *options.rest]
    directory.parent.mkdir(parents=True, exist_ok=True)
    print("$", *command, file=sys.stderr)
    with (directory.parent / f"{directory.name}.json").open("wb") as out:
        try:
            return subprocess.run(command, stdout=out, timeout=LONGEST_S, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def _rows(root: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per strategy with medians over the rounds; the baseline is the first row.

    `lanes` is the number of devices, `cost_ms` the true and `found_ms` the reported cost of communication, and
    `communication_ms` the mean of the communication buckets over devices. A cost is None for the baseline, or if step
    times are unknown.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(root.glob("*-*/analysis.json")):
        runs.setdefault(path.parent.name.rpartition("-")[0], []).append(json.loads(path.read_text()))
    floor = next((name for name in FLOORS if name in runs), "")
    alone = _median(runs.get(floor, []), _unprofiled)
    for strategy in sorted(runs, key=lambda name: (name != floor, name)):
        analyses = runs[strategy]
        step, found = _median(analyses, _unprofiled), _median(analyses, _found)
        cost = None if strategy == floor or step is None or alone is None else step - alone
        buckets = [device["buckets_ms"] for analysis in analyses for device in analysis["devices"]]
        yield {
            "strategy": strategy,
            "lanes": len(analyses[0]["devices"]),
            "unprofiled_ms": step,
            "profiled_ms": _median(analyses, lambda analysis: analysis["steps"]["mean_ms"]),
            "cost_ms": cost,
            "found_ms": None if strategy == floor else found,
            "found_share": found / cost if cost and found is not None else None,
            "communication_ms": statistics.mean(
                bucket["communication_transfer"] + bucket["communication_wait"] for bucket in buckets
            ),
            "first": next((finding["code"] for finding in analyses[0]["findings"]), "-"),
        }


def _unprofiled(analysis: dict[str, Any]) -> float | None:
    value = analysis["steps"]["unprofiled_mean_ms"]
    return None if value is None else float(value)


def _found(analysis: dict[str, Any]) -> float:
    amounts = [
        finding["recoverable_ms_per_step"]
        for finding in analysis["findings"]
        if finding["code"] == "communication-bound"
    ]
    return float(amounts[0] or 0.0) if amounts else 0.0


def _median(analyses: list[dict[str, Any]], value: Any) -> float | None:
    values = [number for number in map(value, analyses) if number is not None]
    return statistics.median(values) if values else None


def _table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    head = (
        "| strategy | lanes | unprofiled ms | profiled ms | exchange costs ms | found ms | share | in table | first |"
    )
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for row in rows:
        share = row["found_share"]
        good = "" if share is None else " (within)" if abs(share - 1) <= CLOSE else " (outside)"
        cells = [row["strategy"], str(row["lanes"])]
        cells += [_number(row[name]) for name in ("unprofiled_ms", "profiled_ms", "cost_ms", "found_ms")]
        cells += [
            "-" if share is None else f"{100 * share:.0f} %{good}",
            _number(row["communication_ms"]),
            row["first"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
