"""`gpudiag digest`: write the digest of each rank, so that many ranks are analysed without their traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import msgspec

from gpudiag.errors import GpudiagError, NotATraceError
from gpudiag.model.run_directory import DIGESTS_DIR, find_kernel_only_traces, whole_file
from gpudiag.model.sanitize import one_line
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.digest_files import Digested, digest_file, digest_name, ranks_by_file
from gpudiag.trace.parallel import usable_cpus
from gpudiag.trace.readers.digest.encode import encode
from gpudiag.trace.sources import TraceFile, find_sources


class Engine(Protocol):
    """Call `digest_file` for files, somewhere, and yield the outcomes in any order."""

    def __call__(self, files: Sequence[TraceFile], limits: ReadLimits) -> Iterable[Digested]:
        """Yield the digests of each file."""


class Written(msgspec.Struct, frozen=True):
    """Digests that were written.

    Attributes:
        directory: where they are.
        digests: names of their files.
        size_bytes: their size.
        trace_bytes: size of the traces that they are of.
        unreadable: messages about files that could not be read.
    """

    directory: Path
    digests: tuple[str, ...]
    size_bytes: int
    trace_bytes: int
    unreadable: tuple[str, ...]


def digest(
    paths: Sequence[Path | str],
    *,
    output: Path | None = None,
    limits: ReadLimits | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Written:
    """Write the digest of each rank. A file that cannot be read is reported, and the others are written.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        output: directory to write to; by default `digests` in the directory that was given, or beside the first file.
        limits: limits on the traces that are read.
        engine: where files are read; processes of this machine by default.
        progress: called with (number of files done, number of files).
    """
    limits = limits or ReadLimits()
    files = find_sources(paths)
    directory = output or _beside(Path(paths[0]), files[0])
    _make(directory)
    engine = engine or in_processes
    if find_kernel_only_traces(paths) is None and all(map(ranks_by_file, files)):
        outcomes = engine(files, limits)
    else:
        outcomes = _together(paths, files, limits)  # the ranks of a run's two recordings, or of devices, need all files
    names: dict[str, int] = {}
    unreadable = []
    for done, outcome in enumerate(outcomes, 1):
        progress(done, len(files))
        if outcome.error:
            unreadable.append(outcome.error)
        for name, content in outcome.digests.items():
            if name in names:
                unreadable.append(f"{name} was left out: two traces are of this rank")
                continue
            names[name] = len(content)
            _write(directory / name, content)
    if not names:
        raise NotATraceError(f"no digest was written: {min(unreadable)}", "Check the traces.")
    return Written(
        directory=directory,
        digests=tuple(sorted(names)),
        size_bytes=sum(names.values()),
        trace_bytes=sum(file.size for file in files),
        unreadable=tuple(sorted(unreadable)),
    )


def _beside(path: Path, first: TraceFile) -> Path:
    return (path if path.is_dir() else first.path.parent) / DIGESTS_DIR


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpudiagError(
            f"cannot write to {one_line(str(directory))}: {error.strerror or error}", "Choose another with --output."
        ) from error


def _write(path: Path, content: bytes) -> None:
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise GpudiagError(
            f"cannot write {one_line(str(path))}: {error.strerror or error}", "Choose another directory with --output."
        ) from error


def _together(paths: Sequence[Path | str], files: Sequence[TraceFile], limits: ReadLimits) -> Iterator[Digested]:
    from gpudiag.app.analyze import least_disturbed  # noqa: PLC0415  # only for runs with two recordings

    traces, _ = least_disturbed(paths, read_traces(paths, limits=limits), limits)
    for trace in traces:
        yield Digested({digest_name(trace, files[0].path): encode(trace)})


def in_processes(files: Sequence[TraceFile], limits: ReadLimits) -> Iterator[Digested]:
    """Read files in processes of this machine."""
    workers = min(limits.workers or usable_cpus(), len(files))
    if workers < 2:
        yield from (digest_file(file, limits) for file in files)
        return
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # spawned processes must not import from the current directory
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(digest_file, file, limits) for file in files]):
            yield future.result()
