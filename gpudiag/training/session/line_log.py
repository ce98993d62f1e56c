"""Record the time at which the training thread enters each line of the user's program, in sections of several steps.

The first `DISCOVERY_STEPS` steps of the first section find the user's functions and count their events. The log file
contains only events. The analysis attributes time to lines.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import linecache
import math
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from gpudiag.model.run_directory import SOURCE_TEXT_VARIABLE
from gpudiag.training.session.line_events import PAUSE, STEP, Entry, MonitoredEvents, TracedEvents, make_source
from gpudiag.training.session.user_code import is_own, loop_frames, shown_name

LINES_SCHEMA = "gpudiag/lines/1"
#: Kind of a section. `alone`: steps without the profiler. `light`, `full`: recorded steps of a trace of this kind.
Section = Literal["alone", "light", "full"]

#: Number of steps in which the user's functions are found and their events counted.
DISCOVERY_STEPS = 2
#: Maximum number of events of the whole log.
_MAX_EVENTS = 300_000
#: Maximum length of a source line in the log file, in characters.
_MAX_TEXT = 200
#: A file counts as changed if it was modified more than this number of seconds after the program began. The clocks of
#: file systems and hosts differ by less.
_CHANGED_S = 2.0
#: Maximum length of the reason for a recompilation, in characters.
_MAX_REASON = 300


class LineLog:
    """Record the line events of this process. All methods must be called on the training thread.

    Attributes:
        unavailable: reason why nothing is recorded; "" if lines are recorded.
        sections: (kind, events of the training thread, events by identifier of each other thread) of each section.
    """

    def __init__(self) -> None:
        self.unavailable = ""
        self.sections: list[tuple[Section, list[Entry], dict[int, list[Entry]]]] = []
        #: Function and line number of each frame of the training loop in the first section, the outermost first.
        self._stack: list[tuple[CodeType, int]] = []
        self._source: MonitoredEvents | TracedEvents | None = None
        self._total = 0  # number of events of the training thread in all completed steps
        self._step_begin = 0  # index of the current step's first event in its section
        self._steps = 0  # number of steps that the section has begun
        self._recording = False
        self._compilations = _Compilations()

    def begin(self, section: Section, *, in_loop: bool = True) -> None:
        """Begin a section at a step's end. Only the first section discovers functions.

        `in_loop` is False in a DataLoader worker, whose stack does not contain the training loop.
        """
        if self.unavailable:
            return
        if self._source is None:
            self._source, self.unavailable = make_source()
            if self._source is None:
                return
            if isinstance(self._source, TracedEvents):
                self._source.calibrate()
        entries: list[Entry] = []
        others: dict[int, list[Entry]] = defaultdict(list)
        self.sections.append((section, entries, others))
        frames = loop_frames(sys._getframe(1) if in_loop else None)  # noqa: SLF001  # the documented way to a caller's frame
        if not self._stack:
            self._stack = [(frame.f_code, frame.f_lineno) for frame in frames]
        self._steps = 0
        self._recording = True
        # Compilations before the first section are not counted.
        if section == "alone":
            self._compilations.read(count=False)
        try:
            self._source.start(frames, entries, others, discover=len(self.sections) == 1)
        except Exception as error:  # noqa: BLE001  # the training goes on
            self._stop(f"{type(error).__name__}: {error}")
            return
        self.step()

    def step(self) -> None:
        """Note that a step ends and the next step begins. End the section if the log has too many events.

        Frequent events are disabled in sections `alone`, and stay disabled in the recorded sections that follow.
        """
        if self._source is None or self.unavailable or not self.sections:
            return
        entries = self.sections[-1][1]
        if self._steps:
            step_entries = entries[self._step_begin :]
            self._total += len(step_entries)
            if self.sections[-1][0] == "alone":
                self._compilations.read()
                self._source.limit(step_entries, discovering=self._steps < DISCOVERY_STEPS)
            if self._total > _MAX_EVENTS:
                self._stop("")
                return
        self._steps += 1
        self._step_begin = len(entries)
        entries.append((time.perf_counter_ns(), None, STEP))

    def pause(self) -> None:
        """Note that gpudiag's own code runs from now until `mark`."""
        if self.sections and self._recording:
            self.sections[-1][1].append((time.perf_counter_ns(), None, PAUSE))

    def mark(self) -> None:
        """Move the latest end of a step to now, because the profiler's range of the next step begins now."""
        entries = self.sections[-1][1] if self.sections else []
        if entries and entries[-1][2] == STEP:
            entries[-1] = (time.perf_counter_ns(), None, STEP)

    def end(self) -> None:
        """End the section. Further calls do nothing."""
        self._stop("")

    def _stop(self, reason: str) -> None:
        self.unavailable = self.unavailable or reason
        recording, self._recording = self._recording, False
        if self._source is not None and recording:  # outside a section, an active tracer may belong to the user
            with contextlib.suppress(Exception):
                self._source.stop()

    def encode(self) -> dict[str, Any]:
        """Return the content of the log file. `gpudiag.model.source_lines.log` describes the format."""
        numbers: dict[CodeType | None, int] = {None: -1}  # functions in order of appearance; -1: none
        for code, _ in self._stack:
            numbers.setdefault(code, len(numbers) - 1)
        sections = [
            {
                "kind": kind,
                "events": _columns(entries, numbers),
                "threads": [_columns(of_thread, numbers) for of_thread in others.values() if of_thread],
            }
            for kind, entries, others in self.sections
        ]
        codes = [code for code in numbers if code is not None]
        texts: dict[str, dict[str, str]] = {}
        without_text: dict[str, str] = {}
        if os.environ.get(SOURCE_TEXT_VARIABLE, "1") != "0":
            texts, without_text = _texts(codes, self.sections, self._stack)
        return {
            "schema": LINES_SCHEMA,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "host": os.uname().nodename,
            "begun": _start_ticks(os.getpid()),
            "parent_begun": _start_ticks(os.getppid()),
            "by": "traced" if isinstance(self._source, TracedEvents) else "events",
            "call_ns": self._source.call_ns if isinstance(self._source, TracedEvents) else 0.0,
            "unavailable": self.unavailable,
            "directory": _directory(),
            "stack": [[numbers[code], line] for code, line in self._stack],
            "codes": [
                {
                    "file": shown_name(code.co_filename),
                    "function": code.co_qualname,
                    "line": code.co_firstlineno,
                    "own": is_own(code.co_filename),
                }
                for code in codes
            ],
            "texts": texts,
            "without_text": without_text,
            "compilations": self._compilations.rows(),
            "sections": sections,
        }


