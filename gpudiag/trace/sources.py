"""Find the trace files behind the paths that a user gave (files, directories, globs).

A file that the user gave is read regardless of its name. In a directory, only files that look like traces are read;
links are not followed, and pipes and devices are not opened.
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
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import DIGESTS_DIR, KERNEL_ONLY_TRACES, RUN_FILE, TRACES_DIR, readable_json
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.ranks import NameFacts, parse_name, rank_per_file
from gpudiag.trace.readers import may_be_trace, reader_of, recognised

#: Directories of traces in a run directory and in torchtitan's output, in order of preference. Kernel-only traces are
#: read only if the run ended before the full traces were written.
_TRACE_DIRECTORIES = (TRACES_DIR, "profile_trace", "profile_traces", DIGESTS_DIR, KERNEL_ONLY_TRACES)
_ITERATION = re.compile(r"iteration_(\d{1,12})")
#: Ending of the names of tables of operations, in lower case.
_TABLE_ENDING = ".parquet"
#: Maximum number of levels below a given directory that are searched.
_MAX_DEPTH = 4
#: Limits on the search for the hint that names directories with traces.
_MAX_NAMED = 4
_MAX_SEARCHED = 200
_MAX_SEARCH_S = 3.0
NO_TRACES_HINT = (
    "Give a directory with .json or .json.gz files that torch.profiler wrote, TensorFlow's .xplane.pb files, or "
    "Nsight Systems' .sqlite exports."
)


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read.

    Attributes:
        path: the file.
        shown: the printable path, for messages.
        name_facts: facts in the file's name.
        size: bytes on disk; 0 if unknown.
        from_directory: whether the file was found in a directory or is one of several matches of a pattern, so that it
            may be no trace.
        notes: messages about choices between several files or directories.
    """

    path: Path
    shown: str
    name_facts: NameFacts
    size: int = 0
    from_directory: bool = False
    notes: tuple[str, ...] = ()


def find_sources(paths: Sequence[Path | str]) -> tuple[TraceFile, ...]:
    """Return the files that paths stand for (files, directories, quoted globs), each file once.

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a path does not exist, or a directory holds no trace.
    """
    if not paths:
        raise UsageError("no path was given", "Give a trace, a directory of traces, or a run directory.")
    files: dict[str, TraceFile] = {}
    for path in paths:
        for file in _expand(path):
            files.setdefault(os.path.realpath(file.path), file)
    return _newest_of_each_worker(list(files.values()))


def _expand(path: Path | str) -> Iterator[TraceFile]:
    """Yield the files behind one path: a file, a directory, or a pattern."""
    text = os.fspath(path)
    if "\0" in text:
        raise UnreadableInputError(f"{with_escapes(text)} is no path", "Check the path.")
    if os.path.lexists(text):
        matches = [text]
    elif glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not matches:
            raise UnreadableInputError(f"nothing matches {with_escapes(text)}", "Check the pattern.")
    else:
        raise UnreadableInputError(f"{with_escapes(text)} does not exist", "Check the path.")
    several = len(matches) > 1
    for match in matches:
        if Path(match).is_dir():
            yield from _in_directory(Path(match))
        elif not several or may_be_trace(Path(match).name):  # `run/*` also matches files other than traces
            yield _trace_file(Path(match), from_directory=several)


def _trace_file(path: Path, *, from_directory: bool) -> TraceFile:
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    shown = with_escapes(str(path))
    return TraceFile(path=path, shown=shown, name_facts=parse_name(path), size=size, from_directory=from_directory)


def _in_directory(directory: Path) -> tuple[TraceFile, ...]:
    """Return the traces of a directory. Raise an error if it has none or cannot be searched."""
    try:
        files = _search(directory, _MAX_DEPTH)
    except OSError as error:
        raise UnreadableInputError(
            f"{with_escapes(str(error.filename or directory))}: {error.strerror}", "Check its permissions."
        ) from error
    if not files:
        raise no_traces(directory)
    return files


