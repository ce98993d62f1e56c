"""Run a selftest, or slow scripts, until it is decided whether enough of their rows are right, and hold them to a rate.

    python .ci/rows.py NAME --times 2 --rows 7 --least 8 --right 0.8 --kept DIR-{run} --rate "whence" -- COMMAND...

Each run leaves in its `--kept` what a `gpudiag selftest` writes (selftest.json), or `attach_scripts.py --keep` in
benchmarks (rows.json); one without either has no rows, and so none that are right. Whether one row is right on cores
that others share is chance now and then; that most are is not: `--least` rows of all `--times` runs of `--rows` each.
No more runs are made than decide that. They end when those left cannot bring enough right rows any more, and when, at
the stated share of right rows, they would bring too few less than once in 1,000 times. `{run}` in the command and in
`--kept` is the number of the run. The counts are printed and kept as `build/ci/NAME.json`, each run's output beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from repeats import KEPT, made, record, tail

#: So seldom would runs that are not made have changed the outcome.
SELDOM = 1e-3


def too_few(rows: int, least: int, right: float) -> float:
    """The probability that of so many independent rows fewer than `least` are right, each with probability `right`."""
    counts = range(min(least, rows + 1))
    return sum(math.comb(rows, count) * right**count * (1 - right) ** (rows - count) for count in counts)


def rows_of(directory: Path) -> list[dict[str, object]]:
    """What a run left there."""
    files = (directory / "selftest.json", directory / "rows.json")
    return [row for file in files if file.exists() for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def main(words: list[str] | None = None, kept: Path = KEPT) -> int:
    """Return 0 where at least as many rows are right as were asked for, or would be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--times", type=int, required=True, help="the most runs")
    parser.add_argument("--rows", type=int, required=True, help="how many rows each run has")
    parser.add_argument("--least", type=int, required=True, help="how many have to be right, of all runs together")
    parser.add_argument("--right", type=float, required=True, help="the share of rows that are right as a rule")
    parser.add_argument("--kept", required=True, help="the directory that a run writes")
    parser.add_argument("--rate", required=True, help="where that share is from")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    runs, right = [], 0
    for number in range(asked.times):
        runs.append(made(asked.name, asked.command, number, kept))
        rows = rows_of(Path(asked.kept.replace("{run}", str(number))))
        for row in rows:
            print(f"{row['verdict']}\t{row['fault']}\t{'; '.join(row['why'])}")  # noqa: T201
        if not rows:
            print(tail(asked.name, number, kept))  # noqa: T201
        right += sum(row["verdict"] == "right" for row in rows)
        left = asked.rows * (asked.times - len(runs))
        risk = too_few(left, asked.least - right, asked.right)
        if risk < SELDOM or right + left < asked.least:
            break
    record(asked.name, kept, {**vars(asked), "runs": runs, "rows_right": right, "rows_left": left, "too_few": risk})
    print(f"{asked.name}: {right} of {len(runs) * asked.rows} rows right", end="")  # noqa: T201
    print(f"; asked: at least {asked.least} of {asked.times * asked.rows} ({asked.rate})")  # noqa: T201
    print(f"of the {left} rows left too few would be right with a probability of {risk:.2g}")  # noqa: T201
    return int(risk >= SELDOM)


if __name__ == "__main__":
    sys.exit(main())