class _Compilations:
    """Count compilations of `torch.compile` by function. Call `read` in each step: PyTorch keeps the last 64 only."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._rows: dict[tuple[str, int, str], dict[str, Any]] = {}

    def read(self, *, count: bool = True) -> None:
        """Count the compilations since the last call; if `count` is False, ignore them."""
        # Do not import the module, because this would load the compiler into jobs that do not compile.
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        read = getattr(dynamo, "get_compilation_metrics", None)
        with contextlib.suppress(Exception):  # the interface is private and may change
            for entry in read() if read is not None else ():
                key = str(getattr(entry, "compile_id", "")), int(getattr(entry, "start_time_us", 0) or 0)
                # The compilation of a function's backward has an entry of its own, which is not counted.
                if key not in self._seen and getattr(entry, "is_forward", True):
                    self._seen.add(key)
                    if count:
                        self._add(entry)

    def _add(self, entry: Any) -> None:
        """Count one compilation, given PyTorch's metrics of it."""
        file, function = str(entry.co_filename or ""), str(entry.co_name or "")
        line = int(entry.co_firstlineno or 0)
        row = self._rows.setdefault(
            (file, line, function),
            {"file": file, "line": line, "function": function, "times": 0, "ms": 0.0, "reason": ""},
        )
        # Keep the reason's first line, without the comment that names the guard's source.
        reason = str(getattr(entry, "recompile_reason", None) or "").partition("\n")[0].partition("  #")[0].strip()
        row["times"] += 1
        row["ms"] += 1e3 * float(getattr(entry, "entire_frame_compile_time_s", None) or 0.0)
        row["reason"] = reason[:_MAX_REASON] or row["reason"]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each function: file, line, name, number of compilations, their time in ms, and a reason."""
        return list(self._rows.values())


def worker_log_name() -> str:
    """Return a file name for this worker's log that no worker of another machine or container has."""
    return f"worker{os.getpid()}-{os.urandom(4).hex()}.json.gz"


