"""Implement `gpudiag.trace_handler`: save the traces of `torch.profiler` in a run directory, and report the verdict.

This module imports other modules of gpudiag only when the first trace is ready.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Maximum number of seconds for the analysis, after the wait for the traces of all ranks.
_ANALYSIS_S = 120.0

#: Number of recordings that this process has saved, by run directory.
_recordings: dict[str, int] = {}
#: Processes that print verdicts, each with the time in seconds of `time.monotonic` at which it is ended.
_reporters: list[tuple[subprocess.Popen[bytes], float]] = []


class TraceHandler:
    """Save each trace of a `torch.profiler.profile` in a run directory; on rank 0, print the verdict.

        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=10, warmup=2, active=6, repeat=1),
            on_trace_ready=gpudiag.trace_handler("run-dir"),
        ) as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Every rank writes `run_dir/traces/rank<r>.pt.trace.json.gz`, so that `gpudiag analyze run_dir` reads all ranks. The
    second recording of a process goes to `run_dir/recording-2`, and so on.

    A rank waits for no other rank. After rank 0 has saved its trace, a process of low priority waits for the traces of
    the other ranks, analyses all traces, and prints the verdict on standard error. If traces are missing, the process
    names their ranks and analyses the other traces. At its end, the training waits for this process. If a trace
    cannot be saved, a message appears on standard error, and the training continues.

    Args:
        run_dir: the run directory, which all nodes must share. Files of an earlier run are replaced.
        wait_s: maximum number of seconds to wait for the traces of other ranks.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, wait_s: float = 60.0) -> None:
        self._run_dir = Path(run_dir).absolute()
        self._wait_s = wait_s

    def __call__(self, profiler: Any) -> None:
        """Save the profiler's trace. The method raises no exceptions."""
        try:
            self._save(profiler)
        except Exception as error:  # noqa: BLE001  # the training must go on
            _say(f"the trace could not be saved in {self._run_dir}: {type(error).__name__}: {error}")

    def _save(self, profiler: Any) -> None:
        """Save the trace in the directory of this recording; on rank 0, start the report of the verdict."""
        from gpudiag.training.session import record
        from gpudiag.training.session.position import current_position

        number = _recordings.get(str(self._run_dir), 0) + 1
        _recordings[str(self._run_dir)] = number
        run_dir = self._run_dir if number == 1 else self._run_dir / f"recording-{number}"
        position = current_position()
        record.clear_rank(run_dir, position.rank)
        if position.rank == 0:
            record.clear_run(run_dir, position.world_size)
        record.export_compressed(profiler.export_chrome_trace, run_dir / record.trace_name(position.rank))
        if position.rank == 0:
            _report_later(run_dir, position.world_size, self._wait_s)


def _report_later(run_dir: Path, ranks: int, wait_s: float) -> None:
    """Start a process of low priority that waits for the traces of all ranks, up to `wait_s`, and prints the verdict.

    The process gets the time at which this job started, because older traces belong to earlier jobs.
    """
    from gpudiag.training.own_program import lower_priority, own_program

    command = own_program("gpudiag.app.trace_verdict", str(run_dir), str(ranks), str(wait_s), str(_started_s()))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    lower_priority(process.pid)
    if not _reporters:
        atexit.register(_finish)
    _reporters.append((process, time.monotonic() + wait_s + _ANALYSIS_S))


def _finish() -> None:
    """At the end of the training, wait for the processes that print verdicts, each until its time limit."""
    for process, until_s in _reporters:
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.terminate()
            _say("the analysis was ended before its verdict; gpudiag analyze shows it")


def _started_s() -> float:
    """Return the time at which this process started, in seconds of `time.time`."""
    # After the name in parentheses, item 19 (from 0) is the start in clock ticks since boot (proc(5)).
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"gpudiag: {line}\n")
        sys.stderr.flush()
