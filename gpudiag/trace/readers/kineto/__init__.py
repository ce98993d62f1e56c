"""Read the JSON that torch.profiler writes, of all versions and for all vendors."""

from __future__ import annotations

from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.model.event import Trace
from gpudiag.trace.ranks import parse_name
from gpudiag.trace.readers.kineto.document import read_kineto
from gpudiag.trace.unpack import ReadLimits, read_head

ENDINGS = (".json", ".json.gz")

#: JSON files that gpudiag writes beside traces.
_GPUDIAG_FILES = {"run.json", "analysis.json", "facts.json", "scaling.json", "recommendation.json", "truth.json"}
_SIGNS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')


def recognises(path: Path) -> bool:
    """Return whether a file is a trace, by its name (also for a broken file) or else by its first bytes."""
    if path.name in _GPUDIAG_FILES or not path.name.lower().endswith(ENDINGS):
        return False
    # Only the file's own name counts: files of other kinds may lie in a directory named like a rank.
    if "trace" in path.name.lower() or parse_name(path.relative_to(path.parent)).rank is not None:
        return True
    try:
        head = read_head(path, str(path), ReadLimits())
    except GpudiagError:
        return False
    return any(sign in head for sign in _SIGNS)


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return the one trace of a file. Raise the errors of `Reader.read`."""
    return (read_kineto(path, shown, limits),)
