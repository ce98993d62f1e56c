"""Reader of the JSON that torch.profiler writes, whatever year and vendor it comes from."""

from __future__ import annotations

from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.model.event import Trace
from gpudiag.trace.file_names import facts_of
from gpudiag.trace.limits import ReadLimits
from gpudiag.trace.readers.kineto.document import read_kineto
from gpudiag.trace.unpack import read_head

ENDINGS = (".json", ".json.gz")
RANK_PER_DEVICE = False

#: gpudiag's own JSON, which lies beside traces.
_OWN_FILES = {"run.json", "analysis.json", "facts.json", "scaling.json", "recommendation.json", "truth.json"}
_SIGNS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')


def recognises(path: Path) -> bool:
    """Whether a file is a trace: its name says so (then a broken one is an error), or else how it begins."""
    if path.name in _OWN_FILES or not path.name.lower().endswith(ENDINGS):
        return False
    if "trace" in path.name.lower() or facts_of(path.relative_to(path.parent)).rank is not None:
        return True
    try:
        head = read_head(path, str(path), ReadLimits())
    except GpudiagError:
        return False
    return any(sign in head for sign in _SIGNS)


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """The one trace of a file. Raises as every reader does."""
    return (read_kineto(path, shown, limits),)
