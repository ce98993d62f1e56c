"""Which files to read: from the paths a person gave (files, directories, globs) to trace files.

Files that a person names are read as they are. In a directory only what looks like a trace is taken, nothing is
followed out of it (links), and no pipe or device is opened.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError, UsageError
from gpudiag.model.run_directory import KERNEL_ONLY_TRACES, TRACES_DIR
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.file_names import NameFacts, facts_of
from gpudiag.trace.readers import may_be_trace, recognised

#: Directories that hold traces: of a run, of torchtitan; the light ones of a run that ended before the full ones.
_TRACE_DIRECTORIES = (TRACES_DIR, "profile_trace", "profile_traces", KERNEL_ONLY_TRACES)
_ITERATION = re.compile(r"iteration_(\d{1,12})")
_DEEPEST = 4
#: For the hint where to look: how many folders are named, and looked into.
_MOST_NAMED = 4
_MOST_LOOKED_INTO = 200
_LONGEST_SEARCH_S = 3.0
NO_TRACES_HINT = (
    "Give a directory with .json or .json.gz files that torch.profiler wrote, or TensorFlow's .xplane.pb files."
)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One file to read.

    Attributes:
        path: where it is.
        shown: how the user would name it, printable.
        facts: what its name tells.
        size: bytes on disk; 0 where it cannot be told.
        found: it was found in a directory, not named: if it is no trace it is passed over.
        notes: what was chosen or left out in finding it.
    """

    path: Path
    shown: str
    facts: NameFacts
    size: int = 0
    found: bool = False
    notes: tuple[str, ...] = ()


def find_sources(paths: Sequence[Path | str]) -> tuple[Source, ...]:
    """The files behind paths: files, directories, and quoted globs, each file once.

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a path does not exist, or a directory holds no trace.
    """
    if not paths:
        raise UsageError("no path was given", "Give a trace, a directory of traces, or a run directory.")
    sources: dict[str, Source] = {}
    for given in paths:
        for source in _expand(given):
            sources.setdefault(os.path.realpath(source.path), source)
    return _newest_of_each_worker(list(sources.values()))


def _expand(given: Path | str) -> Iterator[Source]:
    text = os.fspath(given)
    if "\0" in text:
        raise UnreadableInputError(f"{with_escapes(text)} is no path", "Check the path.")
    if os.path.lexists(text):
        matches = [text]
    elif glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not matches:
            raise UnreadableInputError(f"nothing matches {with_escapes(text)}", "Check the pattern.")
        # A pattern names what it matches only loosely: `run/*` also matches what is no trace.
    else:
        raise UnreadableInputError(f"{with_escapes(text)} does not exist", "Check the path.")
    several = len(matches) > 1
    for match in matches:
        path = Path(match)
        if path.is_dir():
            yield from _in_directory(path)
        elif not several or may_be_trace(path.name):
            yield _source(path, found=several)


def _source(path: Path, *, found: bool, notes: tuple[str, ...] = ()) -> Source:
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    return Source(path=path, shown=with_escapes(str(path)), facts=facts_of(path), size=size, found=found, notes=notes)


def _in_directory(directory: Path) -> tuple[Source, ...]:
    try:
        sources = _search(directory, _DEEPEST)
    except OSError as error:
        raise UnreadableInputError(
            f"{with_escapes(str(error.filename or directory))}: {error.strerror}", "Check its permissions."
        ) from error
    if not sources:
        raise no_traces(directory)
    return sources


def no_traces(directory: Path) -> NotATraceError:
    """The error for a directory without traces."""
    if below := list(islice(_holding(directory, _DEEPEST, _Budget()), _MOST_NAMED + 1)):
        named = ", ".join(with_escapes(str(path)) for path in below[:_MOST_NAMED])
        more = " and others" if len(below) > _MOST_NAMED else ""
        return NotATraceError(
            f"no traces in {with_escapes(str(directory))} itself, but in folders below it: {named}{more}",
            "Give one of these: traces of one command are taken for ranks of one job.",
        )
    return NotATraceError(
        f"no traces in {with_escapes(str(directory))}",
        NO_TRACES_HINT,
    )


