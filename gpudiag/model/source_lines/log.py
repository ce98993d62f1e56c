"""Define and read the log of one process's line events, which `training.session.line_log` writes."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpudiag.model.quantities import Nanoseconds, Number
from gpudiag.model.run_directory import LINES_DIR, find_run_directory

LINES_SCHEMA = "gpudiag/lines/1"

#: Values of an event that are not line numbers: begin and end of a function, begin of a step and of a pause.
CALL, LEAVE, STEP, PAUSE = -1, -2, -3, -4
#: Value `CALLS - n`: n unrecorded functions, which `sys.settrace` slows too, were called since the previous event.
CALLS = -1000
#: Values of an event → kind of work that the current line calls.
WORK = {-11: "input", -12: "forward", -13: "backward", -14: "optimizer"}
#: Values of an event that begin and end a range named `input`, in which all lines are input.
INPUT_BEGIN, INPUT_END = -15, -16

#: Maximum size of a log and of all logs together, unpacked, in bytes, and maximum number of logs. Events in memory take
#: up to ten times the bytes of the file.
MAX_LOG_BYTES, MAX_TOTAL_BYTES, _MAX_LOGS = 64 << 20, 256 << 20, 4096
#: Maximum number of files without text that a report names.
_SHOWN_FILES = 3
#: Names of the logs of ranks.
_RANK_LOG = re.compile(r"rank(\d{1,7})\.json\.gz", re.ASCII)
#: Names of the logs of DataLoader workers, and maximum number of such logs that are copied for one rank.
_WORKER_LOG, _MAX_WORKERS = re.compile(r"worker\d{1,12}(-[0-9a-f]{1,16})?\.json\.gz", re.ASCII), 256
_NAME = Annotated[str, msgspec.Meta(max_length=4096)]
_UNREADABLE = (OSError, EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError)


class Code(msgspec.Struct, frozen=True):
    """A function. `own` is True for the user's program, False for a library that drives the loop."""

    file: _NAME
    function: _NAME
    line: Number
    own: bool


class CompiledFunction(msgspec.Struct, frozen=True):
    """Number and duration of a function's compilations in unprofiled steps, and the last failed guard (`reason`)."""

    file: _NAME
    line: Number
    function: _NAME
    times: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    ms: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    reason: _NAME = ""


class Events(msgspec.Struct, frozen=True):
    """Events as columns.

    Attributes:
        ns: time since the previous event; for the first event, its time on the clock of `perf_counter_ns`.
        code: index of the function; -1 for none.
        value: line number, or `CALL`, `LEAVE`, `STEP`, `PAUSE` (gpudiag runs until the next `STEP`), `INPUT_BEGIN`,
            `INPUT_END`, a key of `WORK`, or a number below `CALLS`.
    """

    ns: list[Nanoseconds]
    code: list[Number]
    value: list[Number]

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield (time in ns, code, value) of each event."""
        at_ns = 0
        for ns, code, value in zip(self.ns, self.code, self.value, strict=False):
            at_ns += ns
            yield at_ns, code, value


class LogSection(msgspec.Struct, frozen=True):
    """Line events of consecutive steps, of the training thread and other `threads`.

    `kind` is `alone` for unprofiled steps, `light` for the kernel-only trace, `full` for the full trace.
    """

    kind: Literal["alone", "light", "full"]
    events: Events
    threads: list[Events] = []


class LogOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a log.

    Attributes:
        pid, parent: process numbers.
        host: name of the machine.
        begun, parent_begun: start times of the process and of its parent, in clock ticks of the machine; 0 if unknown.
    """

    schema: Literal["gpudiag/lines/1"]
    pid: Number
    parent: Number
    host: _NAME = ""
    begun: Number = 0
    parent_begun: Number = 0

    def started(self, other: LogOrigin) -> bool:
        """Return whether this process started the other process.

        Hosts and start times are compared too, because processes of two machines or containers may have equal numbers.
        """
        return (self.host, self.pid, self.begun) == (other.host, other.parent, other.parent_begun)


class ProcessLines(LogOrigin, frozen=True, kw_only=True):
    """Line events of one process.

    Attributes:
        by: `events`: `sys.monitoring`. `traced`: `sys.settrace`, which slows pure Python.
        call_ns: cost of an event, or of a call of an unrecorded function, under `sys.settrace`; 0 if unknown.
        unavailable: the reason why nothing was recorded, or recording ended early; "" otherwise.
        directory: the program's working directory.
        stack: (code, line) of the frames around the loop at the begin of the first section, outermost first.
        codes: the functions.
        texts: file → line number → text.
        without_text: file → reason why its text is unknown.
        compilations: functions that `torch.compile` compiled in the steps without the profiler.
        sections: the events.
    """

    by: Literal["events", "traced"] = "events"
    call_ns: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    unavailable: str = ""
    directory: _NAME = ""
    stack: list[tuple[Number, Number]] = []
    codes: list[Code] = []
    texts: dict[str, dict[str, str]] = {}
    without_text: dict[_NAME, _NAME] = {}
    compilations: list[CompiledFunction] = []
    sections: list[LogSection] = []


