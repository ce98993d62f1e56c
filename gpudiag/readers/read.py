"""Reading traces: from paths to one `Trace` per file, several files at once on several processes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.processes import WorkerLostError, can_fork, map_forked, usable_cpus
from gpudiag.readers.kineto import read_kineto
from gpudiag.readers.limits import MEMORY_PER_JSON_BYTE, ReadLimits, free_memory_bytes
from gpudiag.readers.sources import NO_TRACES_HINT, Source, find_sources
from gpudiag.readers.trace_names import is_xspace
from gpudiag.readers.unpack import read_whole
from gpudiag.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpudiag.model.event import Trace
    from gpudiag.readers.xspace.process import Process

#: What forking costs (some ms) buys this much reading: traces below it are read in this process.
_WORTH_FORKING_JSON_BYTES = 4_000_000
#: How much JSON is packed into a byte of gzip in ordinary traces.
_USUAL_RATIO = 16


class Profile(Record, frozen=True, kw_only=True):
    """One of TensorFlow's profiles as it is.

    Attributes:
        name: its file's name without endings: the host.
        data: the serialized XSpace.
    """

    name: str
    data: bytes


def read_traces(
    paths: Sequence[Path | str],
    *,
    limits: ReadLimits | None = None,
    world_size: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[Trace, ...]:
    """Read the traces of one job.

    Args:
        paths: files, directories (traces, run directories, torchtitan's and TensorBoard's), or globs.
        limits: bounds on size and on processes; None for the usual ones.
        world_size: ranks in the job, where neither the traces nor their names say.
        meanwhile: called while other processes read, if there are any; what comes next may get ready in it.

    Returns:
        One trace per file, in order of rank; those without a rank come last, in order of path. Of TensorFlow, where one
        process drives several GPUs, one per GPU.

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a path does not exist, a file is broken, or two files claim one rank.
        NotATraceError: a file that was named is no trace, or a directory holds none.
        TooLargeError: a file unpacks to more than the limits allow.
    """
    limits = limits or ReadLimits()
    sources = find_sources(paths)
    traces: list[Trace] = []
    processes: list[tuple[Source, tuple[Trace, ...]]] = []
    for source, outcome in zip(sources, _read_all(sources, limits, meanwhile), strict=True):
        if isinstance(outcome, NotATraceError) and source.found:
            continue
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, tuple):
            processes.append((source, outcome))
        else:
            traces.append(_completed(outcome, source, world_size))
    if processes:
        traces.extend(_of_processes(processes, world_size))
    if not traces:
        raise NotATraceError(f"no traces in {sources[0].path.parent}", NO_TRACES_HINT)
    _check_frameworks(traces)
    _check_ranks(traces)
    return tuple(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)))


def read_processes(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Process, ...]:
    """Read TensorFlow's profiles, one process per file, whole: with all of its GPUs and threads. Raises as above."""
    from gpudiag.readers.xspace.read import read_xspace

    limits = limits or ReadLimits()
    return tuple(read_xspace(source.path, source.shown, limits) for source in find_sources(paths))


def read_profiles(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Profile, ...]:
    """TensorFlow's profiles as they are, unpacked. Raises as above."""
    limits = limits or ReadLimits()
    return tuple(
        Profile(
            name=source.path.name.removesuffix(".gz").removesuffix(".xplane.pb"),
            data=bytes(read_whole(source.path, source.shown, limits, binary=True)),
        )
        for source in find_sources(paths)
        if is_xspace(source.path.name)
    )


def _read_one(source: Source, limits: ReadLimits) -> Trace | tuple[Trace, ...]:
    if is_xspace(source.path.name):
        from gpudiag.readers.xspace.devices import trace_per_device
        from gpudiag.readers.xspace.read import read_xspace

        return trace_per_device(read_xspace(source.path, source.shown, limits))
    return read_kineto(source.path, source.shown, limits)


def _of_processes(processes: Sequence[tuple[Source, tuple[Trace, ...]]], world_size: int | None) -> list[Trace]:
    """The traces of TensorFlow's processes with their ranks."""
    from gpudiag.readers.xspace.devices import ranked

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
    """One job has one framework."""
    first = traces[0]
    for trace in traces:
        if trace.framework != first.framework:
            raise UnreadableInputError(
                f"{first.source} is of {first.framework} and {trace.source} of {trace.framework}: these are two jobs",
                "Give the traces of one run only.",
            )


def _read_all(
    sources: Sequence[Source], limits: ReadLimits, meanwhile: Callable[[], None] | None
) -> list[Trace | tuple[Trace, ...] | Exception]:
    """Each file's trace or its error, in the order of the files."""
    read = partial(_read_one, limits=limits)
    sizes = [_json_size(source) for source in sources]
    workers = min(limits.workers or usable_cpus(), len(sources))
    if (free := free_memory_bytes()) is not None:
        workers = min(workers, max(1, free // (MEMORY_PER_JSON_BYTE * max(sizes) or 1)))
    # TensorFlow's is often one file for all GPUs: another process reads it while this one does what comes `meanwhile`.
    alone = meanwhile is not None and is_xspace(sources[0].path.name) and (limits.workers or usable_cpus()) > 1
    if (workers > 1 or alone) and sum(sizes) > _WORTH_FORKING_JSON_BYTES and can_fork():
        try:
            return map_forked(read, sources, sizes, workers, meanwhile)
        except WorkerLostError as error:
            lost = ", ".join(sources[item].shown for item in error.items)
            raise UnreadableInputError(
                f"the process that read {lost} was killed, probably for lack of memory",
                "Close other programs, analyse fewer traces at once, or record fewer steps.",
            ) from error
    outcomes: list[Trace | tuple[Trace, ...] | Exception] = []
    for source in sources:
        try:
            outcomes.append(read(source))
        except NotATraceError as error:  # the only error that may be passed over
            outcomes.append(error)
    return outcomes


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