def no_traces(directory: Path) -> NotATraceError:
    """Return the error for a directory without traces.

    The message gives the error of a run that failed, or names subdirectories that have traces.
    """
    message = f"no traces in {with_escapes(str(directory))}"
    run = readable_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)
    if run is not None and run.error is not None:
        return NotATraceError(f"{message}: {with_escapes(run.error)}", "Measure again without this error.")
    below = list(islice(_directories_with_traces(directory, _MAX_DEPTH, _SearchBudget()), _MAX_NAMED + 1))
    if not below:
        return NotATraceError(message, NO_TRACES_HINT)
    named = ", ".join(with_escapes(str(path)) for path in below[:_MAX_NAMED])
    more = " and others" if len(below) > _MAX_NAMED else ""
    return NotATraceError(
        f"{message} itself, but in folders below it: {named}{more}",
        "Give one of these: traces of one command are taken for ranks of one job.",
    )


class _SearchBudget:
    """Limits on the search for a hint: the number of directories and the time."""

    def __init__(self) -> None:
        self.left = _MAX_SEARCHED
        self.until = time.monotonic() + _MAX_SEARCH_S

    def spend(self) -> bool:
        """Count one directory, and return whether it may be searched."""
        self.left -= 1
        return self.left >= 0 and time.monotonic() < self.until


def _directories_with_traces(directory: Path, depth: int, budget: _SearchBudget) -> Iterator[Path]:
    """Yield the outermost directories, at most `depth` levels below `directory`, that contain a recording."""
    if depth == 0:
        return
    try:
        below = sorted(path for path in _subdirectories(directory) if not path.name.startswith("."))
    except OSError:
        return  # an error only makes the hint shorter
    for path in below:
        if not budget.spend():
            return
        try:
            has_traces = bool(_search(path, depth - 1))
        except OSError:
            continue
        if has_traces:
            yield path
        else:
            yield from _directories_with_traces(path, depth - 1, budget)


def _search(directory: Path, depth: int) -> tuple[TraceFile, ...]:
    """Return the traces of one recording: those in the directory, or else those at most `depth` levels below it."""
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    files = [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
    if traces := recognised(files):
        return tuple(_trace_file(path, from_directory=True) for path in traces)
    if depth == 0:
        return ()
    return _search_below(
        {entry.name: Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)}, depth
    )


def _search_below(directories: dict[str, Path], depth: int) -> tuple[TraceFile, ...]:
    """Return the traces of the most likely of the `directories` (name → path), or of all that are named like ranks.

    Tried in this order: `_TRACE_DIRECTORIES`, torchtitan's iterations, profiles of TensorBoard, directories of ranks.
    `depth` is as in `_search`; TensorBoard's profiles have no subdirectories.
    """
    for name in _TRACE_DIRECTORIES:
        if name in directories and (files := _search(directories[name], depth - 1)):
            return (*files, *_digests_of_others(directories, files, depth)) if name == TRACES_DIR else files
    iterations = {int(match[1]): path for name, path in directories.items() if (match := _ITERATION.fullmatch(name))}
    if files := _latest([iterations[number] for number in sorted(iterations)], depth - 1):
        return files
    if "plugins" in directories and (files := _latest(sorted(_tensorboard_recordings(directories["plugins"])), 0)):
        return files
    ranks = [path for path in directories.values() if parse_name(path / "trace.json").rank is not None]
    return tuple(file for path in ranks for file in _search(path, depth - 1))


def _digests_of_others(directories: dict[str, Path], traces: tuple[TraceFile, ...], depth: int) -> list[TraceFile]:
    """Return a run's digests of ranks that none of `traces` has: ranks of other nodes, copied by `gpudiag gather`.

    Return [] if a trace's name states no rank, or a file of its format may have several ranks, because a digest could
    then repeat a trace.
    """
    ranks = {file.name_facts.rank for file in traces}
    if DIGESTS_DIR not in directories or None in ranks or not all(map(ranks_by_file, traces)):
        return []
    return [file for file in _search(directories[DIGESTS_DIR], depth - 1) if file.name_facts.rank not in ranks]


