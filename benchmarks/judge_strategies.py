"""Compare the cost of communication that gpudiag finds with the result of an ablation, for strategies of one workload.

    python benchmarks/judge_strategies.py gpt [--strategies nccl,ps-cpu] [--devices 4] [--keep DIR] [--seconds 500]

Each strategy trains under `gpudiag profile WORKLOAD --strategy S`. A strategy name that ends in `-off` trains without
peer access (`--no-p2p`). The true cost is the strategy's unprofiled step time minus that of `--strategy independent`,
which trains without communication. `independent` trains first and last, and its step time is the mean of both runs. The
found cost is the total amount of findings `communication-bound`, or 0 if there is none. An amount is right within 15 %
or 1 ms. The first finding of a strategy that costs at least 5 % of the step must be `communication-bound`.

`--keep DIR` receives `rows.json` after each strategy, `reports.tar` and `runs-N.tar` (the run directories, at most
15 MB a file). `--options` is passed on to each `gpudiag profile`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from judge_scripts import Archives, RunError, run
from rich.console import Console
from rich.table import Table

ABLATION = "independent"
STRATEGIES = "nccl,nccl-off,gloo,ps-cpu,ps-gpu,ps-gpu-off,data-parallel,fsdp,fsdp-off,cpu-reduce,copies,copies-off"
OPTIONS = "--precision bf16 --data host --steps 40"
TOLERANCE, TOLERANCE_MS, LEAST = 0.15, 1.0, 0.05
WITHOUT_PEERS = "-off"


def train(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train with one strategy, and return its unprofiled step time, first finding, and found cost of communication."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "gpudiag", "profile", options.workload, *shlex.split(options.options)]
    command += ["--strategy", name.removesuffix(WITHOUT_PEERS), "--output", str(folder / "run")]
    command += ["--no-p2p"] if name.endswith(WITHOUT_PEERS) else []
    command += ["--devices", str(options.devices)] if options.devices else []
    began = time.perf_counter()
    (folder / "report.txt").write_text(run(command, options.each, folder / "profile.log"), encoding="utf-8")
    analysis = json.loads((folder / "run" / "analysis.json").read_text(encoding="utf-8"))
    findings = analysis["findings"]
    found = [finding for finding in findings if finding["code"] == "communication-bound"]
    first: dict[str, Any] = findings[0] if findings else {}
    return {
        "strategy": name,
        "step_ms": analysis["steps"]["unprofiled_mean_ms"],
        "first": first.get("code"),
        "cause": first.get("cause"),
        "ranks": first.get("ranks"),
        "found_ms": sum(finding["recoverable_ms_per_step"] or 0.0 for finding in found),
        "took_s": round(time.perf_counter() - began, 1),
    }


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all rows, and add true costs and verdicts to the rows of strategies.

    Rows of the baseline and of failed runs are unchanged, as is every row if no run of the baseline succeeded.
    """
    alone = [row["step_ms"] for row in rows if row["strategy"] == ABLATION and "step_ms" in row]
    judged = []
    for row in rows:
        if row["strategy"] == ABLATION or "step_ms" not in row or not alone:
            judged.append(row)
            continue
        cost_ms = row["step_ms"] - statistics.mean(alone)
        right = row["first"] == "communication-bound" or cost_ms < LEAST * row["step_ms"]
        within = abs(row["found_ms"] - cost_ms) <= max(TOLERANCE * cost_ms, TOLERANCE_MS)
        judged.append({**row, "true_ms": cost_ms, "code_right": right, "amount_right": within})
    return judged


def draw(rows: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each strategy."""
    table = Table("strategy", "step ms", "costs ms", "found ms", "first finding", "amount")
    for row in rows:
        table.add_row(
            row["strategy"],
            f"{row['step_ms']:.1f}" if "step_ms" in row else row["failed"][:60],
            f"{row['true_ms']:.1f}" if "true_ms" in row else "",
            f"{row['found_ms']:.1f}" if "true_ms" in row else "",
            " ".join(str(row[key]) for key in ("first", "cause") if row.get(key)),
            {True: "within", False: "off"}.get(row.get("amount_right", ""), ""),
        )
    return table


def main() -> None:
    """Train and judge all strategies, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="a workload of gpudiag profile")
    parser.add_argument("--strategies", default=STRATEGIES, help="names with commas between them; default: all")
    parser.add_argument("--devices", type=int, help="GPUs (or CPU processes); default: all GPUs")
    parser.add_argument("--options", default=OPTIONS, help="other options of gpudiag profile; default: %(default)s")
    parser.add_argument("--keep", type=Path, help="write rows, reports and run directories here")
    parser.add_argument("--seconds", type=float, default=500.0, help="start no further strategy after this long")
    parser.add_argument("--each", type=float, default=90.0, help="give up one run after this many seconds")
    options = parser.parse_args()
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch) / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        archives = Archives(keep)
        for place, name in enumerate([ABLATION, *options.strategies.split(","), ABLATION]):
            if time.perf_counter() - began > options.seconds and name != ABLATION:
                print(f"no time left for {name}", flush=True)
                continue
            folder = Path(scratch) / f"{place}-{name}"
            try:
                row = train(name, options, folder)
            except (RunError, ValueError, OSError, KeyError) as error:
                row = {"strategy": name, "failed": f"{type(error).__name__}: {error}"[:300]}
            row["left_out"] = archives.keep(folder.name, folder)
            rows.append(row)
            (keep / "rows.json").write_text(json.dumps(judge(rows), indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)
    rows = judge(rows)
    Console(width=120).print(draw(rows))
    counted = [row for row in rows if "amount_right" in row]
    within, right = (sum(row[key] for row in counted) for key in ("amount_right", "code_right"))
    print(f"{within} of {len(counted)} amounts within 15 % or 1 ms; {right} first findings right", flush=True)


if __name__ == "__main__":
    main()