class _Budget:
    """Count the directories that may still be searched for a hint."""

    def __init__(self) -> None:
        self.left = _MOST_LOOKED_INTO
        self.until = time.monotonic() + _LONGEST_SEARCH_S

    def spend(self) -> bool:
        """Take one directory, and return whether it may be searched."""
        self.left -= 1
        return self.left >= 0 and time.monotonic() < self.until


def _holding(directory: Path, depth: int, budget: _Budget) -> Iterator[Path]:
    """Yield the directories below this one that hold a recording, the outermost of each."""
    if depth == 0:
        return
    try:
        with os.scandir(directory) as listing:
            shown = (entry for entry in listing if not entry.name.startswith("."))
            below = sorted(Path(entry.path) for entry in shown if entry.is_dir(follow_symlinks=False))
    except OSError:
        return  # it is only for a hint
    for path in below:
        if not budget.spend():
            return
        try:
            holds = bool(_search(path, depth - 1))
        except OSError:
            continue
        if holds:
            yield path
        else:
            yield from _holding(path, depth - 1, budget)


def _search(directory: Path, depth: int) -> tuple[Source, ...]:
    """The traces of one recording in a directory: its own files, or else those of the likeliest place below."""
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    files = [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
    if direct := recognised(files):
        return tuple(_source(path, found=True) for path in direct)
    if depth == 0:
        return ()
    below = {entry.name: Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)}
    for name in _TRACE_DIRECTORIES:
        if name in below and (sources := _search(below[name], depth - 1)):
            return sources
    iterations = {int(match[1]): path for name, path in below.items() if (match := _ITERATION.fullmatch(name))}
    for iteration in sorted(iterations, reverse=True):
        if sources := _search(iterations[iteration], depth - 1):
            return _noted(
                sources, f"of {len(iterations)} recordings the latest was read: iteration_{iteration}", iterations
            )
    if "plugins" in below:
        recordings = _directories(below["plugins"] / "profile")
        for recording in sorted(recordings, reverse=True):
            if sources := _search(recording, 0):
                return _noted(
                    sources, f"of {len(recordings)} recordings the latest was read: {recording.name}", recordings
                )
    ranks = [path for path in below.values() if facts_of(path / "trace.json").rank is not None]
    return tuple(source for path in ranks for source in _search(path, depth - 1))


def _noted(sources: tuple[Source, ...], note: str, choices: Sequence[Path] | dict[int, Path]) -> tuple[Source, ...]:
    """The sources, the first with a note where there was a choice."""
    if len(choices) < 2:
        return sources
    return (msgspec.structs.replace(sources[0], notes=(*sources[0].notes, with_escapes(note))), *sources[1:])


def _directories(parent: Path) -> list[Path]:
    if parent.is_symlink() or not parent.is_dir():
        return []
    with os.scandir(parent) as listing:
        return [Path(entry.path) for entry in listing if entry.is_dir(follow_symlinks=False)]


def _newest_of_each_worker(sources: list[Source]) -> tuple[Source, ...]:
    """tensorboard_trace_handler writes a file per cycle: keep each worker's newest, and say so."""
    cycles: dict[tuple[Path, str], list[Source]] = {}
    for source in sources:
        if source.facts.worker:
            cycles.setdefault((source.path.parent, source.facts.worker), []).append(source)
    kept: dict[Path, Source] = {}
    dropped: set[Path] = set()
    for several in cycles.values():
        newest = max(several, key=lambda source: source.facts.stamp)
        if len(several) > 1:
            note = f"{newest.shown}: the newest of the {len(several)} files of its worker; the others were left out"
            kept[newest.path] = msgspec.structs.replace(newest, notes=(*newest.notes, note))
            dropped.update(source.path for source in several if source is not newest)
    return tuple(kept.get(source.path, source) for source in sources if source.path not in dropped)
