"""Reading traces: from paths to one `Trace` per file, several files at once on several processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError, UsageError
from gpudiag.model.event import Trace
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.limits import MEMORY_PER_JSON_BYTE, ReadLimits, free_memory_bytes
from gpudiag.trace.readers import reader_of
from gpudiag.trace.sources import Source, find_sources

#: What starting processes costs (some 20 ms) buys this much reading: traces below it are read in this process.
_WORTH_PROCESSES_JSON_BYTES = 4_000_000
#: How much JSON is packed into a byte of gzip in ordinary traces.
_USUAL_RATIO = 16


def read_traces(
    paths: Sequence[Path | str],
    *,
    limits: ReadLimits | None = None,
    world_size: int | None = None,
    repeated: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[Trace, ...]:
    """Read the traces of one job.

    Args:
        paths: files, directories (traces, run directories, torchtitan's and TensorBoard's), or globs.
        limits: bounds on size and on processes; None for the usual ones.
        world_size: ranks in the job, where neither the traces nor their names say.
        repeated: two files may claim one rank; whoever asks for that sorts them out.
        meanwhile: what this process is to do while others read; not called where it reads by itself.

    Returns:
        One trace per file, in order of rank; those without a rank come last, in order of path. Of TensorFlow, where one
        process drives several GPUs, one per GPU.

    Raises:
        UsageError: no path was given, or a world size beyond any job.
        UnreadableInputError: a path does not exist, a file is broken, two files claim one rank, or a rank or
            a world size is beyond any job.
        NotATraceError: a file that was named is no trace, or a directory holds none.
        TooLargeError: a file unpacks to more than the limits allow.
    """
    limits = limits or ReadLimits()
    if world_size is not None and not 0 < world_size <= MOST_RANKS:
        raise UsageError(f"no job has {world_size} ranks", f"Give a world size between 1 and {MOST_RANKS}.")
    sources = find_sources(paths)
    traces: list[Trace] = []
    refused: list[NotATraceError] = []
    processes: list[tuple[Source, tuple[Trace, ...]]] = []
    for source, outcome in zip(sources, _read_all(sources, limits, meanwhile), strict=True):
        if isinstance(outcome, NotATraceError):
            if source.found:
                refused.append(outcome)
                continue
            raise outcome
        if reader_of(source.path).RANK_PER_DEVICE:
            processes.append((source, outcome))
        else:
            traces.extend(_completed(trace, source, world_size) for trace in outcome)
    if processes:
        traces.extend(_of_processes(processes, world_size))
    if not traces:
        raise NotATraceError(f"no traces in {with_escapes(str(sources[0].path.parent))}: {refused[0]}", refused[0].hint)
    _check_frameworks(traces)
    _check_sizes(traces)
    if not repeated:
        _check_ranks(traces)
    return tuple(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)))


def _read_one(source: Source, limits: ReadLimits) -> tuple[Trace, ...]:
    return reader_of(source.path).read(source.path, source.shown, limits)


def _of_processes(processes: Sequence[tuple[Source, tuple[Trace, ...]]], world_size: int | None) -> list[Trace]:
    """The traces of TensorFlow's processes with their ranks."""
    from gpudiag.trace.copied_processes import without_copied_processes
    from gpudiag.trace.readers.xspace.devices import ranked

    processes = without_copied_processes(processes)
    told = next((source.facts.world_size for source, _ in processes if source.facts.world_size), world_size)
    noted = [
        (source.facts.rank, (_noted(traces[0], source.notes), *traces[1:]))
        if source.notes
        else (source.facts.rank, traces)
        for source, traces in processes
    ]
    return list(ranked(noted, told))


def _noted(trace: Trace, notes: tuple[str, ...]) -> Trace:
    return msgspec.structs.replace(trace, notes=(*notes, *trace.notes))


