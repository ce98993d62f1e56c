"""Reader of XSpace, the format of TensorFlow's profiler."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.event import Trace
from gpudiag.trace.limits import ReadLimits

ENDINGS = (".xplane.pb", ".xplane.pb.gz")
RANK_PER_DEVICE = True


def recognises(path: Path) -> bool:
    """Whether the name is that of TensorFlow's profiles."""
    return path.name.lower().endswith(ENDINGS)


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """A trace per GPU of the process in a file. Raises as every reader does."""
    from gpudiag.trace.readers.xspace.devices import trace_per_device
    from gpudiag.trace.readers.xspace.space import read_xspace

    return trace_per_device(read_xspace(path, shown, limits))
