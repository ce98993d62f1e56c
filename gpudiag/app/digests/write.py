"""`gpudiag digest`: write the digest of each rank, so that many ranks can be analysed without their traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import msgspec

from gpudiag.errors import GpudiagError, NotATraceError
from gpudiag.model.run_directory import DIGEST_ENDING, DIGESTS_DIR, below, find_kernel_only_traces, whole_file
from gpudiag.model.sanitize import one_line
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.digest_files import Digested, digest_file, digest_name
from gpudiag.trace.kernel_only import least_disturbed
from gpudiag.trace.parallel import safe_path, usable_cpus
from gpudiag.trace.readers.digest.encode import encode
from gpudiag.trace.sources import TraceFile, find_sources, ranks_by_file


class DigestEngine(Protocol):
    """A function that calls `digest_file` for each file, here or on other machines."""

    def __call__(self, files: Sequence[TraceFile], limits: ReadLimits) -> Iterable[Digested]:
        """Yield the outcome of each file, in any order."""


class Written(msgspec.Struct, frozen=True):
    """Digests that were written.

    Attributes:
        directory: the directory of the digests.
        digests: the trace of each digest, by file name of the digest.
        size_bytes: total size of the digests.
        trace_bytes: total size of the traces.
        warnings: messages about files that were left out.
    """

    directory: Path
    digests: dict[str, str]
    size_bytes: int
    trace_bytes: int
    warnings: tuple[str, ...]


def digest(
    paths: Sequence[Path | str],
    *,
    output: Path | None = None,
    limits: ReadLimits | None = None,
    engine: DigestEngine | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Written:
    """Write the digest of each rank. A file that cannot be read is reported, and left out.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        output: directory to write to; by default `digests` in the given directory, or else beside the first file.
        limits: limits on the traces that are read.
        engine: function that reads the files; by default `in_processes`.
        progress: called with (number of files done, number of files).
    """
    limits = limits or ReadLimits()
    files = find_sources(paths)
    directory = output or _beside(Path(paths[0]), files[0])
    _make(directory)
    writer = _DigestWriter(files, directory)
    for done, outcome in enumerate(_outcomes(paths, files, limits, engine or in_processes, writer.warnings), 1):
        progress(done, len(files))
        writer.write(outcome)
    if not writer.sizes:
        reason = min([*writer.warnings, *writer.no_traces])  # does not depend on the order of outcomes
        raise NotATraceError(f"no digest was written: {reason}", "Check the traces.")
    return Written(
        directory=directory,
        digests=dict(sorted(writer.files.items())),
        size_bytes=sum(writer.sizes.values()),
        trace_bytes=sum(file.size for file in files),
        warnings=tuple(sorted(writer.warnings)),
    )


class _DigestWriter:
    """Writer of digests. Of two digests with the same name, the digest of the first file is kept.

    Attributes:
        files, sizes: the trace of each written digest, and the digest's size in bytes, by name of the digest.
        warnings: messages about files that were left out.
        no_traces: messages about files that are no traces.
    """

    def __init__(self, files: Sequence[TraceFile], directory: Path) -> None:
        self.files: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.warnings: list[str] = []
        self.no_traces: list[str] = []
        self._directory = directory
        self._order = {file.shown: number for number, file in enumerate(files)}

    def write(self, outcome: Digested) -> None:
        """Write the digests of a file. Of two files with the same rank or name, keep the digest of the first file."""
        if outcome.error:
            (self.no_traces if outcome.no_trace else self.warnings).append(outcome.error)
        for name, content in outcome.digests.items():
            other = self.files.get(name)
            if other is not None:
                first, second = sorted((other, outcome.file), key=self._order.__getitem__)
                self.warnings.append(f"{second} was left out: {first} has the same rank or name")
                if first == other:
                    continue
            self.files[name] = outcome.file
            self.sizes[name] = len(content)
            _write(self._directory / name, content)


def read_elsewhere(
    files: Sequence[TraceFile], directory: Path, limits: ReadLimits, engine: DigestEngine
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write the digests of all files. A digest is named by numbers, because several digests may be of one rank.

    Returns:
        (the trace of each digest by name of the digest's file, messages about files that were left out).

    Raises:
        NotATraceError: no file is a trace.
    """
    number = {file.shown: index for index, file in enumerate(files)}
    traces: dict[str, str] = {}
    warnings: list[str] = []
    no_traces: list[str] = []
    for outcome in engine(files, limits):
        if outcome.error:
            (no_traces if outcome.no_trace else warnings).append(outcome.error)
        for index, content in enumerate(outcome.digests.values()):
            name = f"{number[outcome.file]:07}-{index:07}{DIGEST_ENDING}"
            _write(directory / name, content)
            traces[name] = outcome.file
    if not traces:
        raise NotATraceError(f"no traces: {min([*warnings, *no_traces])}", "Check the traces.")
    return traces, tuple(sorted(warnings))


def independent(paths: Sequence[Path | str], files: Sequence[TraceFile]) -> bool:
    """Return whether each file can be digested without the other files.

    If a run has kernel-only traces, or a process drives several devices, a digest needs all files.
    """
    return find_kernel_only_traces(paths) is None and all(map(ranks_by_file, files))


def _outcomes(
    paths: Sequence[Path | str],
    files: Sequence[TraceFile],
    limits: ReadLimits,
    engine: DigestEngine,
    warnings: list[str],
) -> Iterable[Digested]:
    """Return the digests of all files. Messages about unused traces are added to `warnings`."""
    if independent(paths, files):
        return engine(files, limits)
    return _together(paths, files, limits, warnings)


def _beside(path: Path, first: TraceFile) -> Path:
    return below(path if path.is_dir() else first.path.parent, DIGESTS_DIR)


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


def _together(
    paths: Sequence[Path | str], files: Sequence[TraceFile], limits: ReadLimits, warnings: list[str]
) -> Iterator[Digested]:
    """Yield the digest of each rank, from all files together. The first digest has the notes about unused traces."""
    traces, unused = least_disturbed(paths, read_traces(paths, limits=limits, repeated=True), limits)
    notes = tuple(warning.message for warning in unused)
    warnings += notes
    for trace in traces:
        noted = msgspec.structs.replace(trace, notes=(*trace.notes, *notes)) if trace is traces[0] else trace
        yield Digested(trace.source, {digest_name(trace, files[0].path): encode(noted)})


def in_processes(files: Sequence[TraceFile], limits: ReadLimits) -> Iterator[Digested]:
    """Read files in processes of this machine."""
    workers = min(limits.workers or usable_cpus(), len(files))
    if workers < 2:
        yield from (digest_file(file, limits) for file in files)
        return
    with safe_path(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(digest_file, file, limits) for file in files]):
            yield future.result()
