"""The log of line events of one process, as `training.session.line_log` writes it, and how to read it."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpudiag.model.quantities import Nanoseconds, Number
from gpudiag.model.run_directory import LINES_DIR, find_run_directory

LINES_SCHEMA = "gpudiag/lines/1"

#: Values of an event that are no line number.
CALL, LEAVE, STEP, PAUSE = -1, -2, -3, -4
#: `CALLS` - n: n functions that are not recorded were called since the event before; `sys.settrace` slows each.
CALLS = -1000
#: Values of an event that say which work the current line calls.
WORK = {-11: "input", -12: "forward", -13: "backward", -14: "optimizer"}

#: Maximum size of a log in bytes, and maximum number of logs.
_MAX_BYTES, _MAX_LOGS = 64 << 20, 4096
_NAME = Annotated[str, msgspec.Meta(max_length=4096)]


class Code(msgspec.Struct, frozen=True):
    """A function; `own` is False in a library that drives the loop."""

    file: _NAME
    function: _NAME
    line: Number
    own: bool


class Events(msgspec.Struct, frozen=True):
    """Events as columns.

    Attributes:
        ns: differences of times; the first is a time of `perf_counter_ns`.
        code: index of the function; -1 for none.
        value: line number, or one of `CALL`, `LEAVE`, `STEP`, `PAUSE` (gpudiag runs until the next `STEP`), `CALLS` and
            the keys of `WORK`.
    """

    ns: list[Nanoseconds]
    code: list[Number]
    value: list[Number]

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield (time, code, value) of each event."""
        at_ns = 0
        for ns, code, value in zip(self.ns, self.code, self.value, strict=False):
            at_ns += ns
            yield at_ns, code, value


class LogSection(msgspec.Struct, frozen=True):
    """Consecutive steps: without the profiler (`alone`), or those of a recording; `threads` has those of others."""

    kind: Literal["alone", "light", "full"]
    events: Events
    threads: list[Events] = []


class ProcessLines(msgspec.Struct, frozen=True, kw_only=True):
    """Line events of one process.

    Attributes:
        pid, parent: process numbers.
        by: `events`: `sys.monitoring`. `traced`: `sys.settrace`, which slows pure Python.
        unavailable: the reason why nothing was recorded, or recording ended early; "" otherwise.
        directory: the program's working directory.
        stack: (code, line) of the loop's frames as the first section began, outermost first.
        codes: the functions.
        texts: file → line number → text.
        sections: the events.
    """

    schema: Literal["gpudiag/lines/1"]
    pid: Number
    parent: Number
    by: Literal["events", "traced"] = "events"
    unavailable: str = ""
    directory: _NAME = ""
    stack: list[tuple[Number, Number]] = []
    codes: list[Code] = []
    texts: dict[str, dict[str, str]] = {}
    sections: list[LogSection] = []


class LineLogs(msgspec.Struct, frozen=True):
    """The logs of a run.

    Attributes:
        ranks: log of each process, by the rank of its first device.
        workers: logs of DataLoader workers.
        unread: names of files that could not be read, with the reason.
    """

    ranks: dict[int, ProcessLines] = {}
    workers: tuple[ProcessLines, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Return why lines of some processes are unknown; "" if none are missing."""
        reasons = [log.unavailable for log in self.ranks.values() if log.unavailable]
        return "; ".join(dict.fromkeys([*reasons, *(f"{name} cannot be read" for name in self.unread)]))

    def workers_of(self, rank: int) -> tuple[ProcessLines, ...]:
        """Return the logs of the workers that a rank's process started."""
        log = self.ranks.get(rank)
        return tuple(worker for worker in self.workers if log is not None and worker.parent == log.pid)


def find_line_logs(paths: Sequence[Path | str]) -> LineLogs:
    """Return the logs beside the given traces, if a single path names a run directory; an unreadable one is named."""
    directory = find_run_directory(paths)
    folder = None if directory is None else directory / LINES_DIR
    if folder is None or not folder.is_dir():
        return LineLogs()
    ranks: dict[int, ProcessLines] = {}
    workers: list[ProcessLines] = []
    unread: list[str] = []
    for path in sorted(folder.glob("*.json.gz"))[:_MAX_LOGS]:
        try:
            log = _read(path)
        except (OSError, EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            unread.append(f"{LINES_DIR}/{path.name} ({type(error).__name__})")
            continue
        name = path.name.removesuffix(".json.gz")
        if name.startswith("worker"):
            workers.append(log)
        with contextlib.suppress(ValueError):
            ranks[int(name.removeprefix("rank"))] = log
    return LineLogs(ranks, tuple(workers), tuple(unread))


def _read(path: Path) -> ProcessLines:
    if path.is_symlink() or not path.is_file():
        raise ValueError("no regular file")
    with gzip.open(path) as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError("too large")
    log = msgspec.json.decode(data, type=ProcessLines)
    columns = [events for section in log.sections for events in (section.events, *section.threads)]
    known = range(-1, len(log.codes))
    if any(code not in known for events in columns for code in set(events.code)):
        raise ValueError("names functions that it does not describe")
    if any(code not in known[1:] for code, _ in log.stack):
        raise ValueError("names functions that it does not describe")
    return log
