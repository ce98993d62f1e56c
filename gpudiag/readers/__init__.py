"""Readers: from the files that profilers write to events."""

from gpudiag.readers.collective_names import is_communication_kernel
from gpudiag.readers.limits import ReadLimits
from gpudiag.readers.read import read_traces

__all__ = ["ReadLimits", "is_communication_kernel", "read_traces"]
