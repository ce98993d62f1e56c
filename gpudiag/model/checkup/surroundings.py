"""Define what `gpudiag doctor` reads besides the inventory: interpreter, CUPTI, permissions, CPUs."""

from __future__ import annotations

import msgspec

from gpudiag.model.quantities import Count, Rate


class PythonSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of the training processes.

    Attributes:
        framework: version of the framework; None if it is missing.
        cuda: version of CUDA that the framework was built for; None for a build without CUDA, or if unknown.
        problem, hint: why the interpreter cannot train, and what to do.
    """

    path: str
    framework_title: str
    version: str | None = None
    framework: str | None = None
    cuda: str | None = None
    problem: str | None = None
    hint: str | None = None


class CuptiSeen(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's profiling library, as the interpreter finds it.

    Attributes:
        path: the library that was loaded; None if there is none.
        version: CUPTI's number, e.g. 26 for CUDA 12.8.
        error: CUPTI's name of the error when a profiler registers (`cuptiSubscribe`); None if there was none.
    """

    path: str | None = None
    version: Count | None = None
    error: str | None = None


class PeerCopiesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of copies between all pairs of GPUs. If `status` is not `ok`, `reason` says why.

    `hung` means that the copies did not end in time, `late` that the GPUs were not ready for them,
    `failed` that a call failed, `skipped` that nothing was tried.
    """

    status: str
    reason: str | None = None
    pairs: Count = 0


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one machine and process.

    Attributes:
        profiling_restricted: the NVIDIA driver reserves performance counters for administrators.
        may_profile: this process has a capability that lifts this restriction.
        allowed_cpus: CPUs on which this process may run, in the kernel's list notation.
        cpu_quota: number of CPUs that control groups allow; None for no limit.
        wsl: the kernel is that of Windows Subsystem for Linux.
        reasons: why values are missing, by attribute.
    """

    python: PythonSeen | None = None
    cupti: CuptiSeen | None = None
    peers: PeerCopiesSeen | None = None
    profiling_restricted: bool | None = None
    may_profile: bool | None = None
    allowed_cpus: str | None = None
    cpu_quota: Rate | None = None
    wsl: bool = False
    reasons: dict[str, str] = {}
