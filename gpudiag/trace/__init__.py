"""Readers: from the files that profilers write to events."""

from gpudiag.trace.limits import ReadLimits
from gpudiag.trace.read import read_traces
from gpudiag.trace.readers.kineto.collective_names import is_communication_kernel

__all__ = ["ReadLimits", "is_communication_kernel", "read_traces"]
