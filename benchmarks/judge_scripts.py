"""Score gpudiag's first finding on scripts of real libraries with known problems, on one GPU.

    python benchmarks/judge_scripts.py [--directory DIR] [--scripts a,b] [--keep DIR] [--seconds 300] [--tiny]

`expected.json` contains the problem and the correct finding of each script, and was written before the scripts ran.
`expected.json` is beside the scripts (in `library_scripts`, or with `--directory` in `library_scripts_2`, `_3`, `_4` or
`_5`). Each script runs twice: under `alternating_blocks.py`, which measures the cost of its problem, and unchanged
under `gpudiag profile --stop-after -- python SCRIPT`. A problem that costs less than 3 % of the step on this machine is
not counted. The verdict on a script without a problem is right if the report begins with `compute-bound`, and no
finding of higher severity than `info` promises savings of 5 % of the step.

`--keep DIR` receives `results.json` after each script, `reports.tar` (report and output of each) and `runs-N.tar` (the
run directories, at most 15 MB a file). `--tiny` runs everything on a CPU, with models that are too small to judge
findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from expectation import main_finding
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "library_scripts"
#: A problem that costs a smaller share of the step is not counted.
LEAST_PERCENT = 3.0
#: Largest relative difference of a right amount to the true amount.
TOLERANCE = 0.3
#: Size of an archive of run directories in bytes, and the maximum number of archives.
ARCHIVE_BYTES, ARCHIVES = 15_000_000, 3


class RunError(Exception):
    """A program failed; the message contains its last lines."""


def run(
    command: list[str],
    seconds: float,
    log: Path,
    *,
    folder: Path = HERE.parent,
    environment: dict[str, str] | None = None,
) -> str:
    """Run a program in a new session with standard error in `log`; return its standard output.

    Raises:
        RunError: the program took longer than `seconds`, or its exit code was not 0.
    """
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            _stop(process)
            raise RunError(f"not done after {seconds:.0f} s") from None
    if process.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise RunError(f"exit code {process.returncode}: {' | '.join(last)}")
    return output


def _stop(process: subprocess.Popen[str]) -> None:
    """End a program and its children with a signal; gpudiag then also ends its job, which has a separate session."""
    for number, patience in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 8.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience)
            return


def measure(script: dict[str, Any], arguments: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    """Return the result of `alternating_blocks.py` for the script, an entry of `expected.json`."""
    block, skip = script["block"]
    program = [sys.executable, str(HERE / "alternating_blocks.py"), "--block", str(block), "--skip", str(skip)]
    program += ["--seconds", "3.5", *(["--by-epoch"] if script.get("by_epoch") else [])]
    output = run([*program, script["path"], *arguments], seconds, folder / "truth.log")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def profile(script: dict[str, Any], arguments: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    """Return the analysis of the unchanged script; its report is written to `report.txt`."""
    run_dir = folder / "run"
    program = [sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(run_dir), "--"]
    command = [*program, sys.executable, script["path"], *arguments]
    (folder / "script.log").write_text(run(command, seconds, folder / "report.txt"), encoding="utf-8")
    analysis: dict[str, Any] = json.loads((run_dir / "analysis.json").read_text(encoding="utf-8"))
    return analysis


def judge(script: dict[str, Any], truth: dict[str, Any], analysis: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the first finding of the report and its `verdict`.

    The verdict is "right", "wrong", "silent" (no finding for a script without a problem) or "no problem here" (the
    problem costs too little). `amount_right` is added if both the true and the reported cost are known.

    Args:
        script: an entry of `expected.json`.
        truth: the result of `alternating_blocks.py`; empty if unknown.
        analysis: the content of `analysis.json`.
    """
    findings = analysis["findings"]
    first = main_finding(findings) or {}
    gains = [
        finding
        for finding in findings
        if finding["severity"] != "info" and (finding["recoverable_percent"] or 0.0) >= 5.0
    ]
    row: dict[str, Any] = {
        "code": first.get("code"),
        "cause": first.get("cause"),
        "place": first.get("place"),
        "confidence": first.get("confidence"),
        "found_ms": first.get("recoverable_ms_per_step"),
        "others": [
            [finding["code"], finding["cause"], finding["recoverable_ms_per_step"]]
            for finding in findings
            if finding is not first
        ],
        "validity": [warning["code"] for warning in analysis["validity"]],
    }
    if script["problem"] is None:
        right = row["code"] in script["codes"] and not gains
        return {**row, "verdict": "right" if right else "silent" if not findings else "wrong"}
    true_ms = truth.get("costs_ms")
    if true_ms is not None and true_ms < LEAST_PERCENT / 100 * truth["problem_ms"]:
        return {**row, "verdict": "no problem here"}
    row["verdict"] = "right" if row["code"] in script["codes"] else "wrong"
    if true_ms is not None and row["found_ms"] is not None:
        row["amount_right"] = abs(row["found_ms"] - true_ms) <= TOLERANCE * true_ms
    return row