def _check_frameworks(traces: Sequence[Trace]) -> None:
    """One job has one framework; a trace that does not say its framework may be of any."""
    said = [trace for trace in traces if trace.framework != "unknown"]
    first = said[0] if said else traces[0]
    for trace in said:
        if trace.framework != first.framework:
            raise UnreadableInputError(
                f"{first.source} is of {first.framework} and {trace.source} of {trace.framework}: these are two jobs",
                "Give the traces of one run only.",
            )


def _read_all(
    sources: Sequence[Source], limits: ReadLimits, meanwhile: Callable[[], None]
) -> list[tuple[Trace, ...] | NotATraceError]:
    """Each file's traces, or why it is none, in the order of the files."""
    sizes = [_json_size(source) for source in sources]
    workers = min(limits.workers or usable_cpus(), len(sources))
    if (free := free_memory_bytes()) is not None:
        workers = min(workers, max(1, free // (MEMORY_PER_JSON_BYTE * max(sizes) or 1)))
    if workers > 1 and sum(sizes) > _WORTH_PROCESSES_JSON_BYTES and _can_fork():
        return _read_in_processes(sources, limits, workers, meanwhile)
    return [_attempt(source, limits) for source in sources]


def _read_in_processes(
    sources: Sequence[Source], limits: ReadLimits, workers: int, meanwhile: Callable[[], None]
) -> list[tuple[Trace, ...] | NotATraceError]:
    """Read the files in forked processes.

    There is no `ProcessPoolExecutor`, because its thread waits for good for the rest of a message whose sender was
    killed: this process holds the other end of that pipe. Here each reader has a pipe of its own, which only the reader
    can write to, so that the end of a reader is the end of its pipe.
    """
    from gpudiag.trace.forked_readers import ForkedReaders, ReaderKilledError

    try:
        with ForkedReaders(workers, lambda number: _attempt(sources[number], limits)) as readers:
            readers.start(len(sources))
            meanwhile()
            return readers.results()
    except ReaderKilledError as error:
        files = ", ".join(source.shown for source in sources)
        raise UnreadableInputError(
            f"a process that read one of {files} was killed, probably for lack of memory",
            "Close other programs, analyse fewer traces at once, or record fewer steps.",
        ) from error


def _attempt(source: Source, limits: ReadLimits) -> tuple[Trace, ...] | NotATraceError:
    try:
        return _read_one(source, limits)
    except NotATraceError as error:  # the only error that may be passed over
        return error


def _can_fork() -> bool:
    """Whether forking is safe here: on Linux, in a process whose only Python thread is this one."""
    return sys.platform == "linux" and threading.active_count() == 1


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _json_size(source: Source) -> int:
    return source.size * (_USUAL_RATIO if source.path.suffix == ".gz" else 1)


def _completed(trace: Trace, source: Source, world_size: int | None) -> Trace:
    """The trace with what only its name, its finding, or the caller tells."""
    told = trace.world_size or source.facts.world_size or world_size
    return msgspec.structs.replace(
        trace,
        rank=source.facts.rank if trace.rank is None else trace.rank,
        world_size=told,
        host=trace.host or source.facts.host,
        notes=(*source.notes, *trace.notes),
    )


def _check_sizes(traces: Sequence[Trace]) -> None:
    """No trace may say a rank or a world size beyond any job: sets are made of them."""
    for trace in traces:
        if (trace.world_size or 0) > MOST_RANKS or (trace.rank or 0) >= MOST_RANKS:
            raise UnreadableInputError(
                f"{trace.source} says rank {trace.rank} of {trace.world_size}; no job has more than {MOST_RANKS} ranks",
                "The file or its name is damaged: leave it out, or record again.",
            )


def _check_ranks(traces: Sequence[Trace]) -> None:
    """No two traces may claim one rank."""
    first: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in first:
            raise UnreadableInputError(
                f"two traces claim rank {trace.rank}: {first[trace.rank].source} and {trace.source}",
                "Give the traces of one run only: leave one of the two out.",
            )
        first[trace.rank] = trace
