"""Measure how much longer steps are while gpudiag records source lines, and whether later steps are as fast as before.

    python benchmarks/line_costs.py [--pairs 3] [--jobs calls,long] [--blocks 100] [--json]

Two jobs train on the GPU, or on a CPU core if there is no GPU. Steps of `calls` take about 1.5 ms with 1,100 Python
calls, and steps of `long` take about 20 ms.

Blocks: in one process, blocks of 20 steps with and without line events follow each other, in random order within each
pair. The events are recorded as by `gpudiag profile --`. The steps in which gpudiag selects functions are left out. The
figure is the median difference of a pair with its 95 % confidence interval. Times are elapsed times on a GPU, else CPU
times.

Processes: each job runs alternately with and without `gpudiag profile --`. The job itself times its steps, and records
during which steps line events or the profiler are on. The table compares medians within one process:

- lines: steps with line events, compared with the unprofiled steps just before. The first two steps record every line
  (to choose functions), and are left out.
- after: steps after the measurement, compared with the same unprofiled steps.
- alone: the comparison `after` for the same steps of a process without gpudiag, which shows the noise.

Each value is the median over all pairs, with the smallest and the largest value, in percent. `--pairs 0` skips the
measurement of processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: The step that all jobs run. The arguments are the calls and layers per step, the width of a layer, the number of
#: steps or pairs of blocks, and the path of the result.
JOB = """
import json, random, sys, time
import torch

calls, layers, width, count, path = *map(int, sys.argv[1:5]), sys.argv[5]
torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"

def small(value):
    return value * 0.5 + 1.0

def decode(number):
    total = 0.0
    for index in range(number):
        total += small(index)
    return total

def recording():
    if torch.autograd._profiler_enabled():
        return "profiler"
    if sys.version_info < (3, 12):
        return "lines" if sys.gettrace() else ""
    return "lines" if any(sys.monitoring.get_tool(number) for number in range(6)) else ""

model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(64, width, device=device)

def step():
    decode(calls)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.current_stream().synchronize()
"""
PROGRAM = f"""{JOB}
steps = []
for _ in range(count):
    begins, kind = time.perf_counter(), recording()
    step()
    steps.append((kind if kind == recording() else "change", 1e3 * (time.perf_counter() - begins)))
with open(path, "w") as file:
    json.dump(steps, file)
"""
BLOCKS = f"""{JOB}
from gpudiag.training.session.line_log import LineLog

clock = time.perf_counter if device == "cuda" else time.thread_time

def block(log):
    times = []
    if log is not None:
        log.begin("alone")
    for number in range(25):
        begins = clock()
        step()
        if log is not None:
            log.step()
        times.append(1e3 * (clock() - begins))
    if log is not None:
        log.end()
    return sorted(times[5:])[10]

block(None)
pairs = []
for _ in range(count):
    pair = dict.fromkeys(random.sample([False, True], 2))
    for recorded in pair:
        pair[recorded] = block(LineLog() if recorded else None)
    pairs.append((pair[False], pair[True]))
with open(path, "w") as file:
    json.dump(pairs, file)