class Archives:
    """Tar archives of scripts' files: reports, and at most `most` archives of run directories of limited size."""

    def __init__(self, directory: Path, most: int = ARCHIVES) -> None:
        self.directory, self.number, self.most = directory, 1, most

    def keep(self, script: str, folder: Path) -> list[str]:
        """Add a script's files; return the names of files that did not fit."""
        with tarfile.open(self.directory / "reports.tar", "a") as reports:
            for path in sorted(folder.glob("*.*")):
                reports.add(path, f"{script}/{path.name}", recursive=False)
        run_dir = folder / "run"
        # The smallest files come first, so that as many files as possible fit.
        files = sorted((path for path in run_dir.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        names = [str(path.relative_to(run_dir)) for path in files]
        return [name for path, name in zip(files, names, strict=True) if not self._add(path, f"{script}/{name}")]

    def _add(self, path: Path, name: str) -> bool:
        """Add a file to the current archive, or to a new one; return False if no archive has room."""
        size = path.stat().st_size + 2048  # tar's header and padding
        archive = self.directory / f"runs-{self.number}.tar"
        if archive.exists() and archive.stat().st_size + size > ARCHIVE_BYTES:
            if self.number == self.most:
                return False
            self.number += 1
            archive = self.directory / f"runs-{self.number}.tar"
        if size > ARCHIVE_BYTES:
            return False
        with tarfile.open(archive, "a") as runs:
            runs.add(path, name)
        return True


def try_script(script: dict[str, Any], scratch: Path, *, tiny: bool, seconds: float) -> dict[str, Any]:
    """Measure, profile and judge one script; if a run fails, the result contains the error."""
    name = Path(script["script"]).stem
    folder = scratch / name
    folder.mkdir(parents=True)
    options = ["--device", "cpu", "--tiny"] if tiny else []
    options += ["--output", str(scratch / "output" / name)]
    row: dict[str, Any] = {"script": name, "problem": script["problem"], "expected": script["codes"]}
    truth: dict[str, Any] = {}
    began = time.perf_counter()
    try:
        row["truth"] = truth = measure(script, options, folder, seconds)
    except (RunError, ValueError, OSError) as error:
        row["truth_failed"] = str(error)
    between = time.perf_counter()
    try:
        analysis = profile(script, options, folder, seconds)
        steps = analysis["steps"]
        row["steps"] = {key: steps[key] for key in ("median_ms", "unprofiled_mean_ms", "analysed")}
        row |= judge(script, truth, analysis)
    except (RunError, ValueError, OSError, KeyError) as error:
        row |= {"verdict": "failed", "profile_failed": f"{type(error).__name__}: {error}"}
    row["took_s"] = [round(between - began, 1), round(time.perf_counter() - between, 1)]
    shutil.rmtree(scratch / "output" / name, ignore_errors=True)
    return row


def draw(rows: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each script."""
    table = Table("script", "true ms", "of", "first finding", "ms", "verdict", "amount")
    for row in rows:
        truth = row.get("truth", {})
        cost = "" if row["problem"] is None else f"{truth.get('costs_ms', '?')}"
        found_ms = row.get("found_ms")
        table.add_row(
            row["script"],
            cost,
            f"{truth.get('problem_ms', '?')}",
            " ".join(str(row[key]) for key in ("code", "cause") if row.get(key))
            or row.get("profile_failed", "none")[:60],
            "" if found_ms is None else f"{found_ms:.1f}",
            row["verdict"],
            {True: "right", False: "off"}.get(row.get("amount_right", ""), ""),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=SCRIPTS, help="the scripts with their expected.json")
    parser.add_argument("--scripts", help="names without .py, with commas between them; default: all")
    parser.add_argument("--keep", type=Path, help="write results, reports and run directories here")
    parser.add_argument("--seconds", type=float, default=300.0, help="start no further script after this long")
    parser.add_argument("--each", type=float, default=45.0, help="give up one run of a script after this long")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, with small models")
    given = parser.parse_args()
    directory = given.directory.resolve()
    scripts = json.loads((directory / "expected.json").read_text(encoding="utf-8"))["scripts"]
    scripts = [{**entry, "path": str(directory / entry["script"])} for entry in scripts]
    if given.scripts:
        scripts = [entry for entry in scripts if Path(entry["script"]).stem in given.scripts.split(",")]
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        keep = given.keep or Path(scratch) / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        archives = Archives(keep)
        for script in scripts:
            if time.perf_counter() - began > given.seconds:
                print(f"no time left for {script['script']}", flush=True)
                continue
            row = try_script(script, Path(scratch), tiny=given.tiny, seconds=given.each)
            row["left_out"] = archives.keep(row["script"], Path(scratch) / row["script"])
            rows.append(row)
            (keep / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)
    Console(width=140).print(draw(rows))
    counted = [row for row in rows if row["verdict"] != "no problem here"]
    print(f"{sum(row['verdict'] == 'right' for row in counted)} of {len(counted)} right first", flush=True)


if __name__ == "__main__":
    main()
