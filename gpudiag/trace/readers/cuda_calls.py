"""What calls of CUDA's and HIP's runtime and driver do, by their names, which every profiler of them records alike."""

from __future__ import annotations

import re
from functools import cache

from gpudiag.model.event import Role

#: Versions, and streams per thread: `cudaMemcpy_v3020_ptds`, `hipMemcpy_spt`.
_VERSION = r"(?:_v\d+|_ptds|_ptsz|_spt)*$"
_MEMSET = re.compile(r"(?:cuda|hip|cu)Memset")
_GRAPH_LAUNCH = re.compile(r"(?:cuda|hip|cu)GraphLaunch")
_BEGINS_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamEndCapture")

_ROLES = (
    (
        Role.SYNCHRONIZATION,
        re.compile(
            r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
            r"|cu(?:Ctx|Stream|Event)Synchronize"
            r"|(?:cuda|hip)(?:Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol)"
            + _VERSION
            + r"|hipMemcpy(?:WithStream|HtoD|DtoH|DtoD)"
            + _VERSION
            + r"|cuMemcpy(?:HtoD|DtoH|DtoD)?"
            + _VERSION
        ),
    ),
    (Role.STREAM_WAIT, re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")),
    (Role.COPY, re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")),
    (
        Role.RELEASE,
        re.compile(
            r"(?:cuda|hip)(?:Free|FreeHost|HostFree|HostUnregister)"
            + _VERSION
            + r"|cuMem(?:Free|FreeHost|Unmap)"
            + _VERSION
        ),
    ),
    (
        Role.ALLOCATION,
        re.compile(
            r"(?:cuda|hip)(?:Malloc(?!Async|FromPool)|ExtMalloc|HostAlloc|HostMalloc|HostRegister)"
            r"|cuMem(?:Alloc(?!Async|FromPool)|Create|Map|SetAccess|HostAlloc)"
        ),
    ),
    (Role.LAUNCH, re.compile(r"(?:cuda|hip|cu)\w*(?:Launch|Memset)")),
)


def is_memset(name: str) -> bool:
    """Return whether a call sets device memory."""
    return _MEMSET.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """Return whether a call launches a CUDA or HIP graph.

    >>> is_graph_launch("hipGraphLaunch"), is_graph_launch("cudaGraphInstantiate")
    (True, False)
    """
    return _GRAPH_LAUNCH.match(name) is not None


def begins_capture(name: str) -> bool:
    """Return whether after this call what its thread launches is captured into a graph, and does not run."""
    return _BEGINS_CAPTURE.match(name) is not None


def ends_capture(name: str) -> bool:
    """Return whether this call ends such a capture."""
    return _ENDS_CAPTURE.match(name) is not None


@cache
def role_of_call(name: str) -> Role:
    """The role of a call.

    >>> role_of_call("cudaMemcpyAsync"), role_of_call("cudaMemcpy_v3020")
    (<Role.COPY: 3>, <Role.SYNCHRONIZATION: 5>)
    >>> role_of_call("hipMemcpyWithStream"), role_of_call("hipHostFree")
    (<Role.SYNCHRONIZATION: 5>, <Role.RELEASE: 16>)
    >>> role_of_call("cuLaunchKernelEx"), role_of_call("cudaEventQuery")
    (<Role.LAUNCH: 4>, <Role.OTHER: 0>)
    """
    return next((role for role, pattern in _ROLES if pattern.match(name)), Role.OTHER)
