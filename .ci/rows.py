"""Count the right rows of several selftests, or of several runs of slow scripts, and hold them to a stated rate.

    python .ci/rows.py --least 8 DIRECTORY...

Each directory is what a `gpudiag selftest` wrote (selftest.json), or `benchmarks/attach_scripts.py --keep` (rows.json);
one without either has no rows, and so none that are right. Whether one row is right on cores that others share is
chance now and then; that most are is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main(words: list[str] | None = None) -> int:
    """Return 0 where at least as many rows are right as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, required=True, help="how many rows have to be right, of all runs together")
    parser.add_argument("directories", nargs="+", type=Path)
    asked = parser.parse_args(words)
    rows = [
        row
        for directory in asked.directories
        for file in (directory / "selftest.json", directory / "rows.json")
        if file.exists()
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]
    ]
    right = sum(row["verdict"] == "right" for row in rows)
    for row in rows:
        print(f"{row['verdict']}\t{row['fault']}\t{'; '.join(row['why'])}")  # noqa: T201
    print(f"{right} of {len(rows)} rows right; asked: at least {asked.least}")  # noqa: T201
    return int(right < asked.least)


if __name__ == "__main__":
    sys.exit(main())
