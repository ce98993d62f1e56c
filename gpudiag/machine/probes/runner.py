"""Run probe programs, each in a separate process with a time limit. Their output is untrusted.

A program first loads (imports, CUDA contexts, buffers, communicators) and reports that it is ready. The program
measures when it gets the command `go`. So programs load at the same time, and no GPU context is created or destroyed
while copies are measured. A program that hangs or crashes loses only its own results.

Two activities may overlap with measuring, because they do not disturb it: loading a program that loads only on the CPU
(importing PyTorch), and ending the programs that hold GPUs while the host is measured.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpudiag.machine.probes.programs import ProbeDocument, decode_document

#: Maximum size of the output, far more than any probe prints. A program that prints more is ended.
MAX_OUTPUT_BYTES = 16 << 20
#: Number of lines of standard error that are kept for the error message.
_KEPT_LINES = 20
#: Maximum number of bytes of standard error that are read as one line.
_LONGEST_LINE = 4096

Status = Literal["ok", "unavailable", "failed", "timeout", "garbage"]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run.

    Attributes:
        name: name in messages, and key of the outcome.
        setup_timeout_s, timeout_s: limits on loading and on measuring.
        parts: schema and name of each result, if the program has several results.
        holds_gpus: the program creates CUDA contexts during loading.
        loads_aside: the program loads only on the CPU, so that other programs may measure at the same time.
    """

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    setup_timeout_s: float = 60.0
    timeout_s: float = 60.0
    parts: tuple[tuple[str, str], ...] = ()
    holds_gpus: bool = False
    loads_aside: bool = False


class ProbeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a program or of one of its parts.

    Attributes:
        document: the validated result if `status` is `ok` or `unavailable`.
        reason: reason why there is no result.
        setup_s, measure_s: durations of loading and of measuring.
    """

    name: str
    planned: Planned
    status: Status
    document: ProbeDocument | None
    reason: str | None
    setup_s: float
    measure_s: float


class ProbeStep(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a program: `done` of `of` measurements."""

    probe: str
    stage: Literal["loading", "measuring"]
    what: str = ""
    done: int = 0
    of: int = 0


