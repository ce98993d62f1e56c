"""Compare `gpudiag analyze` with HolisticTraceAnalysis (HTA) on the same traces, in one run.

    python benchmarks/bench_analyze.py [TRACES…] [--hta PYTHON] [--gpudiag PYTHON] [--rounds N] [--cpus N]

HTA is timed with two analyses. The minimal analysis loads the traces and computes the temporal breakdown. The full
analysis also answers the questions that gpudiag's report answers, as far as HTA can. Each directory has its own table,
and a summary has one line per directory.

Each command is timed as a whole process, from `exec` to exit. Rounds are interleaved, so that other load affects all
commands equally. Memory is measured in separate rounds as the PSS of the process tree (shared pages are counted
once), sampled every few milliseconds. Peaks between two samples are missed.

HTA and gpudiag are installed into `build/`, each with its dependencies only, as users install them. `--hta` and
`--gpudiag` name existing interpreters instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

HTA = "HolisticTraceAnalysis==0.5.0"
ROOT = Path(__file__).parents[1]
LOOK_EVERY_S = 0.004
#: Directory in which programs run. In the repository, `python -m` would import the repository's modules instead of the
#: installed ones.
ELSEWHERE = tempfile.gettempdir()

_HTA_PROGRAM = """
import sys
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False)
"""

#: HTA's full analysis: the time breakdown, overlapped communication, causes of idle time, kernels, and launch
#: statistics of all ranks. Counterfactual savings are omitted because HTA has none. The straggler is omitted because
#: HTA's `get_potential_stragglers` raises a ValueError on the compared traces.
_HTA_REPORT_PROGRAM = """
import sys
from hta.trace_analysis import TraceAnalysis
analyzer = TraceAnalysis(trace_dir=sys.argv[1])
ranks = sorted(analyzer.t.traces)
analyzer.get_temporal_breakdown(visualize=False)
analyzer.get_comm_comp_overlap(visualize=False)
analyzer.get_gpu_kernel_breakdown(visualize=False)
analyzer.get_idle_time_breakdown(ranks=ranks, visualize=False)
analyzer.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
"""

#: This program is a lower bound for any reader of the traces: it decompresses them and decodes the JSON, with gpudiag's
#: structures and number of processes.
_FLOOR_PROGRAM = """
import sys
from pathlib import Path
from gpudiag.trace.readers.kineto.event_json import Repairs
from concurrent.futures import ProcessPoolExecutor
from gpudiag.trace.read import usable_cpus
from gpudiag.trace.unpack import ReadLimits, read_pieces
from gpudiag.trace.readers.kineto.document import decode_in_pieces


def decode(path):
    return sum(1 for _ in decode_in_pieces(read_pieces(path, str(path), ReadLimits()), Repairs()))

paths = sorted(Path(sys.argv[1]).iterdir())
with ProcessPoolExecutor(usable_cpus()) as pool:
    list(pool.map(decode, paths))
"""

_READ_PROGRAM = """
import sys
from gpudiag.trace import read_traces
read_traces([sys.argv[1]])
"""


@dataclass
class Candidate:
    """A command to compare, and its time and memory in each round."""

    name: str
    command: list[str]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)


@dataclass
class Comparison:
    """The commands to compare, on the traces of one directory.

    Attributes:
        ours: `gpudiag analyze`.
        reading: gpudiag's reading of the traces, without analysis.
        floor: decompression and JSON decoding only.
        hta, hta_report: HTA's minimal and full analysis.
    """

    name: str
    ours: Candidate
    reading: Candidate
    floor: Candidate
    hta: Candidate
    hta_report: Candidate

    @property
    def candidates(self) -> list[Candidate]:
        """Return the candidates in table order. The table compares each candidate with `hta`."""
        return [self.ours, self.reading, self.floor, self.hta, self.hta_report]


def main() -> None:
    """Run the rounds and print the tables."""
    options = _options()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: options.cpus]))
    hta = options.hta or _install(ROOT / "build" / "hta-venv", HTA)
    ours = options.gpudiag or _install(ROOT / "build" / "gpudiag-venv", str(ROOT), again=True)
    done = [_compare(traces, options.rounds, ours, hta) for traces in options.traces]
    if len(done) > 1:
        _print_by_trace(done)


def _compare(traces: Path, rounds: int, ours: Path, hta: Path) -> Comparison:
    """Measure all candidates on the traces of a directory; `ours` and `hta` are interpreters. Print the table."""
    with tempfile.TemporaryDirectory() as directory:
        # Copy only the traces, because HTA reads every file of a directory as a trace.
        for path in sorted(traces.glob("rank*.json.gz")):
            shutil.copy(path, directory)
        comparison = Comparison(
            traces.resolve().name,
            Candidate("gpudiag analyze --json", [str(ours), "-m", "gpudiag", "analyze", directory, "--json"]),
            Candidate("gpudiag: reading alone", [str(ours), "-c", _READ_PROGRAM, directory]),
            Candidate("floor: unpack and decode", [str(ours), "-c", _FLOOR_PROGRAM, directory]),
            Candidate("HTA 0.5.0, load and temporal breakdown", [str(hta), "-c", _HTA_PROGRAM, directory]),
            Candidate("HTA 0.5.0, what gpudiag's report answers", [str(hta), "-c", _HTA_REPORT_PROGRAM, directory]),
        )
        for candidate in comparison.candidates:
            run_whole(candidate.command)  # fill the page cache and Python's bytecode caches
        for number in range(rounds):
            print(f"{comparison.name}: round {number + 1} of {rounds}", file=sys.stderr)
            for candidate in comparison.candidates:
                wall_s, cpu_s = run_whole(candidate.command)
                candidate.wall_s.append(wall_s)
                candidate.cpu_s.append(cpu_s)
            for candidate in comparison.candidates:
                candidate.memory_mb.append(_peak_memory_mb(candidate.command))
        _print_conditions(comparison.name, rounds, Path(directory), ours, hta)
    _print_table(comparison)
    return comparison


def _options() -> argparse.Namespace:
    shared = ROOT.parent / "shared" / "traces" / "h200x4-torch" / "clean"
    default = shared if shared.is_dir() else ROOT / "tests" / "traces" / "clean"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*", default=[default], help="directories with rank*.json.gz")
    parser.add_argument("--hta", type=_absolute, help="an interpreter that has HTA")
    parser.add_argument("--gpudiag", type=_absolute, help="an interpreter that has gpudiag")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpus", type=int, default=2, help="CPUs that all candidates may use")
    return parser.parse_args()


def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _install(directory: Path, requirement: str, *, again: bool = False) -> Path:
    """Install a requirement with its dependencies into an environment; return its interpreter.

    An existing environment is used as it is, unless `again` is true.
    """
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        again = True
    if again:
        print(f"installing {requirement} into {directory}", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", requirement], check=True)
    return python


def run_whole(command: list[str]) -> tuple[float, float]:
    """Run one whole process; return its wall time and CPU time with its children, in seconds."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ELSEWHERE, check=False)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{command[:4]} failed:\n{done.stderr.decode()}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _peak_memory_mb(command: list[str]) -> float:
    """Return the highest PSS (proportional set size) of the process tree in MB while the command runs."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ELSEWHERE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_pss_kb(process.pid))
        time.sleep(LOOK_EVERY_S)
    return peak * 1024 / 1e6


def _tree_pss_kb(process: int) -> int:
    """Return the PSS of a process and its descendants; ended processes count as 0."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    own_kb = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return own_kb + sum(_tree_pss_kb(child) for child in children)


