"""Run probe programs: each a process of its own, with a time limit, heard but not trusted.

A program first loads (imports, CUDA contexts, buffers, communicators), says that it is ready, and measures when told.
So all programs load at the same time, nothing loads or is taken down while something is measured, and a program that
hangs or crashes loses only its own figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpudiag.probing.programs import ProbeDocument, decode_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

#: More than any probe prints; a program that prints more is broken and is ended before it fills memory.
MAX_OUTPUT_BYTES = 16 << 20
#: Lines of standard error kept for the message when a program fails.
_KEPT_LINES = 20
_LONGEST_LINE = 4096

Status = Literal["ok", "unavailable", "failed", "timeout", "garbage"]


@dataclass(frozen=True)
class Planned:
    """A program to run.

    `name` is for people and keys; `setup_timeout_s` bounds loading, `timeout_s` measuring.
    """

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    setup_timeout_s: float = 60.0
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its checked result when `status` is ok or unavailable, else the reason why there is none."""

    planned: Planned
    status: Status
    document: ProbeDocument | None
    reason: str | None
    setup_s: float
    measure_s: float


@dataclass(frozen=True)
class Progress:
    """What a program does now: `done` of `of` measurements; `stage` is loading or measuring."""

    probe: str
    stage: Literal["loading", "measuring"]
    what: str = ""
    done: int = 0
    of: int = 0


class RunningProbe:
    """One started program. Use as a context manager: its whole process group is gone afterwards."""

    def __init__(self, planned: Planned, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.planned = planned
        self._on_progress = on_progress
        self._output = bytearray()
        self._tail: list[str] = []
        self._too_much = False
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ready_seen = False
        self._done = threading.Event()
        environment = {**os.environ, **planned.environment}
        # The programs find the files that they share beside themselves, which this variable would forbid.
        environment.pop("PYTHONSAFEPATH", None)
        self._started = time.perf_counter()
        self._go_at: float | None = None
        self._process = subprocess.Popen(
            [sys.executable, str(planned.program), "--wait-for-go", *planned.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_messages, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> RunningProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def end(self) -> None:
        """Tell the program and everything that it started to end, now; `kill` also waits until they have."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the program and everything that it started."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for reader in self._readers:
            reader.join(1)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not any(reader.is_alive() for reader in self._readers):
                with contextlib.suppress(OSError):
                    stream.close()

    def wait_until_ready(self, deadline: float) -> bool:
        """Wait until the program is ready to measure or has ended; False when it is neither at `deadline`."""
        while not self._ready_seen:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                return False
            self._ready_seen = event in {"ready", "ended"}
        return True

    def measure(self) -> Outcome:
        """Tell the program to go, and wait for its result."""
        self._go_at = time.perf_counter()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(b"go\n")
                self._process.stdin.flush()
        deadline = self._go_at + self.planned.timeout_s
        while not self._done.is_set() and self._process.poll() is None:
            if time.perf_counter() > deadline:
                self.kill()
                limit = self.planned.timeout_s
                return self._ended("timeout", None, f"had not finished after {limit:g} s{self._last()}")
            self._done.wait(0.01)
        if self._done.is_set():
            # The result was written before the word that it is there, but another thread reads it.
            self._readers[0].join(5)
            return self._judge(0)
        code = self._process.wait()
        for reader in self._readers:
            reader.join(5)
        return self._judge(code)

    def give_up(self) -> Outcome:
        """End a program that did not get ready in time."""
        self.kill()
        limit = self.planned.setup_timeout_s
        return self._ended("timeout", None, f"was not ready to measure after {limit:g} s{self._last()}")

    def _judge(self, code: int) -> Outcome:
        if self._too_much:
            return self._ended("garbage", None, f"printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
        if code != 0:
            how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            return self._ended("failed", None, how + self._last())
        try:
            document = decode_document(bytes(self._output))
        except ValueError as error:
            return self._ended("garbage", None, str(error))
        if document.unavailable is not None:
            return self._ended("unavailable", document, document.unavailable)
        return self._ended("ok", document, None)

    def _ended(self, status: Status, document: ProbeDocument | None, reason: str | None) -> Outcome:
        now = time.perf_counter()
        go = self._go_at if self._go_at is not None else now
        return Outcome(self.planned, status, document, reason, go - self._started, now - go)

    def _last(self) -> str:
        """The last thing the program said that was no progress, as the end of a sentence."""
        return f": {self._tail[-1]}" if self._tail else ""

    def _read_output(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        while block := os.read(stream.fileno(), 1 << 16):
            self._output += block
            if len(self._output) > MAX_OUTPUT_BYTES:
                self._too_much = True
                self._output.clear()
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                return

    def _read_messages(self) -> None:
        stream = self._process.stderr
        if stream is not None:
            while line := stream.readline(_LONGEST_LINE):
                self._hear(line.decode(errors="replace").strip())
        self._events.put("ended")

    def _hear(self, line: str) -> None:
        message = _message(line)
        if message is None:
            if line:
                self._tail = [*self._tail[1 - _KEPT_LINES :], line[:300]]
        elif message["event"] == "ready":
            self._events.put("ready")
        elif message["event"] == "done":
            self._done.set()
        elif message["event"] == "progress" and self._on_progress is not None:
            done, of = message.get("done"), message.get("of")
            if isinstance(done, int) and isinstance(of, int):
                what = str(message.get("what", ""))[:200]
                self._on_progress(Progress(self.planned.name, "measuring", what, done, of))


def _message(line: str) -> dict[str, Any] | None:
    """A progress message, or None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("event"), str) else None


def signal_name(number: int) -> str:
    """SIGSEGV and so on; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_probes(plan: Sequence[Planned], on_progress: Callable[[Progress], None] | None = None) -> list[Outcome]:
    """Load all programs at once, then let them measure one after another, in the order of the plan.

    Every process group that was started is gone when this returns or raises, also after Ctrl-C.
    """
    with contextlib.ExitStack() as stack:
        if on_progress is not None:
            on_progress(Progress("", "loading", ", ".join(planned.name for planned in plan), 0, len(plan)))
        running = [stack.enter_context(RunningProbe(planned, on_progress)) for planned in plan]
        outcomes: dict[str, Outcome] = {}
        started = time.perf_counter()
        for probe in running:
            if not probe.wait_until_ready(started + probe.planned.setup_timeout_s):
                outcomes[probe.planned.name] = probe.give_up()
        for probe in running:
            if probe.planned.name not in outcomes:
                outcomes[probe.planned.name] = probe.measure()
        # All at once: a driver takes a while to take each program's contexts down.
        for probe in running:
            probe.end()
        return [outcomes[planned.name] for planned in plan]


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that failed; a program that says why it cannot measure here has not."""
    return [outcome for outcome in outcomes if outcome.status not in {"ok", "unavailable"}]
