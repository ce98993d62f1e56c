"""Compare `gpudiag analyze` with xprof's overview on the same TensorFlow trace, in one run.

    python benchmarks/bench_xspace.py [TRACE] [--xprof PYTHON] [--rounds N] [--cpus N]

xprof is timed twice: the whole process, which a user waits for, and the part from reading the file to the overview's
data. That part excludes Python's start and imports. gpudiag's time is always that of the whole process, from `exec` to
exit. Rounds are interleaved, so that other load affects both equally. Each run gets a fresh copy of the trace, because
xprof caches its results next to it. `make tensorboard` installs xprof.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

_OVERVIEW = """
import sys, time
from xprof.convert import raw_to_tool_data
began = time.perf_counter()
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "overview_page", {})
assert b"steptime_ms_average" in (data if isinstance(data, bytes) else data.encode())
print(time.perf_counter() - began)
"""


def main() -> None:
    """Run the rounds and print the table."""
    options = _options()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: options.cpus]))
    packed = options.trace.read_bytes()
    data = gzip.decompress(packed) if options.trace.suffix == ".gz" else packed
    ours: list[float] = []
    whole: list[float] = []
    inside: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        plain = Path(name) / "host.xplane.pb"
        plain.write_bytes(data)
        _ours(plain)
        _theirs(options.xprof, data)  # fill the page cache and Python's bytecode caches
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            ours.append(_ours(plain))
            took, within = _theirs(options.xprof, data)
            whole.append(took)
            inside.append(within)
    _print(options, len(data), ours, whole, inside)


def _options() -> argparse.Namespace:
    shared = ROOT.parent / "shared" / "traces" / "h200x4-tf" / "mirrored_nccl.xplane.pb.gz"
    default = shared if shared.is_file() else ROOT / "tests" / "traces" / "tensorflow" / "mirrored_nccl.xplane.pb.gz"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", default=default)
    parser.add_argument("--xprof", type=Path, default=ROOT / "build" / "xprof-venv" / "bin" / "python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpus", type=int, default=2, help="CPUs that both may use")
    options = parser.parse_args()
    if not options.xprof.exists():
        sys.exit(f"{options.xprof} is not there: make tensorboard, or name an interpreter with --xprof")
    return options


def _ours(trace: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gpudiag", "analyze", str(trace), "--json"], stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - began


def _theirs(python: Path, data: bytes) -> tuple[float, float]:
    """Return the seconds of xprof's whole process, and the seconds that the overview takes within the process."""
    directory = Path(tempfile.mkdtemp())
    try:
        trace = directory / "host.xplane.pb"
        trace.write_bytes(data)
        began = time.perf_counter()
        done = subprocess.run([python, "-c", _OVERVIEW, str(trace)], capture_output=True, text=True, check=True)
        return time.perf_counter() - began, float(done.stdout.split()[-1])
    finally:
        shutil.rmtree(directory)


def _print(options: argparse.Namespace, size: int, ours: list[float], whole: list[float], inside: list[float]) -> None:
    """Print the conditions, and a table of seconds: gpudiag's process, xprof's process, and xprof's overview alone."""
    version = subprocess.run(
        [options.xprof, "-c", "from importlib.metadata import version; print(version('xprof'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(f"{options.trace.name}: {size / 1e6:.1f} MB unpacked; {options.rounds} rounds, interleaved.")
    print(f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}. Python {platform.python_version()}.\n")
    print("| | wall s, median (min to max) | of xprof's overview |")
    print("| --- | ---: | ---: |")
    reference = statistics.median(inside)
    for name, times in (
        ("gpudiag analyze --json, whole process", ours),
        (f"xprof {version}, overview, inside its process", inside),
        (f"xprof {version}, overview, whole process", whole),
    ):
        middle = statistics.median(times)
        print(f"| {name} | {middle:.2f} ({min(times):.2f} to {max(times):.2f}) | {middle / reference:.2f} |")


if __name__ == "__main__":
    main()
