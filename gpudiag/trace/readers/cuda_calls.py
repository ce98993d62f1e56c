"""What calls of CUDA's and HIP's runtime and driver do, by their names, which every profiler of them records alike."""

from __future__ import annotations

import re
from functools import cache

from gpudiag.model.event import Role

_ROLES = (
    (
        Role.SYNCHRONIZATION,
        re.compile(
            r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
            r"|cu(?:Ctx|Stream|Event)Synchronize"
            r"|(?:cuda|hip)(?:Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol)(?:_v\d+)?$"
            r"|hipMemcpyWithStream$"
            r"|cuMemcpy(?:HtoD|DtoH|DtoD)?(?:_v\d+)?$"
        ),
    ),
    (Role.STREAM_WAIT, re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")),
    (Role.COPY, re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")),
    (
        Role.RELEASE,
        re.compile(r"(?:cuda|hip)(?:Free|FreeHost|HostUnregister)(?:_v\d+)?$|cuMem(?:Free|FreeHost|Unmap)(?:_v\d+)?$"),
    ),
    (
        Role.ALLOCATION,
        re.compile(
            r"(?:cuda|hip)(?:Malloc(?!Async|FromPool)|HostAlloc|HostRegister)"
            r"|cuMem(?:Alloc(?!Async|FromPool)|Create|Map|SetAccess|HostAlloc)"
        ),
    ),
    (Role.LAUNCH, re.compile(r"(?:cuda|hip|cu)\w*(?:Launch|Memset)")),
)


@cache
def role_of_call(name: str) -> Role:
    """The role of a call.

    >>> role_of_call("cudaMemcpyAsync"), role_of_call("cudaMemcpy_v3020")
    (<Role.COPY: 3>, <Role.SYNCHRONIZATION: 5>)
    >>> role_of_call("cuLaunchKernelEx"), role_of_call("cudaEventQuery")
    (<Role.LAUNCH: 4>, <Role.OTHER: 0>)
    """
    return next((role for role, pattern in _ROLES if pattern.match(name)), Role.OTHER)
