"""Make digests of traces from one file at a time, in this process or in workers of a cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudiag.errors import GpudiagError, NotATraceError
from gpudiag.model.event import Trace
from gpudiag.model.run_directory import DIGEST_ENDING
from gpudiag.trace.ranks import check_rank_limits
from gpudiag.trace.readers import assign_ranks, reader_of
from gpudiag.trace.readers.digest.encode import encode
from gpudiag.trace.sources import TraceFile
from gpudiag.trace.unpack import ReadLimits


class Digested(msgspec.Struct, frozen=True):
    """The digests of a file.

    Attributes:
        file: the file, as the user named it.
        digests: name of a digest's file → content of the digest.
        error: message of the error if the file cannot be read.
        no_trace: whether the file was found in a directory and is no trace, so that it is ignored.
    """

    file: str
    digests: dict[str, bytes] = {}
    error: str = ""
    no_trace: bool = False


def digest_file(file: TraceFile, limits: ReadLimits) -> Digested:
    """Return the digests of the traces in a file, or its error, which must not prevent the digests of other files."""
    try:
        traces = reader_of(file.path).read(file.path, file.shown, limits)
        ranked = assign_ranks([(file, traces)], None)
        check_rank_limits(ranked)
        return Digested(file.shown, {digest_name(trace, file.path): encode(trace) for trace in ranked})
    except GpudiagError as error:
        no_trace = file.from_directory and isinstance(error, NotATraceError)
        return Digested(file.shown, error=str(error), no_trace=no_trace)


def digest_name(trace: Trace, path: Path) -> str:
    """Return the file name of a digest: named after the rank if it is known, else after the trace's file."""
    return f"{path.name if trace.rank is None else f'rank{trace.rank}'}{DIGEST_ENDING}"
