"""Run a nondeterministic test several times, and fail if too few runs pass.

    python .ci/repeats.py NAME --times 3 --least 2 --rate "why this often" -- COMMAND...

Every run counts; a failed run is not retried. Further runs are skipped when enough have passed, or when too many have
failed. The counts are printed and written to `build/ci/NAME.json`, next to the output of each run. `{run}` in the
command is replaced by the number of the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

KEPT = Path(__file__).parents[1] / "build" / "ci"


def run_once(name: str, command: list[str], number: int, kept: Path) -> dict[str, float]:
    """Run the command once, and return its exit code and duration. Write its output to `NAME-NUMBER.log` in `kept`."""
    kept.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (kept / f"{name}-{number}.log").open("wb") as log:
        words = [word.replace("{run}", str(number)) for word in command]
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    return {"exit_code": code, "seconds": round(time.monotonic() - begun, 1)}


def tail(name: str, number: int, kept: Path) -> str:
    """Return the last 4,000 characters of a run's output."""
    return (kept / f"{name}-{number}.log").read_text(encoding="utf-8", errors="replace")[-4000:]


def record(name: str, kept: Path, counts: dict[str, object]) -> None:
    """Write the options and the outcome to `NAME.json` in the directory `kept`."""
    (kept / f"{name}.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


def main(words: list[str] | None = None, kept: Path = KEPT) -> int:
    """Return 0 if at least `--least` runs passed, else 1. `words` are the arguments; None for the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--least", type=int, required=True, help="the number of runs that have to pass")
    parser.add_argument("--rate", required=True, help="the failure rate that this allows for, and its source")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    runs = []
    for number in range(asked.times):
        runs.append(run_once(asked.name, asked.command, number, kept))
        passed = sum(run["exit_code"] == 0 for run in runs)
        if passed >= asked.least or len(runs) - passed > asked.times - asked.least:
            break
    record(asked.name, kept, {**vars(asked), "passed": passed, "runs": runs})
    wanted = f"asked: at least {asked.least} of {asked.times} ({asked.rate})"
    print(f"{asked.name}: {passed} of {len(runs)} passed; {wanted}")  # noqa: T201
    for number, run in enumerate(runs):
        if run["exit_code"]:
            print(f"-- run {number}: exit code {run['exit_code']}\n{tail(asked.name, number, kept)}")  # noqa: T201
    return int(passed < asked.least)


if __name__ == "__main__":
    sys.exit(main())
