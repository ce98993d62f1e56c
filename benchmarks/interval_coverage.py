"""Measure how often the interval for the unprofiled step time contains the true step time.

Usage: `python benchmarks/interval_coverage.py DIR ...`.

Each directory is searched for runs (`run.json` with unprofiled steps, `traces/`), for traces next to a `truth.json`
that contains their step time, and for packed recordings (`.npz`) of `tests/traces/whole` with known step times. Each
recording is analysed from its traces alone, and again with its run record if there is one. The true step time is the
mean of the unprofiled steps of the slowest rank.

    --json FILE     write a line for each interval, with its components
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case, without_outlier_steps
from gpudiag.analysis.diagnosis.significance import Significance, interval_ms
from gpudiag.analysis.timeline import build_timeline
from gpudiag.errors import GpudiagError
from gpudiag.model.run import RunRecord
from gpudiag.model.run_directory import find_run_record
from gpudiag.statistics import wilson
from gpudiag.trace import read_traces
from gpudiag.trace.kernel_only import least_disturbed
from tests.analysis.diagnosis.test_real_traces import UNPROFILED_MS
from tests.traces.pack import unpack

#: Maximum relative error of the simulation of the recorded step. Cases with a larger error are skipped, because gpudiag
#: estimates no savings for them.
FAILED = 0.25


def main() -> int:
    """Count the intervals that contain the true step time, and print the intervals that miss it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directories", nargs="+", type=Path)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    recordings: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for recording in _recordings(given.directories, Path(scratch)):
            recordings.append(recording)
            if given.json is not None:
                with given.json.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(recording) + "\n")
    for how in ("alone", "timed too"):
        for where in ("GPUs", "CPU processes"):
            _print(
                how,
                where,
                [recording for recording in recordings if (recording["how"], recording["where"]) == (how, where)],
            )
    return 0


def _print(how: str, where: str, recordings: list[dict[str, Any]]) -> None:
    """Print how many intervals contain the true step time, and each interval that does not.

    `how` and `where` describe the recordings: analysed alone or with unprofiled steps; on GPUs or CPU processes.
    """
    if not recordings:
        return
    misses = [recording for recording in recordings if not recording["low"] <= recording["true"] <= recording["high"]]
    hits, count = len(recordings) - len(misses), len(recordings)
    low, high = wilson(hits, count)
    widths = sorted((recording["high"] - recording["low"]) / 2 / recording["true"] for recording in recordings)
    print(
        f"{how}, {where}: {hits} of {count} ({100 * low:.0f} to {100 * high:.0f} %), half the "
        f"interval {100 * widths[len(widths) // 2]:.0f} % of the step in the median, at most {100 * widths[-1]:.0f} %"
    )
    for recording in misses:
        print(
            f"    {recording['name']}: recorded {recording['recorded']:.1f}, corrected {recording['corrected']:.1f}"
            f" [{recording['low']:.1f}, {recording['high']:.1f}], timed {recording['true']:.1f} ms"
        )


def _recordings(directories: list[Path], scratch: Path) -> Iterator[dict[str, Any]]:
    """Yield the intervals of all recordings below the directories, each recording once."""
    seen: set[str] = set()
    for directory in directories:
        for record_path in sorted(directory.rglob("run.json")):
            traces = record_path.parent / "traces"
            record = find_run_record([record_path.parent]) if traces.is_dir() else None
            if record is None or record.created in seen or _timed_ms(record) is None:
                continue
            seen.add(record.created)
            yield from _run(f"{directory.name}/{record_path.parent.name}", record_path.parent, record)
        for record_path in sorted(directory.rglob("truth.json")):
            truth = json.loads(record_path.read_text(encoding="utf-8"))
            if "step_ms_fault" in truth:
                seen.add(record_path.parent.name)
                recorded = sorted(record_path.parent.glob("*trace.json.gz"))
                yield from _alone(
                    f"{directory.name}/{record_path.parent.name}", recorded, float(truth["step_ms_fault"])
                )
        for packed in sorted(directory.glob("*.npz")):
            if packed.stem in UNPROFILED_MS and packed.stem not in seen:
                where = scratch / packed.stem
                unpack(packed, where)
                yield from _alone(packed.stem, sorted(where.iterdir()), UNPROFILED_MS[packed.stem])


def _run(name: str, where: Path, record: RunRecord) -> Iterator[dict[str, Any]]:
    """Yield two intervals of a run: from its full traces alone, and from all its traces and its run record."""
    true = _timed_ms(record)
    assert true is not None
    yield from _alone(name, sorted(path for path in (where / "traces").iterdir() if path.is_file()), true)
    try:
        full = read_traces([where], repeated=True)
        traces, _ = least_disturbed([where], full, None)
        timeline = build_timeline(traces)
    except GpudiagError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return
    yield from _measured(name, "timed too", Case(timeline=timeline, attribution=attribute(timeline), run=record), true)


def _alone(name: str, traces: list[Path], true: float) -> Iterator[dict[str, Any]]:
    """Yield the interval of a run that is analysed from its traces alone."""
    try:
        timeline = build_timeline(read_traces(traces))
    except GpudiagError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return
    yield from _measured(name, "alone", Case(timeline=timeline, attribution=attribute(timeline)), true)


def _measured(name: str, how: str, case: Case, true: float) -> Iterator[dict[str, Any]]:
    """Yield the interval of a case with its components in ms; nothing if gpudiag would show no interval."""
    case = without_outlier_steps(case)
    what_if = case.what_if
    if what_if is None or abs(what_if.simulated_ms - case.slowest_ms) > FAILED * case.slowest_ms:
        return
    said = Significance(case, what_if)
    interval = interval_ms(said)
    if interval is None:
        return
    yield {
        "name": name,
        "how": how,
        "where": "CPU processes" if all(track.is_cpu for track in case.tracks) else "GPUs",
        "true": true,
        "recorded": case.slowest_ms,
        "replayed": what_if.simulated_ms,
        "corrected": what_if.corrected_ms,
        "low": interval[0],
        "high": interval[1],
        "per_event_ns": what_if.per_event_ns,
        "chance": said.chance_ms,
        "steps": [(track.step_ns / 1e6).tolist() for track in case.attribution.tracks],
        "timed": [] if case.run is None else [rank.unprofiled.step_ms for rank in case.run.ranks if rank.unprofiled],
    }


def _timed_ms(record: RunRecord) -> float | None:
    return max((rank.unprofiled.mean_ms for rank in record.ranks if rank.unprofiled is not None), default=None)


if __name__ == "__main__":
    raise SystemExit(main())
