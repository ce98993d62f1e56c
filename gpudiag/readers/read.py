"""Reading traces: from paths to one `Trace` per file, several files at once on several processes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.readers.kineto import read_kineto
from gpudiag.readers.limits import MEMORY_PER_JSON_BYTE, ReadLimits, free_memory_bytes, usable_cpus
from gpudiag.readers.processes import WorkerLostError, can_fork, map_forked
from gpudiag.readers.sources import Source, find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpudiag.model.event import Trace

#: What forking costs (some ms) buys this much reading: traces below it are read in this process.
_WORTH_FORKING_JSON_BYTES = 4_000_000
#: How much JSON is packed into a byte of gzip in ordinary traces.
_USUAL_RATIO = 16


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
        One trace per file, in order of rank; those without a rank come last, in order of path.

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a path does not exist, a file is broken, or two files claim one rank.
        NotATraceError: a file that was named is no trace, or a directory holds none.
        TooLargeError: a file unpacks to more than the limits allow.
    """
    limits = limits or ReadLimits()
    sources = find_sources(paths)
    traces: list[Trace] = []
    for source, outcome in zip(sources, _read_all(sources, limits, meanwhile), strict=True):
        if isinstance(outcome, NotATraceError) and source.found:
            continue
        if isinstance(outcome, Exception):
            raise outcome
        traces.append(_completed(outcome, source, world_size))
    if not traces:
        raise NotATraceError(
            f"no traces in {sources[0].path.parent}",
            "Give a directory with .json or .json.gz files that torch.profiler wrote.",
        )
    _check_ranks(traces)
    return tuple(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)))


def _read_one(source: Source, limits: ReadLimits) -> Trace:
    return read_kineto(source.path, source.shown, limits)


def _read_all(
    sources: Sequence[Source], limits: ReadLimits, meanwhile: Callable[[], None] | None
) -> list[Trace | Exception]:
    """Each file's trace or its error, in the order of the files."""
    read = partial(_read_one, limits=limits)
    sizes = [_json_size(source) for source in sources]
    workers = min(limits.workers or usable_cpus(), len(sources))
    if (free := free_memory_bytes()) is not None:
        workers = min(workers, max(1, free // (MEMORY_PER_JSON_BYTE * max(sizes) or 1)))
    if workers > 1 and sum(sizes) > _WORTH_FORKING_JSON_BYTES and can_fork():
        try:
            return map_forked(read, sources, sizes, workers, meanwhile)
        except WorkerLostError as error:
            lost = ", ".join(sources[item].shown for item in error.items)
            raise UnreadableInputError(
                f"the process that read {lost} was killed, probably for lack of memory",
                "Close other programs, analyse fewer traces at once, or record fewer steps.",
            ) from error
    outcomes: list[Trace | Exception] = []
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
