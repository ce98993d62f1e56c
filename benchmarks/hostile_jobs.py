"""Compare the effects of hostile training scripts (signals, crashes, forks, closed streams) with and without gpudiag.

    python benchmarks/hostile_jobs.py [--jobs a,b] [--json]

Each script of `hostile_scripts.py` runs as `python job.py` and as `gpudiag profile -- python job.py`, on the CPU. The
comparison covers standard output (byte for byte), the exit code (128 + n if signal n ended the job), the job's lines on
standard error, files left in the temporary and the current directory, and remaining processes. On standard error,
numbers and the log of PyTorch's profiler are ignored, and gpudiag may add lines. This program exits with 1 if there is
any difference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostile_scripts import JOBS, PRELUDE
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hostile_scripts import HostileJob

SECONDS = 120
#: Seconds after which a process that has not ended counts as remaining.
SETTLE_S = 1.0
#: Environment variable by which the processes of a run are recognized in /proc.
MARK = "HOSTILE_JOBS_MARK"
#: Beginning of a log line of PyTorch's profiler, after `_lines` has replaced its numbers.
_KINETO_LOG = re.compile(rb"\w+:[-0]+ [:0]+ 0:0 \w+\.cpp:0\] ")
QUICK = ("--warmup", "2", "--steps", "5")
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def outcome(job: HostileJob, folder: Path, *, profiled: bool) -> dict[str, Any]:
    """Run a job in an empty `folder`; return its output, exit code, remaining files and remaining processes.

    The exit code is "none" if the job has not ended after `SECONDS`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    temporary, work = folder / job.temporary, folder / "work"
    temporary.mkdir(parents=True)
    work.mkdir()
    (folder / "job.py").write_text(PRELUDE.replace("BODY", job.body) if job.prelude else job.body)
    (folder / "stdin").write_text("first line\nsecond line\n")
    command = [sys.executable, *job.options, str(folder / "job.py")]
    if profiled:
        # With -P, modules in the job's directory cannot replace modules that gpudiag imports.
        program = [sys.executable, "-P", "-m", "gpudiag", "profile", *QUICK, "--output", str(folder / "run")]
        command = [*program, "--", *command]
    environment = {**os.environ, **QUIET, "TMPDIR": str(temporary), MARK: str(folder), **job.environment}
    streams = [(folder / name).open("wb") for name in ("stdout", "stderr")]
    begun_s = time.monotonic()
    with (folder / "stdin").open("rb") as stdin:
        process = subprocess.Popen(
            command,
            cwd=job.directory or work,
            env=environment,
            stdin=stdin,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            code = "none"
    took_s = time.monotonic() - begun_s
    if isinstance(code, int) and code < 0:
        code = 128 - code
    for stream in streams:
        stream.close()
    processes = _processes_left(folder)
    return {
        "exit code": code,
        "stdout": (folder / "stdout").read_bytes(),
        "stderr": (folder / "stderr").read_bytes(),
        "files": _files(folder, (temporary, work)),
        "processes": processes,
        "took_s": took_s,
    }


def _files(folder: Path, directories: tuple[Path, ...]) -> list[str]:
    """Return the paths of files and directories in `directories`, relative to `folder`."""
    paths = [path for directory in directories for path in directory.rglob("*")]
    return sorted(str(path.relative_to(folder)) for path in paths)


def _processes_left(folder: Path) -> list[str]:
    """Return the command lines of remaining processes of the run, and end the processes."""
    until_s = time.monotonic() + SETTLE_S
    while (found := _processes(folder)) and time.monotonic() < until_s:
        time.sleep(0.1)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return sorted(found.values())


def _processes(folder: Path) -> dict[int, str]:
    """Return the living processes of the run in `folder`: process id → command line."""
    mark = f"{MARK}={folder}".encode()
    left = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    left[int(entry.name)] = b" ".join(words).decode(errors="replace").strip()
    return left


def differences(plain: dict[str, Any], profiled: dict[str, Any]) -> list[str]:
    """Describe each difference between a job's outcome alone and under gpudiag."""
    left = []
    if plain["exit code"] != profiled["exit code"]:
        left.append(f"exit code {plain['exit code']}, with gpudiag {profiled['exit code']}")
    if plain["stdout"] != profiled["stdout"]:
        left.append(f"stdout {len(plain['stdout']):,} bytes, with gpudiag {len(profiled['stdout']):,}")
    lost = Counter(_lines(plain["stderr"])) - Counter(_lines(profiled["stderr"]))
    if lost:
        left.append(f"stderr without {next(iter(lost)).decode(errors='replace')!r}")
    for key in ("files", "processes"):
        more = Counter(profiled[key]) - Counter(plain[key])
        less = Counter(plain[key]) - Counter(profiled[key])
        left += [f"{key}: {name} only with gpudiag" for name in more]
        left += [f"{key}: {name} only without gpudiag" for name in less]
    return left


def _lines(stderr: bytes) -> list[bytes]:
    """Return the lines with 0 in place of each number, because PyTorch writes times, addresses and process ids.

    Log lines of PyTorch's profiler are dropped, because gpudiag sets KINETO_LOG_LEVEL if the job's environment does
    not.
    """
    lines = re.sub(rb"0x[0-9a-f]+|\d+", b"0", stderr).splitlines()
    return [line for line in lines if not _KINETO_LOG.match(line)]


def compare(job: HostileJob, folder: Path) -> dict[str, Any]:
    """Return the row of a job: its exit code, the differences, and the duration of each run in seconds.

    `measured` is true if gpudiag recorded a trace.
    """
    plain = outcome(job, folder, profiled=False)
    profiled = outcome(job, folder, profiled=True)
    record = folder / "run" / "run.json"
    ranks = json.loads(record.read_text())["ranks"] if record.exists() else []
    return {
        "job": job.name,
        "exit_code": plain["exit code"],
        "stdout_bytes": len(plain["stdout"]),
        "left_processes": len(plain["processes"]),
        "measured": any(rank.get("trace") for rank in ranks),
        "plain_s": round(plain["took_s"], 1),
        "profiled_s": round(profiled["took_s"], 1),
        "differences": differences(plain, profiled),
    }


def main() -> int:
    """Compare the jobs one after the other; print progress on standard error and a table or JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="", help="names, separated by commas; else all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    names = set(filter(None, options.jobs.split(",")))
    unknown = names - {job.name for job in JOBS}
    if unknown:
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as place:
        for job in JOBS:
            if names and job.name not in names:
                continue
            row = compare(job, Path(place) / "job")
            rows.append(row)
            sys.stderr.write(f"{job.name}: {'; '.join(row['differences']) or 'same'}\n")
    same = sum(not row["differences"] for row in rows)
    if options.json:
        sys.stdout.write(json.dumps({"same": same, "jobs": rows}, indent=1) + "\n")
    else:
        _draw(rows)
        sys.stdout.write(f"{same} of {len(rows)} jobs are the same with gpudiag and without\n")
    return 0 if same == len(rows) else 1


def _draw(rows: list[dict[str, Any]]) -> None:
    """Print a table with a row for each job."""
    table = Table("job", "exit code", "stdout bytes", "measured", "s", "s with gpudiag", "differs")
    for row in rows:
        table.add_row(
            row["job"],
            str(row["exit_code"]),
            f"{row['stdout_bytes']:,}",
            "yes" if row["measured"] else "no",
            str(row["plain_s"]),
            str(row["profiled_s"]),
            "; ".join(row["differences"]) or "nothing",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
