"""Run a selftest or slow scripts several times, and fail if too few of their rows are right.

    python .ci/rows.py NAME --times 2 --rows 7 --least 8 --right 0.8 --kept DIR-{run} --rate "source" -- COMMAND...

A row is one tested fault. On cores shared with other jobs a single row may fail by chance, so that the test passes if
at least `--least` rows are right, of all `--times` runs of `--rows` rows each. Each run writes its rows to its `--kept`
directory: `gpudiag selftest` as selftest.json, `benchmarks/attach_scripts.py --keep` as rows.json. A run that writes
neither has no right rows.

Further runs are skipped if they cannot reach `--least` any more, or if, at the expected share `--right`, they would
miss it with a probability below 0.001. `{run}` in the command and in `--kept` is replaced by the number of the run. The
counts are printed and written to `build/ci/NAME.json`, next to the output of each run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from repeats import KEPT, record, run_once, tail

#: Highest probability that the skipped runs would have changed the outcome.
SELDOM = 1e-3


def too_few(rows: int, least: int, right: float) -> float:
    """Return the probability that fewer than `least` of independent rows are right, each with probability `right`."""
    counts = range(min(least, rows + 1))
    return sum(math.comb(rows, count) * right**count * (1 - right) ** (rows - count) for count in counts)


def rows_of(directory: Path) -> list[dict[str, object]]:
    """Return the rows that a run wrote to its `--kept` directory."""
    files = (directory / "selftest.json", directory / "rows.json")
    return [row for file in files if file.exists() for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def main(words: list[str] | None = None, kept: Path = KEPT) -> int:
    """Return 0 if at least `--least` rows are right, or almost certainly would be after the skipped runs; else 1.

    `words` are the arguments; None for the command line. `kept` is the directory of the counts and outputs.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--times", type=int, required=True, help="the maximum number of runs")
    parser.add_argument("--rows", type=int, required=True, help="the number of rows of each run")
    parser.add_argument("--least", type=int, required=True, help="the number of rows of all runs that have to be right")
    parser.add_argument("--right", type=float, required=True, help="the expected share of right rows")
    parser.add_argument("--kept", required=True, help="the directory that a run writes its rows to")
    parser.add_argument("--rate", required=True, help="the source of the expected share")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    runs, right = [], 0
    for number in range(asked.times):
        runs.append(run_once(asked.name, asked.command, number, kept))
        rows = rows_of(Path(asked.kept.replace("{run}", str(number))))
        for row in rows:
            print(f"{row['verdict']}\t{row['fault']}\t{'; '.join(row['why'])}")  # noqa: T201
        if not rows:
            print(tail(asked.name, number, kept))  # noqa: T201
        right += sum(row["verdict"] == "right" for row in rows)
        left = asked.rows * (asked.times - len(runs))  # rows of the runs that have not begun
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
