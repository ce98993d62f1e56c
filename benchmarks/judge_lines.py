"""Judge the source lines that findings name for a small job with one fault on a known line.

    python benchmarks/judge_lines.py [--faults saves,item] [--ms 20] [--processes 2] [--lines-only] [--keep DIR]

For each fault of `line_faults.py`, the unchanged script runs under `gpudiag profile --stop-after`. Before and after
this run, `alternating_blocks.py` measures the fault's share of the step, with the same number of processes. The true
cost is the mean of these shares times the unprofiled step time of the profiled run, because steps differ between runs.
A line is right if the first finding with a line names a line that is marked with the fault, or a line of `spin` if the
marked line calls `spin`. An amount is right within 15 % or 1 ms. The cost of recording lines is the difference between
the step times with line events and without the profiler in the same run. `--script` judges another program, such as
`more_line_faults.py`. With `--lines-only` true costs are not measured, and no amount is judged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "line_faults.py"
FAULTS = "saves,sleeps,logs,metric,item,lock,hook,getitem,getitem-1,getitem-4,collate,recompiles"
#: Largest difference of a right amount to the true cost: a share of the true cost, or milliseconds.
TOLERANCE, TOLERANCE_MS = 0.15, 1.0
#: Values of the events that mark the end of a step, and the beginning of gpudiag's own work.
STEP, PAUSE = -3, -4


def marked_lines(fault: str, script: Path = SCRIPT) -> set[int]:
    """Return the right lines for a fault: the marked lines, and the lines of `spin` if a marked line calls `spin`."""
    lines = script.read_text(encoding="utf-8").splitlines()
    faults = {number: line.partition("# fault:")[2].split() for number, line in enumerate(lines, 1)}
    marked = {number for number, names in faults.items() if fault in names}
    if any("spin(" in lines[number - 1] for number in marked):
        begin = next(number for number, line in enumerate(lines, 1) if line.startswith("def spin"))
        marked |= set(range(begin + 2, begin + 7))  # its body, after the `def` and the docstring
    return marked


def run(command: list[str], seconds: float) -> str:
    """Run a program and return its standard output. Raises RuntimeError with the last lines of a failed program."""
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(" | ".join((done.stderr or done.stdout).strip().splitlines()[-2:]))
    return done.stdout


def judge(fault: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the row of one fault: its true cost, the first finding that names a line, and the verdicts.

    `first` is true if that finding is also the first of all findings except `compute-bound`. The row has no line if no
    finding names one.
    """
    program = [str(options.script), "--fault", fault, "--ms", str(options.ms), "--steps", "4000"]
    start = [sys.executable]
    if options.processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.processes)]
    blocks = [*start, str(HERE / "alternating_blocks.py")]
    truths = [] if options.lines_only else [true_cost(blocks, program, options)]
    profile = [sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(folder), "--"]
    run([*profile, *start, *program], options.each)
    if truths:
        truths.append(true_cost(blocks, program, options))
    analysis = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    findings = [finding for finding in analysis["findings"] if finding["code"] != "compute-bound"]
    first = next((finding for finding in findings if finding.get("source")), None)
    unprofiled_ms = analysis["steps"]["unprofiled_mean_ms"]
    row: dict[str, Any] = {"fault": fault, "unprofiled_ms": unprofiled_ms}
    if truths:
        shares = [each["costs_ms"] / each["problem_ms"] for each in truths]
        row |= {"true_ms": unprofiled_ms * statistics.mean(shares)}
        row |= {"step_ms": statistics.mean(each["problem_ms"] for each in truths)}
        row |= {"true_ms_before_and_after": [each["costs_ms"] for each in truths]}
    row["lines_overhead_percent"] = 100 * (line_step_ms(folder) / unprofiled_ms - 1)
    if first is not None:
        row |= {
            "code": first["code"],
            "first": first is findings[0],
            "line": first["source"]["line"],
            "line_right": first["source"]["line"] in marked_lines(fault, options.script),
            "found_ms": first["recoverable_ms_per_step"],
        }
        if truths:
            error_ms = abs(first["recoverable_ms_per_step"] - row["true_ms"])
            row["amount_right"] = error_ms <= max(TOLERANCE_MS, TOLERANCE * row["true_ms"])
    return row | verdict_of(row)


def verdict_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return `verdict` and `why` of a row, as `.ci/rows.py` reads them."""
    why = [row["failed"]] if "failed" in row else []
    if not why and not row.get("line_right"):
        why = [f"line {row.get('line', 'none')} of {row.get('code', 'no finding')}"]
    if not row.get("amount_right", True):
        why.append(f"{row['found_ms']:.1f} of {row['true_ms']:.1f} ms")
    return {"verdict": "wrong" if why else "right", "why": why}


def true_cost(start: list[str], program: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Return the fault's cost (`costs_ms`) and the step time with it (`problem_ms`) in ms, from alternating blocks."""
    seconds = "inf" if options.processes > 1 else "3"  # no limit, so that all ranks measure the same blocks
    # More steps are skipped than workers prepare batches (at most 8).
    out = run([*start, "--block", "24", "--skip", "12", "--seconds", seconds, *program], options.each)
    result: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    return result


def line_step_ms(run_dir: Path) -> float:
    """Return the median time in ms of steps with recorded lines, without the first two, which record every line.

    If there are only these two, they count. `ns` of an event is the time since the previous event. gpudiag's own work
    between two steps does not count.
    """
    with gzip.open(run_dir / "lines" / "rank0.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["sections"][0]["events"]
    at_ns, begins, lengths = 0, 0, []
    for ns, value in zip(events["ns"], events["value"], strict=True):
        at_ns += ns
        if value == PAUSE and begins:
            lengths.append((at_ns - begins) / 1e6)
        if value == STEP:
            begins = at_ns
    return float(statistics.median(lengths[2:] or lengths))


def main() -> None:
    """Judge all faults, and print a table and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default=FAULTS, help="names with commas between them; default: all")
    parser.add_argument("--script", type=Path, default=SCRIPT, help="the program; default: line_faults.py")
    parser.add_argument("--ms", type=float, default=20.0, help="cost of a fault where it can be chosen")
    parser.add_argument("--processes", type=int, default=1, help="number of ranks under torchrun")
    parser.add_argument("--lines-only", action="store_true", help="do not measure true costs")
    parser.add_argument("--each", type=float, default=90.0, help="limit of each program in seconds")
    parser.add_argument("--keep", type=Path, help="write rows.json and the run directories here")
    options = parser.parse_args()
    rows = []
    table = Table("fault", "true ms", "of", "finding", "ms", "line", "amount", "overhead %")
    with tempfile.TemporaryDirectory() as scratch:
        for fault in options.faults.split(","):
            folder = Path(scratch) / fault
            try:
                row = judge(fault, options, folder)
            except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                row = {"fault": fault, "failed": f"{type(error).__name__}: {error}"[:300]}
                row |= verdict_of(row)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / "rows.json").write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
                if folder.is_dir():
                    with tarfile.open(options.keep / "runs.tar", "a") as runs:
                        runs.add(folder, fault)
            table.add_row(
                fault,
                f"{row.get('true_ms', '?')}",
                f"{row.get('step_ms', '?')}",
                str(row.get("code", row.get("failed", "none"))),
                f"{row['found_ms']:.1f}" if row.get("found_ms") is not None else "",
                "right" if row.get("line_right") else f"{row.get('line', 'none')}",
                "right" if row.get("amount_right") else "off" if "amount_right" in row else "",
                f"{row.get('lines_overhead_percent', float('nan')):.1f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
