"""Read Nsight Systems: exports to SQLite (`.sqlite`), and reports (`.nsys-rep`) where `nsys` is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudiag.model.event import Trace
from gpudiag.trace.ranks import ReadFile, rank_per_file
from gpudiag.trace.unpack import ReadLimits

__all__ = ["ENDINGS", "assign_ranks", "memory_bytes", "read", "recognises"]

_EXPORT, _REPORT = ".sqlite", ".nsys-rep"
ENDINGS = (_EXPORT, _REPORT)
#: Bytes of memory per byte of an export: an event takes about 80 bytes in the file, `MEMORY_PER_EVENT` in memory.
_MEMORY_PER_BYTE = 6


def recognises(path: Path) -> bool:
    """Return whether a file is an export, or a report without an export beside it."""
    name = path.name.lower()
    if name.endswith(_REPORT):
        return not path.with_suffix(_EXPORT).exists()
    return name.endswith(_EXPORT) and _is_export(path)


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return one trace per process in a file. Raise the errors of `Reader.read`."""
    from gpudiag.trace.readers.nsys.processes import read_export

    if not path.name.lower().endswith(_REPORT):
        return read_export(path, shown, limits)
    from gpudiag.trace.readers.nsys.report_file import exported

    with exported(path, shown) as export:
        return read_export(export, shown, limits)


def memory_bytes(path: Path, size: int) -> int:  # noqa: ARG001 # part of the protocol
    """Estimate the memory that reading a file takes, from its size on disk."""
    from gpudiag.trace.readers.nsys.processes import MEMORY_PER_EVENT, MOST_EVENTS

    return min(size * _MEMORY_PER_BYTE, MOST_EVENTS * MEMORY_PER_EVENT)


def assign_ranks(files: Sequence[ReadFile], world_size: int | None) -> list[Trace]:
    """Return the traces with ranks: MPI's rank, or for a file with one process the rank in the file's name.

    If no rank is known and a file has several processes, the traces are numbered in the order of the files and of the
    GPUs within a file. The only process of a job has rank 0 if it does not communicate.
    """
    ranked = rank_per_file(files, world_size)
    ranks = [
        file.name_facts.rank if trace.rank is None and len(traces) == 1 else trace.rank
        for file, traces in files
        for trace in traces
    ]
    alone = len(ranked) == 1 and not ranked[0].collectives
    if (alone or len(ranks) > len(files)) and all(rank is None for rank in ranks):
        ranks = list(range(len(ranks)))
    return [msgspec.structs.replace(trace, rank=rank) for trace, rank in zip(ranked, ranks, strict=True)]


def _is_export(path: Path) -> bool:
    """Return whether a file is an SQLite database with tables of Nsight Systems."""
    from gpudiag.errors import GpudiagError
    from gpudiag.trace.readers.nsys.database import Database
    from gpudiag.trace.readers.nsys.processes import is_export

    try:
        # A file of any size is recognised. Its size is checked when it is read.
        with Database(path, str(path), ReadLimits(max_bytes=1 << 62)) as database:
            return is_export(database)
    except GpudiagError:
        return False