"""
#: Calls, layers, width and steps of each job, without and with a GPU.
JOBS = {
    "calls": ((1100, 5, 128, 9000), (1100, 6, 512, 9000)),
    "long": ((200, 8, 1024, 900), (200, 24, 8192, 900)),
}
#: Number of unprofiled steps just before the line events; these steps are the reference.
BEFORE = 200


def on_gpu() -> bool:
    """Return True if PyTorch has a GPU here."""
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def steps_of(job: str, gpu: bool, profiled: bool) -> list[tuple[str, float]]:
    """Run a job. Return the kind of recording and the time in ms of each step, in order.

    The kinds are "" (none), "lines", "profiler" and "change" (the recording began or ended during the step).
    """
    with tempfile.TemporaryDirectory() as scratch:
        program, steps = Path(scratch, "train.py"), Path(scratch, "steps.json")
        program.write_text(PROGRAM, encoding="utf-8")
        command = [sys.executable, str(program), *map(str, JOBS[job][gpu]), str(steps)]
        if profiled:
            command = [
                sys.executable,
                "-m",
                "gpudiag",
                "profile",
                "--output",
                str(Path(scratch, "run")),
                "--",
                *command,
            ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not steps.is_file():
            raise RuntimeError((done.stdout + done.stderr)[-600:])
        return [(kind, ms) for kind, ms in json.loads(steps.read_text(encoding="utf-8"))]


def blocks_of(job: str, gpu: bool, pairs: int) -> tuple[float, tuple[float, float, float]]:
    """Return the step time in ms, and (median, low, high) of its increase with line events in percent."""
    with tempfile.TemporaryDirectory() as scratch:
        program, result = Path(scratch, "train.py"), Path(scratch, "pairs.json")
        program.write_text(BLOCKS, encoding="utf-8")
        sizes = map(str, JOBS[job][gpu][:3])
        subprocess.run([sys.executable, str(program), *sizes, str(pairs), str(result)], check=True)
        measured = json.loads(result.read_text(encoding="utf-8"))
    longer = sorted(100 * (recorded / plain - 1) for plain, recorded in measured)
    # The interval's ranks are half the count minus and plus 1.96 standard deviations of the binomial distribution.
    half = round(0.98 * len(longer) ** 0.5)
    low, high = longer[max(len(longer) // 2 - half, 0)], longer[min(len(longer) // 2 + half, len(longer) - 1)]
    return statistics.median(plain for plain, _ in measured), (statistics.median(longer), low, high)


def phases(steps: list[tuple[str, float]]) -> Iterator[tuple[str, list[float]]]:
    """Yield (kind of recording, step times in ms) of each successive phase of a job."""
    for kind, members in groupby(steps, key=lambda step: step[0]):
        yield kind, [ms for _, ms in members]


def percent_longer(times: list[float], reference: list[float]) -> float:
    """Return by how many percent the median of `times` exceeds the median of `reference`."""
    return 100 * (statistics.median(times) / statistics.median(reference) - 1)


def costs(job: str, gpu: bool) -> dict[str, float]:
    """Run a job with gpudiag and without it.

    Return `lines`, `after` and `alone` in percent (see the module's docstring), the step time in ms, and the number of
    steps with line events.
    """
    steps = steps_of(job, gpu, profiled=True)
    parts = list(phases(steps))
    at = next(place for place, (kind, _) in enumerate(parts) if kind == "lines")
    before = [ms for kind, times in parts[:at] if not kind for ms in times][-BEFORE:]
    first = sum(len(times) for _, times in parts[:at])  # number of the first step with line events
    after = parts[-1][1]
    if parts[-1][0] or len(after) < BEFORE:
        raise RuntimeError(f"only {len(after)} steps after the measurement")
    alone = [ms for _, ms in steps_of(job, gpu, profiled=False)]
    return {
        "step_ms": statistics.median(before),
        "lines": percent_longer(parts[at][1][2:], before),
        "steps_with_lines": float(len(parts[at][1])),
        "after": percent_longer(after, before),
        "alone": percent_longer(alone[-len(after) :], alone[max(first - BEFORE, 0) : first]),
    }


def main() -> None:
    """Measure the jobs and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="processes with and without gpudiag of each job")
    parser.add_argument("--jobs", default=",".join(JOBS), help="names with commas between them")
    parser.add_argument("--blocks", type=int, default=100, help="pairs of blocks in one process; 0: none")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    gpu = on_gpu()
    result: dict[str, Any] = {"python": sys.version.split()[0], "gpu": gpu}
    if options.blocks:
        for job in options.jobs.split(","):
            step_ms, (middle, low, high) = blocks_of(job, gpu, options.blocks)
            result[f"{job} in blocks"] = {"step_ms": step_ms, "longer_percent": [middle, low, high]}
            print(f"{job}: {step_ms:.2f} ms, {middle:+.1f} % with lines ({low:+.1f} to {high:+.1f})", file=sys.stderr)
    result |= {job: [costs(job, gpu) for _ in range(options.pairs)] for job in options.jobs.split(",")}
    if options.json:
        print(json.dumps(result))
    if options.json or not options.pairs:
        return
    table = Table("job", "step ms", "steps with lines", "lines %", "after %", "alone %")
    for job in options.jobs.split(","):
        pairs = result[job]
        cells = [f"{statistics.median(pair['step_ms'] for pair in pairs):.2f}"]
        cells.append(f"{statistics.median(pair['steps_with_lines'] for pair in pairs):.0f}")
        for name in ("lines", "after", "alone"):
            values = [pair[name] for pair in pairs]
            cells.append(f"{statistics.median(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})")
        table.add_row(job, *cells)
    Console().print(f"Python {result['python']}, {'GPU' if gpu else 'CPU'}")
    Console().print(table)


if __name__ == "__main__":
    main()
