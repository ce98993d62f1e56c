"""How near replays without the profiler's cost come to steps timed without it, and what parts they give.

    python benchmarks/parts_of_runs.py RUN...      directories that `gpudiag profile`, `selftest` or `scale` recorded

The waterfall's rest is the difference of two such misses.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from gpudiag.analysis.scaling.parts import step_parts
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.benchmarks.scaling import STEP_PARTS
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import RUN_FILE, read_json
from gpudiag.trace import read_traces


def main() -> None:
    """Print a row per run, and how many come how near."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    misses = []
    headings = ("run", "timed ms", "recorded ms", "replayed ms", "miss", "factor", *STEP_PARTS)
    print("|", " | ".join(headings), "|")
    print("| --- |" + " ---: |" * (len(headings) - 1))
    for directory in parser.parse_args().runs:
        run = read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)
        timed_ms = max((rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None), default=None)
        if timed_ms is None:
            continue
        found = step_parts(build_timeline(read_traces([directory]), None), timed_ms)
        if found is None:
            continue
        miss = found.replayed_ms / timed_ms - 1
        misses.append(abs(miss))
        lengths = (f"{found.parts_ms[name]:.1f}" for name in STEP_PARTS)
        times = (f"{ms:.2f}" for ms in (timed_ms, found.recorded_ms, found.replayed_ms))
        cells = (directory.name, *times, f"{100 * miss:+.2f} %", f"{found.scaled_by:.2f}", *lengths)
        print("|", " | ".join(cells), "|", flush=True)
    if misses:
        within = sum(miss <= 0.01 for miss in misses)
        print(
            f"\n{len(misses)} runs: median miss {100 * statistics.median(misses):.2f} %, {within} within 1 %, ", end=""
        )
        print(f"largest {100 * max(misses):.2f} %")


if __name__ == "__main__":
    main()
