"""Measure the overhead and the accuracy of the source-line prototype on known problems.

    python benchmarks/measure_source_lines.py [--faults saves,sleeps] [--steps 150] [--ms 20]

For each fault of `line_faults.py` one process trains three blocks of steps: plain, recorded, plain. It prints one JSON
object per fault: milliseconds per step plain and recorded, the deepest line with a tenth of the step that is no
forward, backward or optimizer call, its milliseconds, and True if it is the line marked `# fault: NAME`.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from source_lines.line_times import LineRecorder
from source_lines.records import LineTimes, SourceLine

SCRIPT = Path(__file__).with_name("line_faults.py")
FAULTS = ("saves", "sleeps", "logs", "metric", "item", "lock", "hook", "getitem", "collate", "recompiles")
#: Number of warm-up steps, and of steps in each of the three blocks.
WARM_UP = 20


def marked_lines(fault: str) -> list[int]:
    """Return the numbers of the lines that are marked with a fault."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if re.search(rf"# fault:.*\b{fault}(?![\w-])", line)]


class Blocks:
    """Count optimizer steps, and record the lines of the second of three blocks."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: list[float] = []
        self.recorder: LineRecorder | None = None
        self.lines: LineTimes | None = None

    def step(self, *_: Any) -> None:
        """Count the end of a step."""
        import torch  # noqa: PLC0415  # the script imports it

        number = len(self.times) - WARM_UP
        if torch.cuda.is_available() and number in {0, self.steps, 2 * self.steps}:
            torch.cuda.synchronize()
        if self.recorder is not None and number == 2 * self.steps:
            self.recorder.stop()
            self.lines, self.recorder = self.recorder.times(), None
        elif number == self.steps:
            self.recorder = LineRecorder()
        if self.recorder is not None:
            self.recorder.step()
        self.times.append(time.perf_counter())

    def mean_ms(self, block: int) -> float:
        """Return the mean step of a block."""
        begin = WARM_UP + block * self.steps
        return 1e3 * (self.times[begin + self.steps - 1] - self.times[begin]) / (self.steps - 1)


def deepest(lines: tuple[SourceLine, ...], least_ms: float) -> SourceLine | None:
    """Return the deepest of the user's lines that takes `least_ms` and is no training call."""
    for line in lines:
        if line.ms < least_ms:
            continue
        below = deepest(line.children, least_ms)
        if below is not None:
            return below
        if line.work not in {"forward", "backward", "optimizer"} and Path(line.file).name == SCRIPT.name:
            return line
    return None


def measure(fault: str, steps: int, ms: float) -> dict[str, Any]:
    """Train one fault in this process."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  # slow to import

    blocks = Blocks(steps)
    register_optimizer_step_post_hook(blocks.step)
    sys.argv = [str(SCRIPT), "--fault", fault, "--steps", str(WARM_UP + 3 * steps + 2), "--ms", str(ms)]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert blocks.lines is not None
    plain = statistics.fmean((blocks.mean_ms(0), blocks.mean_ms(2)))
    found = deepest(blocks.lines.lines, 0.1 * blocks.lines.step_ms)
    return {
        "fault": fault,
        "by": blocks.lines.by,
        "plain_ms": round(plain, 3),
        "recorded_ms": round(blocks.mean_ms(1), 3),
        "events_per_step": round(blocks.lines.events_per_step),
        "line": None if found is None else found.line,
        "text": "" if found is None else found.text,
        "line_ms": None if found is None else round(found.ms, 2),
        "right": found is not None and found.line in marked_lines(fault),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ms", type=float, default=20.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.steps, given.ms)))
        return
    for fault in given.faults.split(","):
        command = [sys.executable, __file__, "--one", fault, "--steps", str(given.steps), "--ms", str(given.ms)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr[-600:], flush=True)


if __name__ == "__main__":
    main()