def ranks_by_file(file: TraceFile) -> bool:
    """Return whether each file of this format is one rank, so that it can be read without the other files."""
    return getattr(reader_of(file.path), "assign_ranks", rank_per_file) is rank_per_file


def _latest(recordings: list[Path], depth: int) -> tuple[TraceFile, ...]:
    """Return the traces of the last of `recordings` that has traces; add a note if there are several recordings."""
    for recording in reversed(recordings):
        if files := _search(recording, depth):
            if len(recordings) == 1:
                return files
            note = with_escapes(f"of {len(recordings)} recordings the latest was read: {recording.name}")
            return (msgspec.structs.replace(files[0], notes=(*files[0].notes, note)), *files[1:])
    return ()


def _tensorboard_recordings(plugins: Path) -> list[Path]:
    profile = plugins / "profile"
    return [] if profile.is_symlink() or not profile.is_dir() else _subdirectories(profile)


def _subdirectories(directory: Path) -> list[Path]:
    with os.scandir(directory) as listing:
        return [Path(entry.path) for entry in listing if entry.is_dir(follow_symlinks=False)]


def _newest_of_each_worker(files: list[TraceFile]) -> tuple[TraceFile, ...]:
    """Keep each worker's newest file and add a note, because tensorboard_trace_handler writes one file per cycle.

    Files whose names state no worker are all kept.
    """
    by_worker: dict[tuple[Path, str], list[TraceFile]] = {}
    for file in files:
        if file.name_facts.worker:
            by_worker.setdefault((file.path.parent, file.name_facts.worker), []).append(file)
    kept: dict[Path, TraceFile] = {}
    dropped: set[Path] = set()
    for cycles in by_worker.values():
        newest = max(cycles, key=lambda file: file.name_facts.stamp)
        if len(cycles) > 1:
            note = f"{newest.shown}: the newest of the {len(cycles)} files of its worker; the others were left out"
            kept[newest.path] = msgspec.structs.replace(newest, notes=(*newest.notes, note))
            dropped.update(file.path for file in cycles if file is not newest)
    return tuple(kept.get(file.path, file) for file in files if file.path not in dropped)


def find_operation_table(paths: Sequence[Path | str]) -> Path | None:
    """Return the table of operations among paths of a user (a file, or the only one in a directory); else None.

    Files are recognised by the ending `.parquet`. Tables in a directory that also has traces are ignored. Links in a
    directory are not followed.

    Raises:
        UnreadableInputError: there are several tables, or other paths besides a table.
    """
    named = [Path(path) for path in paths if "\0" not in str(path)]  # `find_sources` refuses the others
    tables = [path for path in named if path.name.lower().endswith(_TABLE_ENDING) and not path.is_dir()]
    if not tables and len(named) == 1 and named[0].is_dir():
        tables = _tables_in(named[0])
        if tables and _has_traces(named[0]):
            return None
        named = named if len(tables) == 1 else tables  # several tables are an error, whose message lists `named`
    if not tables:
        return None
    if len(tables) > 1 or len(named) > 1:
        raise UnreadableInputError(
            f"several inputs with a table of operations: {', '.join(with_escapes(str(path)) for path in named[:4])}",
            "Give one table: it has all ranks of its job.",
        )
    return tables[0]


def _has_traces(directory: Path) -> bool:
    try:
        return bool(find_sources([directory]))
    except NotATraceError:
        return False


def _tables_in(directory: Path) -> list[Path]:
    """Return the tables of operations in a directory, in order of name; [] if it cannot be read."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return []  # `find_sources` will report the error
    return [
        path
        for path in entries
        if path.name.lower().endswith(_TABLE_ENDING) and path.is_file() and not path.is_symlink()
    ]
