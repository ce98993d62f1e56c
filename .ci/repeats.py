"""Run what is uncertain by nature several times, and hold it to a stated rate.

    python .ci/repeats.py NAME --times 3 --least 2 --rate "why this often" -- COMMAND...

Every run counts; none is tried again because it failed. They end when enough have passed, or no longer can: further
runs would change nothing. The counts are printed and kept as `build/ci/NAME.json`, the output of each run beside it.
`{run}` in the command is the number of the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

KEPT = Path(__file__).parents[1] / "build" / "ci"


def made(name: str, command: list[str], number: int, kept: Path) -> dict[str, float]:
    """Make one run: how it ended, and after how long. What it said is kept as `NAME-NUMBER.log`."""
    kept.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (kept / f"{name}-{number}.log").open("wb") as log:
        words = [word.replace("{run}", str(number)) for word in command]
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    return {"exit_code": code, "seconds": round(time.monotonic() - begun, 1)}


def tail(name: str, number: int, kept: Path) -> str:
    """The end of what a run said."""
    return (kept / f"{name}-{number}.log").read_text(encoding="utf-8", errors="replace")[-4000:]


def record(name: str, kept: Path, counts: dict[str, object]) -> None:
    """Keep what was asked, and what came of it."""
    (kept / f"{name}.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


def main(words: list[str] | None = None, kept: Path = KEPT) -> int:
    """Return 0 where at least as many runs passed as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--least", type=int, required=True, help="how many of them have to pass")
    parser.add_argument("--rate", required=True, help="the rate of failures that this allows for, and where it is from")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    runs = []
    for number in range(asked.times):
        runs.append(made(asked.name, asked.command, number, kept))
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
