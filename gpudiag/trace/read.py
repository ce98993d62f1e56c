"""Read the files of one job into one `Trace` per rank, several files at once in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError, UsageError
from gpudiag.model.event import ProcessGroup, Trace
from gpudiag.model.large_jobs.packed_events import unpacked, with_packed_events
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.parallel import MOST_IN_MEMORY, WhileReading, can_fork, usable_cpus
from gpudiag.trace.ranks import ReadFile, check_rank_limits, check_unique_ranks
from gpudiag.trace.readers import assign_ranks, memory_bytes, reader_of
from gpudiag.trace.sources import TraceFile, find_sources
from gpudiag.trace.unpack import ReadLimits, free_memory_bytes

#: Traces that need less memory in total than this (bytes) are read in one process, as another takes 20 ms to start.
_MIN_PARALLEL_BYTES = 16_000_000

Outcomes = tuple[tuple[Trace, Any], ...]
"""The traces of a file, each with its outcome of `then` (see `read_traces`); None if `then` was not run."""


def read_traces(
    paths: Sequence[Path | str],
    *,
    limits: ReadLimits | None = None,
    world_size: int | None = None,
    repeated: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
    then: WhileReading[Any] | None = None,
) -> tuple[Trace, ...]:
    """Read the traces of one job.

    Args:
        paths: files, directories (traces, run directories, torchtitan's and TensorBoard's), or globs.
        limits: limits on size and on processes; None for the defaults.
        world_size: number of ranks in the job, used if neither the traces nor their names state it.
        repeated: whether to accept two files that claim one rank, so that the caller resolves the conflict.
        meanwhile: function to call while other processes read; not called if this process reads the files.
        then: task to run for each trace in the process that reads it; run only if there are more than `MOST_IN_MEMORY`
            files.

    Returns:
        One trace per rank, in order of rank; traces without a rank come last, in order of path.

    Raises:
        UsageError: no path was given, or `world_size` is not between 1 and `MOST_RANKS`.
        UnreadableInputError: a path does not exist, a file is broken, two files claim one rank, or a rank or
            a world size is larger than in any job.
        NotATraceError: a named file is not a trace, or a directory contains none.
        TooLargeError: a file unpacks to more than the limits allow.
    """
    limits = limits or ReadLimits()
    if world_size is not None and not 0 < world_size <= MOST_RANKS:
        raise UsageError(f"no job has {world_size} ranks", f"Give a world size between 1 and {MOST_RANKS}.")
    files = find_sources(paths)
    read: list[ReadFile] = []
    refused: list[NotATraceError] = []
    for file, outcome in zip(files, _read_all(files, limits, meanwhile, then), strict=True):
        if not isinstance(outcome, NotATraceError):
            read.append((file, tuple(trace for trace, _ in outcome)))
            if then is not None:
                then.keep(outcome)
        elif file.from_directory:
            refused.append(outcome)
        else:
            raise outcome
    traces = assign_ranks(read, world_size)
    if len(traces) > MOST_IN_MEMORY:
        traces = _sharing_groups(traces)
    if not traces:
        raise NotATraceError(f"no traces in {with_escapes(str(files[0].path.parent))}: {refused[0]}", refused[0].hint)
    _check_frameworks(traces)
    check_rank_limits(traces)
    if not repeated:
        check_unique_ranks(traces)
    return tuple(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)))


def _check_frameworks(traces: Sequence[Trace]) -> None:
    """Refuse traces of two frameworks. Traces of an unknown framework are accepted beside all other traces."""
    known = [trace for trace in traces if trace.framework != "unknown"]
    for trace in known:
        if trace.framework != known[0].framework:
            raise UnreadableInputError(
                f"{known[0].source} is of {known[0].framework} and {trace.source} of {trace.framework}: "
                "these are two jobs",
                "Give the traces of one run only.",
            )


def _read_all(
    files: Sequence[TraceFile], limits: ReadLimits, meanwhile: Callable[[], None], then: WhileReading[Any] | None
) -> list[Outcomes | NotATraceError]:
    """Return the traces of each file, or the error if the file is not a trace. Arguments are as in `read_traces`."""
    many = len(files) > MOST_IN_MEMORY

    def read(file: TraceFile) -> Outcomes | NotATraceError:
        return _read_file(file, limits, many=many, then=then)

    memory = [memory_bytes(file.path, file.size) for file in files]
    workers = min(limits.workers or usable_cpus(), len(files))
    if (free := free_memory_bytes()) is not None:  # each process may read the largest file
        workers = min(workers, max(1, free // (max(memory) or 1)))
    if workers > 1 and sum(memory) > _MIN_PARALLEL_BYTES and can_fork():
        return _read_in_processes(files, read, workers, meanwhile)
    return [read(file) for file in files]


def _read_in_processes(
    files: Sequence[TraceFile],
    read: Callable[[TraceFile], Outcomes | NotATraceError],
    workers: int,
    meanwhile: Callable[[], None],
) -> list[Outcomes | NotATraceError]:
    """Call `read` for each file in forked processes, and `meanwhile` in this process; return outcomes in order.

    `ProcessPoolExecutor` would wait forever for the rest of a killed process's message, because the parent keeps the
    writing end of the pipe open. With `ForkedReaders`, each pipe has one writer, and closes when the writer ends.
    """
    from gpudiag.trace.forked_readers import ForkedReaders, ReaderKilledError

    def task(number: int) -> Outcomes | NotATraceError:
        try:
            return read(files[number])
        finally:
            unpacked.cache_clear()  # this process does not use the events again

    try:
        with ForkedReaders(workers, task) as readers:
            readers.start(len(files))
            meanwhile()
            return readers.results()
    except ReaderKilledError as error:
        names = ", ".join(file.shown for file in files)
        raise UnreadableInputError(
            f"a process that read one of {names} was killed, probably for lack of memory",
            "Close other programs, analyse fewer traces at once, or record fewer steps.",
        ) from error


def _read_file(
    file: TraceFile, limits: ReadLimits, *, many: bool, then: WhileReading[Any] | None
) -> Outcomes | NotATraceError:
    """Return the traces of a file, with the outcomes of `then`; events are packed if the job has many files."""
    try:
        traces = reader_of(file.path).read(file.path, file.shown, limits)
    except NotATraceError as error:  # the caller ignores this error for files found in a directory
        return error
    if not many:
        return tuple((trace, None) for trace in traces)
    return tuple((with_packed_events(trace), None if then is None else then.task(trace)) for trace in traces)


def _sharing_groups(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces with one shared tuple per distinct group, because a group may have thousands of ranks."""
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    sharing = []
    for trace in traces:
        # Many calls have the same tuple object, so each object is hashed only once.
        groups = {id(call.group_ranks): call.group_ranks for call in trace.collectives}
        known = {identity: shared.setdefault(ranks, ranks) for identity, ranks in groups.items()}
        sharing.append(
            msgspec.structs.replace(
                trace,
                collectives=tuple(
                    msgspec.structs.replace(call, group_ranks=known[id(call.group_ranks)]) for call in trace.collectives
                ),
                groups={
                    name: ProcessGroup(shared.setdefault(group.ranks, group.ranks), group.description)
                    for name, group in trace.groups.items()
                },
            )
        )
    return sharing
