"""Read XSpace, the format of TensorFlow's and JAX's profilers."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.event import Trace
from gpudiag.trace.ranks import rank_per_device as assign_ranks  # one process drives several GPUs
from gpudiag.trace.unpack import ReadLimits

__all__ = ["ENDINGS", "assign_ranks", "read", "recognises"]

ENDINGS = (".xplane.pb", ".xplane.pb.gz")


def recognises(path: Path) -> bool:
    """Return whether a file's name has an ending of XSpace files."""
    return path.name.lower().endswith(ENDINGS)


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return one trace per GPU (or CPU device) of the process in a file. Raise the errors of `Reader.read`."""
    from gpudiag.trace.readers.xspace.devices import trace_per_device
    from gpudiag.trace.readers.xspace.space import read_xspace

    return trace_per_device(read_xspace(path, shown, limits))
