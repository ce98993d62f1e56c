"""Run mutants from number 0 on, and exit with 1 if one fails: `python -m tests.fuzzing [MUTANTS]`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.fuzzing.runs import outcomes, work


def main() -> int:
    """Run the mutants on all CPUs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mutants", type=int, nargs="?", default=10_000)
    parser.add_argument("--worker", type=int, nargs=3, metavar=("FROM", "TO", "STEP"))
    given = parser.parse_args()
    if given.worker:
        work(range(*given.worker))
        return 0
    begun, workers = time.monotonic(), len(os.sched_getaffinity(0))
    shares = [range(first, given.mutants, workers) for first in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        results = [
            outcome for share in pool.map(lambda share: list(map(_say, outcomes(share))), shares) for outcome in share
        ]
    failed = sum(result["wrong"] is not None for result in results)
    longest, most = (max((result.get(name, 0) for result in results), default=0) for name in ("seconds", "bytes"))
    sys.stdout.write(
        f"{given.mutants} mutants in {time.monotonic() - begun:.0f} s: {failed} went wrong"
        f" (the longest took {longest:.1f} s, the largest {most / 1e9:.2f} GB)\n"
    )
    return 1 if failed else 0


def _say(told: dict[str, Any]) -> dict[str, Any]:
    if told["wrong"]:
        sys.stdout.write(f"mutant {told['number']}: {told.get('command', '')}\n{told['wrong']}\n\n")
        sys.stdout.flush()
    return told


if __name__ == "__main__":
    sys.exit(main())
