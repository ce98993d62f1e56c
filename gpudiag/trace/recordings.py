"""Divide the paths that a user gave into recordings: directories with traces of the same rank belong to two jobs.

Traces in one directory belong to one recording; if a rank occurs twice there, the timeline resolves the conflict.
Copies of a trace belong to one recording too.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudiag.errors import UsageError
from gpudiag.model.event import Trace
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.sources import find_sources

#: (Rank, origin in ns, number of events) of a trace. Copies of a trace have equal claims.
_Claim = tuple[int, int, int]


class Recording(msgspec.Struct, frozen=True):
    """A recording: the paths to analyse, and the ranks that have traces in it."""

    paths: tuple[str, ...]
    ranks: tuple[int, ...]


class SeveralRecordingsError(UsageError):
    """The paths belong to several jobs, which cannot be analysed as one."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = tuple(recordings)
        first, second = self.recordings[:2]
        rank = min({*first.ranks} & {*second.ranks})
        a, b = (with_escapes(recording.paths[0]) for recording in (first, second))
        super().__init__(
            f"{a} and {b} both have rank {rank}: they are of two jobs",
            f"Give the traces of one job, or compare two: {diff_command(self.recordings)}",
        )


def diff_command(recordings: Sequence[Recording]) -> str:
    """Return the command that compares the first two recordings, with letters A and B if one has several paths."""
    paths = [shlex.quote(with_escapes(recording.paths[0])) for recording in recordings[:2]]
    named = all(len(recording.paths) == 1 for recording in recordings[:2])
    return f"gpudiag diff {' '.join(paths)}" if named else "gpudiag diff A B (a directory or a pattern for each)"


def check_one_recording(paths: Sequence[Path | str], traces: Sequence[Trace]) -> None:
    """Raise `SeveralRecordingsError` if the traces that were read from these paths belong to several jobs."""
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    if len(ranks) == len(set(ranks)):
        return
    recordings = separate_recordings(paths, traces)
    if len(recordings) > 1:
        raise SeveralRecordingsError(recordings)


def separate_recordings(paths: Sequence[Path | str], traces: Sequence[Trace]) -> tuple[Recording, ...]:
    """Return the recordings among the paths, from the traces that were read from these paths.

    Directories are visited in the given order. A directory begins a new recording if the previous recording has a
    different trace of one of the directory's ranks. Thus the directories of a job's nodes form one recording.
    """
    by_source = _claims(traces)
    recordings: list[tuple[list[str], set[_Claim]]] = []
    for directory, sources in _by_directory(paths).values():
        claims = {claim for source in sources for claim in by_source.get(source, ())}
        if not recordings or _conflict(recordings[-1][1], claims):
            recordings.append(([], set()))
        recordings[-1][0].extend(directory)
        recordings[-1][1].update(claims)
    return tuple(Recording(tuple(names), tuple(sorted({rank for rank, *_ in claims}))) for names, claims in recordings)


def _claims(traces: Sequence[Trace]) -> dict[str, list[_Claim]]:
    """Return source → claims of the traces that were read from it."""
    claims: dict[str, list[_Claim]] = {}
    for trace in traces:
        if trace.rank is not None:
            claims.setdefault(trace.source, []).append((trace.rank, trace.origin_ns, len(trace.events)))
    return claims


def _by_directory(paths: Sequence[Path | str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return directory → (paths, names of their trace files). A path to a file is listed under the file's directory."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for path in (match for given in paths for match in _matches(os.fspath(given))):
        files = [file.shown for file in find_sources([path])]
        directory = path if Path(path).is_dir() else os.path.dirname(path)  # noqa: PTH120 # as the user wrote it
        names, sources = groups.setdefault(os.path.realpath(directory), ([], []))
        names.append(path)
        sources.extend(files)
    return groups


def _matches(path: str) -> list[str]:
    """Return the paths that a pattern stands for."""
    if glob.has_magic(path) and not os.path.lexists(path):
        return sorted(glob.glob(path, recursive=True))  # noqa: PTH207 # Path.glob takes no absolute pattern
    return [path]


def _conflict(first: set[_Claim], second: set[_Claim]) -> bool:
    """Return whether two recordings have different traces of the same rank."""
    return bool({rank for rank, *_ in first - second} & {rank for rank, *_ in second - first})