def _print_conditions(name: str, rounds: int, directory: Path, ours: Path, hta: Path) -> None:
    """Print the size of the traces, the machine, its load, and the versions."""
    packed = sum(path.stat().st_size for path in directory.iterdir())
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    count = len(list(directory.iterdir()))
    print(f"\n{name}: {count} traces, {packed / 1e6:.1f} MB of gzip; {rounds} rounds, interleaved.")
    print(f"{model}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f} at the end.")
    print(f"gpudiag: {_versions(ours, 'msgspec', 'numpy')}. HTA: {_versions(hta, 'pandas')}.\n")


def _versions(python: Path, *packages: str) -> str:
    program = "import sys, importlib.metadata as m; print('Python', sys.version.split()[0], end='')\n"
    program += "for name in sys.argv[1:]: print(',', name, m.version(name), end='')"
    return subprocess.run([python, "-c", program, *packages], capture_output=True, text=True, check=True).stdout


def _print_table(comparison: Comparison) -> None:
    """Print a row per candidate: times, memory, and HTA's figures divided by the candidate's."""
    print(
        "| whole process | wall s, median (min to max) | CPU s, median (min) | peak memory MB "
        "| HTA: wall | HTA: least CPU | HTA: memory |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for candidate in comparison.candidates:
        wall, memory = _medians(candidate)
        hta_wall, hta_memory = _medians(comparison.hta)
        print(
            f"| {candidate.name} | {wall:.2f} ({min(candidate.wall_s):.2f} to {max(candidate.wall_s):.2f}) "
            f"| {statistics.median(candidate.cpu_s):.2f} ({min(candidate.cpu_s):.2f}) | {memory:.0f} "
            f"| {hta_wall / wall:.1f} times | {min(comparison.hta.cpu_s) / min(candidate.cpu_s):.1f} times "
            f"| {hta_memory / memory:.1f} times |"
        )
    wall, report_wall, floor = (
        _medians(candidate)[0] for candidate in (comparison.ours, comparison.hta_report, comparison.floor)
    )
    print(f"\n`gpudiag analyze` takes {wall / floor:.2f} times the floor.")
    print(f"HTA takes {report_wall / wall:.1f} times as long to answer what gpudiag's report answers.")


def _print_by_trace(done: list[Comparison]) -> None:
    """Print the summary with a row per directory of traces."""
    print("\n| traces | gpudiag s | HTA: temporal breakdown | HTA: what gpudiag's report answers | HTA: memory |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for comparison in done:
        wall, memory = _medians(comparison.ours)
        hta_wall, hta_memory = _medians(comparison.hta)
        report_wall, _ = _medians(comparison.hta_report)
        print(
            f"| {comparison.name} | {wall:.2f} | {hta_wall:.2f} s, {hta_wall / wall:.1f} times "
            f"| {report_wall:.2f} s, {report_wall / wall:.1f} times | {hta_memory / memory:.1f} times |"
        )


def _medians(candidate: Candidate) -> tuple[float, float]:
    """Return the medians over rounds: wall time in seconds, and memory in MB."""
    return statistics.median(candidate.wall_s), statistics.median(candidate.memory_mb)


if __name__ == "__main__":
    main()