class LineLogs(msgspec.Struct, frozen=True):
    """The logs of a run.

    Attributes:
        ranks: rank of a process's first device → log.
        workers: logs of DataLoader workers.
        unread: names of files that could not be read, with the reason.
        omitted: names of files that were not read, because all logs together are too large.
    """

    ranks: dict[int, ProcessLines] = {}
    workers: tuple[ProcessLines, ...] = ()
    unread: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Return the reasons why lines of some processes are unknown; "" if none are missing."""
        reasons = [log.unavailable for log in self.ranks.values() if log.unavailable]
        reasons += [f"in a DataLoader worker, {log.unavailable}" for log in self.workers if log.unavailable]
        reasons += [f"{name} cannot be read" for name in self.unread]
        if self.omitted:
            more = f" and {len(self.omitted) - 1:,} more" if len(self.omitted) > 1 else ""
            limit = f"all logs together exceed {MAX_TOTAL_BYTES >> 20} MiB"
            reasons.append(f"{self.omitted[0]}{more} {'were' if more else 'was'} not read, because {limit}")
        return "; ".join(dict.fromkeys(reasons))

    @property
    def without_text(self) -> str:
        """Return the reasons why the text of some lines is unknown; "" if all text is known."""
        logs = (*self.ranks.values(), *self.workers)
        reasons = {f"{file} {reason}": None for log in logs for file, reason in sorted(log.without_text.items())}
        more = f", and {len(reasons) - _SHOWN_FILES} more" if len(reasons) > _SHOWN_FILES else ""
        return ", ".join(list(reasons)[:_SHOWN_FILES]) + more

    @property
    def has_lines(self) -> bool:
        """Return whether lines of at least one rank are known."""
        return any(log.sections for log in self.ranks.values())

    def workers_of(self, rank: int) -> tuple[ProcessLines, ...]:
        """Return the logs of the workers that a rank's process started."""
        log = self.ranks.get(rank)
        return tuple(worker for worker in self.workers if log is not None and log.started(worker))


def find_line_logs(paths: Sequence[Path | str]) -> LineLogs:
    """Return the line logs of the run directory that `paths` names; no logs if `paths` is not one run directory.

    Unreadable logs and logs beyond `MAX_TOTAL_BYTES` are listed by name. Workers' logs are read last. Other files are
    ignored.
    """
    directory = find_run_directory(paths)
    ranks: dict[int, ProcessLines] = {}
    workers: list[ProcessLines] = []
    unread: list[str] = []
    omitted: list[str] = []
    left = MAX_TOTAL_BYTES
    for path in _log_files(directory):
        name = f"{LINES_DIR}/{path.name}"
        if left <= 0:
            omitted.append(name)
            continue
        try:
            content = _content(path, left)
            log = None if content is None else _decode(content)
        except _UNREADABLE as error:
            unread.append(f"{name} ({type(error).__name__})")
            continue
        if log is None or content is None:
            left = 0  # smaller logs that follow are omitted too
            omitted.append(name)
            continue
        left -= len(content)
        rank = _RANK_LOG.fullmatch(path.name)
        if rank is not None:
            ranks[int(rank[1])] = log
        elif path.name.startswith("worker"):
            workers.append(log)
    return LineLogs(ranks, tuple(workers), tuple(unread), tuple(omitted))


def read_log_origins(directory: Path) -> dict[str, LogOrigin]:
    """Return file name → origin, for the readable logs in a run directory."""
    origins = {}
    for path in _log_files(directory):
        with contextlib.suppress(*_UNREADABLE):
            content = _content(path)
            if content is not None:
                origins[path.name] = msgspec.json.decode(content, type=LogOrigin)
    return origins


def logs_of_rank(origins: Mapping[str, LogOrigin], rank: int) -> dict[str, str]:
    """Return log → copy, as paths in a run directory, for the logs of a rank's process and of its workers.

    Names of workers' logs contain process numbers, which may be equal on two machines, so names of copies add the rank.
    """
    own = f"rank{rank}.json.gz"
    process = origins.get(own)
    if process is None:
        return {}
    names = [name for name, log in origins.items() if _WORKER_LOG.fullmatch(name) and process.started(log)]
    copies = {name: f"{name.removesuffix('.json.gz')}-rank{rank}.json.gz" for name in names[:_MAX_WORKERS]}
    return {f"{LINES_DIR}/{name}": f"{LINES_DIR}/{copy}" for name, copy in ({own: own} | copies).items()}


def _log_files(directory: Path | None) -> list[Path]:
    """Return the logs of ranks, sorted by rank, then the other logs; at most `_MAX_LOGS`."""
    folder = None if directory is None else directory / LINES_DIR
    if folder is None or folder.is_symlink() or not folder.is_dir():
        return []
    names = {path: _RANK_LOG.fullmatch(path.name) for path in folder.glob("*.json.gz")}
    # A rank has at most seven digits, so that 10**7 is after all ranks.
    order = sorted(names, key=lambda path: (int(rank[1]) if (rank := names[path]) else 10**7, path.name))
    return order[:_MAX_LOGS]


def _content(path: Path, most_bytes: int = MAX_LOG_BYTES) -> bytes | None:
    """Return the unpacked log; None if it is larger than `most_bytes`. A log beyond `MAX_LOG_BYTES` is an error."""
    if path.is_symlink() or not path.is_file():
        raise ValueError("no regular file")
    limit = min(most_bytes, MAX_LOG_BYTES)
    with gzip.open(path) as file:
        data = file.read(limit + 1)
    if len(data) <= limit:
        return data
    if limit < MAX_LOG_BYTES:
        return None
    raise ValueError("too large")


def _decode(content: bytes) -> ProcessLines:
    """Decode a log; refuse it if events or frames refer to functions that it does not describe."""
    log = msgspec.json.decode(content, type=ProcessLines)
    columns = [events for section in log.sections for events in (section.events, *section.threads)]
    known = range(-1, len(log.codes))
    if any(code not in known for events in columns for code in set(events.code)):
        raise ValueError("names functions that it does not describe")
    if any(code not in known[1:] for code, _ in log.stack):
        raise ValueError("names functions that it does not describe")
    return log
