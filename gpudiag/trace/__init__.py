"""Read the files of profilers as events."""

from gpudiag.trace.read import read_traces
from gpudiag.trace.readers.names import is_communication_kernel
from gpudiag.trace.unpack import ReadLimits

__all__ = ["ReadLimits", "is_communication_kernel", "read_traces"]