def write_lines(path: Path, content: dict[str, Any]) -> None:
    """Write a log so that a reader sees either no file or the whole log; raise OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with gzip.open(new, "wt", encoding="utf-8", compresslevel=3) as file:
        json.dump(content, file, separators=(",", ":"))
    new.replace(path)


def _start_ticks(pid: int) -> int:
    """Return the time at which a process started, in clock ticks since the machine booted; 0 if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _columns(entries: list[Entry], numbers: dict[CodeType | None, int]) -> dict[str, list[int]]:
    """Return the entries as columns `ns`, `code` and `value`. Number new functions, and add them to `numbers`.

    The first time is in ns of `perf_counter_ns`. Each further time is the difference to the previous time in ns.
    """
    times_ns, codes, values, last_ns = [], [], [], 0
    for at_ns, code, value in entries:
        times_ns.append(at_ns - last_ns)
        last_ns = at_ns
        codes.append(numbers.setdefault(code, len(numbers) - 1))  # - 1, because `numbers` also contains None
        values.append(value)
    return {"ns": times_ns, "code": codes, "value": values}


def _texts(
    codes: list[CodeType],
    sections: list[tuple[Section, list[Entry], dict[int, list[Entry]]]],
    stack: list[tuple[CodeType, int]],
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the texts of recorded lines and of the lines next to them, and the reasons why files have no text.

    The texts are keyed by file and line number, the reasons by file. If a file was changed after the program had begun,
    and lacks a recorded function, its text is omitted, because the program runs the old lines.
    """
    wanted: dict[str, set[int]] = defaultdict(set)
    known = set(codes)
    positions = [*stack]
    for _, entries, others in sections:
        for of_thread in (entries, *others.values()):
            positions.extend({(code, value) for _, code, value in of_thread if code in known and value > 0})
    for code, line in positions:
        wanted[code.co_filename].update(range(max(1, line - 1), line + 2))
    texts: dict[str, dict[str, str]] = {}
    without_text: dict[str, str] = {}
    begun_s = _begun_s()
    for file, lines in wanted.items():
        if _changed_s(file) > begun_s + _CHANGED_S and not _still_has(
            file, [code for code in codes if code.co_filename == file]
        ):
            without_text[shown_name(file)] = "was changed after the program had begun"
        elif not linecache.getlines(file):
            without_text[shown_name(file)] = "cannot be read"
        else:
            line_texts = {str(line): linecache.getline(file, line).rstrip()[:_MAX_TEXT] for line in sorted(lines)}
            texts[shown_name(file)] = line_texts
    return texts, without_text


def _still_has(file: str, codes: list[CodeType]) -> bool:
    """Return whether a modified file still has these functions. Some programs write a module, then import it."""
    try:
        known = [compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for code in known:  # the loop also visits the nested functions that it appends
        known.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return all(any(code == other for other in known) for code in codes)


def _begun_s() -> float:
    """Return the time at which this process started, in seconds of `time.time`; infinity if unknown."""
    ticks = _start_ticks(os.getpid())
    if not ticks:
        return math.inf
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _changed_s(file: str) -> float:
    """Return the time of a file's last modification, in seconds of `time.time`; 0 if the file cannot be read."""
    try:
        return Path(file).stat().st_mtime
    except (OSError, ValueError):
        return 0.0
