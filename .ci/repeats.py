"""Run what is uncertain by nature several times, and hold it to a stated rate.

    python .ci/repeats.py NAME --times 3 --least 2 --rate "why this often" -- COMMAND...

Every run counts; none is tried again because it failed. They end when enough have passed, or no longer can: further
runs would change nothing. With `--least 0` all are made. The counts are printed and kept as `build/ci/NAME.json`, the
output of each run beside it. `{run}` in the command is the number of the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

KEPT = Path(__file__).parents[1] / "build" / "ci"


def main(words: list[str] | None = None, kept: Path = KEPT) -> int:
    """Return 0 where at least as many runs passed as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--least", type=int, required=True, help="how many of them have to pass")
    parser.add_argument("--rate", required=True, help="the rate of failures that this allows for, and where it is from")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    kept.mkdir(parents=True, exist_ok=True)
    runs = []
    for run in range(asked.times):
        begun = time.monotonic()
        command = [word.replace("{run}", str(run)) for word in asked.command]
        with (kept / f"{asked.name}-{run}.log").open("wb") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        runs.append({"exit_code": code, "seconds": round(time.monotonic() - begun, 1)})
        passed = sum(run["exit_code"] == 0 for run in runs)
        if 0 < asked.least <= passed or len(runs) - passed > asked.times - asked.least:
            break
    record = {
        "name": asked.name,
        "command": asked.command,
        "rate": asked.rate,
        "least": asked.least,
        "times": asked.times,
        "passed": passed,
        "runs": runs,
    }
    (kept / f"{asked.name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    wanted = f"asked: at least {asked.least} of {asked.times} ({asked.rate})"
    print(f"{asked.name}: {passed} of {len(runs)} passed; {wanted}")  # noqa: T201
    for number, run in enumerate(runs):
        if run["exit_code"]:
            log_tail = (kept / f"{asked.name}-{number}.log").read_text(encoding="utf-8", errors="replace")[-4000:]
            print(f"-- run {number}: exit code {run['exit_code']}\n{log_tail}")  # noqa: T201
    return int(passed < asked.least)


if __name__ == "__main__":
    sys.exit(main())
