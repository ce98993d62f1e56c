"""Communicate between a probe program and the process that started it.

Standard output has one JSON object per line: the result of each part. Output of libraries (NCCL_DEBUG=INFO) is
redirected to standard error. A program of several parts writes each result as soon as it is complete. So no result is
lost if a later part hangs. Standard error has progress, also as one JSON object per line: {"event": "ready"} when
everything is loaded and allocated, {"event": "progress", "schema", "what", "done", "of"} while measuring, {"event":
"done"} after the last result.

With --wait-for-go the program begins to measure when it reads a line from standard input, and exits when standard input
ends. So several probes can load at the same time and measure in sequence, and no probe destroys its contexts while
another measures.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


def _age() -> float:
    """Return the seconds since this process started, mostly spent on imports; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Field 22 of `stat` (proc(5)) is the start in clock ticks since boot. The name in field 2 may contain blanks.
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    return 0.0


STARTED = time.perf_counter() - _age()


class ProbeError(Exception):
    """A measurement failed. The message gives the reason, and other measurements continue."""


class Probe:
    """One run of a probe program: its options, progress and result.

    Args:
        schema: name and version of the result, e.g. `gpudiag/probe-copy-host/1`.
        description: one line for --help.
    """

    def __init__(self, schema: str, description: str) -> None:
        self.schema = schema
        self.parser = argparse.ArgumentParser(description=description)
        self.parser.add_argument("--quick", action="store_true", help="fewer sizes, paths and repeats")
        self.parser.add_argument("--wait-for-go", action="store_true", help="measure after a line on standard input")
        self.parser.add_argument("--seconds", type=float, default=5.0, help="about how long measuring may take")
        self.errors: list[dict[str, str]] = []
        self.skipped: list[dict[str, str]] = []
        self.versions: dict[str, str] = {}
        self.phases: dict[str, float] = {}
        self.ready_at = self.measuring_since = STARTED
        self._output = os.dup(1)
        os.dup2(2, 1)  # standard output of libraries goes to standard error

    def options(self) -> argparse.Namespace:
        """Parse the command line; programs add their own options to `parser` first."""
        self.phases["interpreter and imports"] = time.perf_counter() - STARTED
        self.given = self.parser.parse_args()
        return self.given

    def part(self, schema: str) -> Probe:
        """Return a probe for one of the program's results. The returned probe has separate errors and times."""
        part = copy.copy(self)
        part.schema = schema
        part.errors, part.skipped, part.versions, part.phases = [], [], dict(self.versions), {}
        part.measuring_since = time.perf_counter()
        return part

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent in this context to the result's `phases_s`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began

    def ready(self) -> None:
        """Report that loading is done. If --wait-for-go is given, wait for the command to measure."""
        self.ready_at = time.perf_counter()
        _emit(event="ready", seconds=self.ready_at - STARTED)
        if self.given.wait_for_go and not sys.stdin.readline():
            sys.exit("standard input ended before the command to measure")
        self.measuring_since = time.perf_counter()

    def elapsed(self) -> float:
        """Return the seconds since measuring began."""
        return time.perf_counter() - self.measuring_since

    def progress(self, what: str, done: int, of: int) -> None:
        """Report the current measurement `what`, after `done` of `of` measurements."""
        _emit(event="progress", schema=self.schema, what=what, done=done, of=of)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Within the block, record a failure in the result's `errors`, so that other measurements continue."""
        try:
            yield
        except (ProbeError, OSError, MemoryError, ValueError, RuntimeError) as error:
            self.errors.append({"what": what, "why": f"{error}" or type(error).__name__})

    def skip(self, what: str, why: str) -> None:
        """Record a measurement that is left out on purpose."""
        self.skipped.append({"what": what, "why": why})

    def write(self, **result: Any) -> None:
        """Write one result, as one line."""
        document = {
            "schema": self.schema,
            "errors": self.errors,
            "skipped": self.skipped,
            "versions": self.versions,
            "setup_s": self.ready_at - STARTED,
            "measure_s": time.perf_counter() - self.measuring_since,
            "phases_s": self.phases,
            **result,
        }
        data = (json.dumps(document, allow_nan=False) + "\n").encode()
        while data:  # a call may write only a part
            data = data[os.write(self._output, data) :]

    def exit(self, *, linger: bool = True) -> NoReturn:
        """Exit without destroying contexts. With `linger` and --wait-for-go, wait until standard input ends.

        The driver destroys contexts when the process ends, which would disturb programs that measure.
        """
        sys.stderr.flush()
        if linger and self.given.wait_for_go:
            os.close(self._output)
            _emit(event="done")
            sys.stdin.read()
        os._exit(0)

    def finish(self, *, linger: bool = True, **result: Any) -> NoReturn:
        """Write the result and exit."""
        self.write(**result)
        self.exit(linger=linger)

    def unavailable(self, why: str) -> NoReturn:
        """Exit because a library or the hardware is absent, which is not a failure."""
        self.finish(unavailable=why)


def _emit(**message: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(2, (json.dumps(message) + "\n").encode())