class RunningProbe:
    """A started program. As a context manager, the object ends the program's process group on exit.

    A thread calls `on_progress` with each progress message.
    """

    def __init__(self, planned: Planned, on_progress: Callable[[ProbeStep], None] | None = None) -> None:
        self.planned = planned
        self._on_progress = on_progress
        self._output = bytearray()
        self._tail: list[str] = []
        self._too_much = False
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ready_seen = False
        self._done = threading.Event()
        environment = {**os.environ, **planned.environment}
        # With PYTHONSAFEPATH the programs could not import the modules in their directory.
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
        """Send SIGKILL to the program and everything that it started, without waiting."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the program and everything that it started, and wait for the program's end, for a few seconds at most."""
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
        """Wait until the program is ready, done, or has ended; return False after `deadline` (`time.perf_counter`)."""
        while not self._ready_seen:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                return False
            self._ready_seen = event in {"ready", "ended"}
        return True

    def measure(self) -> list[ProbeOutcome]:
        """Let the program measure, wait for its result, and return one outcome, or one per part."""
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
                return self._judge("timeout", f"had not finished after {limit:g} s{self._last_message()}")
            self._done.wait(0.01)
        if self._done.is_set():
            # The result was written before this message, but the thread that reads the result may still be reading.
            self._readers[0].join(5)
            return self._judge()
        code = self._process.wait()
        for reader in self._readers:
            reader.join(5)
        if code != 0 and not self._too_much:
            how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            return self._judge("failed", how + self._last_message())
        return self._judge()

    def give_up(self) -> list[ProbeOutcome]:
        """End a program that was not ready in time."""
        self.kill()
        limit = self.planned.setup_timeout_s
        return self._judge("timeout", f"was not ready to measure after {limit:g} s{self._last_message()}")

    def _judge(self, status: Status = "ok", reason: str | None = None) -> list[ProbeOutcome]:
        """Return the outcome of the program or of each part. Parts that were written before a failure are valid.

        `status` and `reason` describe how the program ended; `ok` may become `garbage` or `unavailable`.
        """
        if self._too_much:
            status, reason = "garbage", f"printed more than {MAX_OUTPUT_BYTES >> 20} MiB"
        documents: list[ProbeDocument] = []
        if not self._too_much and (status == "ok" or self.planned.parts):
            try:
                documents = [decode_document(line) for line in self._results(whole=status != "ok")]
            except ValueError as error:
                if status == "ok":
                    status, reason = "garbage", str(error)
        if self.planned.parts:
            return self._judge_parts(documents, status, reason)
        return [self._outcome(self.planned.name, status, documents[0] if documents else None, reason)]

    def _judge_parts(self, documents: list[ProbeDocument], status: Status, reason: str | None) -> list[ProbeOutcome]:
        """Return an outcome for each planned part. Parts without a document get `status` and `reason`."""
        by_schema = {document.schema: document for document in documents}
        if status == "ok" and documents and documents[-1].unavailable is not None:
            # A reason that prevents one part (no driver, no GPU) also prevents the later parts.
            status, reason = "unavailable", documents[-1].unavailable
        elif status == "ok":
            status, reason = "garbage", "printed no result"
        return [
            self._outcome(name, "ok", by_schema[schema], None)
            if schema in by_schema
            else self._outcome(name, status, None, reason)
            for schema, name in self.planned.parts
        ]

    def _results(self, *, whole: bool) -> list[bytes]:
        """Return the output of each part (a line), or of a program without parts. With `whole`, omit a partial line."""
        lines = bytes(self._output).splitlines(keepends=True) if self.planned.parts else [bytes(self._output)]
        # Unless the program has failed, return at least one element, so that decoding no output fails.
        return [line for line in lines if line.endswith(b"\n") or not whole] or ([] if whole else [b""])

    def _outcome(self, name: str, status: Status, document: ProbeDocument | None, reason: str | None) -> ProbeOutcome:
        """Return an outcome with the durations so far."""
        if document is not None and document.unavailable is not None:
            status, reason = "unavailable", document.unavailable
        now = time.perf_counter()
        go = self._go_at if self._go_at is not None else now  # the program may have ended before it measured
        return ProbeOutcome(
            name=name,
            planned=self.planned,
            status=status,
            document=document,
            reason=reason,
            setup_s=go - self._started,
            measure_s=now - go,
        )

    def _last_message(self) -> str:
        """Return ": " and the last line of standard error that is not a progress message; "" without such a line."""
        return f": {self._tail[-1]}" if self._tail else ""

    def _read_output(self) -> None:
        """Collect standard output in a thread. End a program that prints too much."""
        stream = self._process.stdout
        if stream is None:
            return
        while block := os.read(stream.fileno(), 1 << 16):
            self._output += block
            if len(self._output) > MAX_OUTPUT_BYTES:
                self._too_much = True
                self._output.clear()
                self.end()
                return

    def _read_messages(self) -> None:
        stream = self._process.stderr
        if stream is not None:
            while line := stream.readline(_LONGEST_LINE):
                self._handle_line(line.decode(errors="replace").strip())
        self._events.put("ended")

    def _handle_line(self, line: str) -> None:
        """Act on a progress message; keep any other line for the error message."""
        message = _message(line)
        if message is None:
            if line:
                self._tail = [*self._tail[1 - _KEPT_LINES :], line[:300]]
        elif message["event"] == "ready":
            self._events.put("ready")
        elif message["event"] == "done":
            self._done.set()
            self._events.put("ended")  # a program that cannot measure here is done without having been ready
        elif message["event"] == "progress" and self._on_progress is not None:
            done, of = message.get("done"), message.get("of")
            if isinstance(done, int) and isinstance(of, int):
                what = str(message.get("what", ""))[:200]
                name = dict(self.planned.parts).get(str(message.get("schema")), self.planned.name)
                self._on_progress(ProbeStep(probe=name, stage="measuring", what=what, done=done, of=of))


def _message(line: str) -> dict[str, Any] | None:
    """Return a progress message, or None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("event"), str) else None


def signal_name(number: int) -> str:
    """Return the signal's name, such as SIGSEGV, or `signal NUMBER` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_probes(plan: Sequence[Planned], on_progress: Callable[[ProbeStep], None] | None = None) -> list[ProbeOutcome]:
    """Load the programs in parallel, then let them measure one after another, in the order of the plan.

    Returns:
        Outcomes in the order of the plan, one per program or per part of a program. When this function returns or
        raises, even after Ctrl-C, every started process group has ended.
    """
    with contextlib.ExitStack() as stack:
        if on_progress is not None:
            on_progress(_loading(plan))
        running = [stack.enter_context(RunningProbe(planned, on_progress)) for planned in plan]
        started = time.perf_counter()
        # Before anything is measured, wait for all programs except those that may load while others measure.
        outcomes = {
            probe.planned.name: probe.give_up()
            for probe in running
            if not probe.planned.loads_aside and not probe.wait_until_ready(started + probe.planned.setup_timeout_s)
        }
        holding = [probe for probe in running if probe.planned.holds_gpus]
        for probe in running:
            name = probe.planned.name
            if name not in outcomes:
                ready = probe.wait_until_ready(started + probe.planned.setup_timeout_s)
                outcomes[name] = probe.measure() if ready else probe.give_up()
            if holding and probe is holding[-1]:
                _end_all(holding)  # the driver destroys GPU contexts slowly; meanwhile the host is measured
        _end_all(running)
        return [outcome for planned in plan for outcome in outcomes[planned.name]]


def _loading(plan: Sequence[Planned]) -> ProbeStep:
    return ProbeStep(probe="", stage="loading", what=", ".join(planned.name for planned in plan), of=len(plan))


def _end_all(probes: Sequence[RunningProbe]) -> None:
    for probe in probes:
        probe.end()
