"""Check that a profiler can record kernels: CUPTI is found, loads, and accepts a subscriber.

The driver's option NVreg_RestrictProfilingToAdminUsers reserves hardware counters for administrators (NVIDIA,
ERR_NVGPUCTRPERM). From CUDA 11 on, the option does not affect the recording of kernels, which gpudiag needs. With this
option, CUPTI of CUDA 10 refuses to record kernels too, with CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (tensorflow#35860).
"""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check
from gpudiag.model.checkup.surroundings import CuptiSeen

#: CUPTI_API_VERSION of CUDA 10.2 (cupti_version.h).
_LAST_RESTRICTED_VERSION = 12
_ALLOW = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf "
    "&& sudo update-initramfs -u   # then restart"
)
_IN_CONTAINER = "docker run --cap-add=SYS_ADMIN …   # or allow it on the host"


def check_profiler(setting: JobSetting) -> Check:
    """Check CUPTI's answer, the driver's restriction of profiling, and this process's capabilities."""
    code, surroundings = "profiler-access", setting.surroundings
    if not setting.facts.gpus:
        return Check(code=code, status="not-needed", title="Without a GPU, the CPU's profiler needs no permission.")
    cupti = surroundings.cupti
    not_seen = surroundings.reasons.get("profiling_restricted")
    if cupti is None:
        reason = surroundings.reasons.get("cupti", "it was not tried")
        return Check(code=code, status="unknown", title="CUPTI did not answer.", not_seen=reason)
    if cupti.path is None:
        return Check(
            code=code,
            status="warning",
            title="CUPTI (libcupti.so) is not found: traces lack kernels, unless the framework contains CUPTI.",
            fix=(_install(setting),),
            not_seen=not_seen,
        )
    if cupti.error is not None:
        return _refused(setting, cupti, not_seen)
    if _restricted(setting) and cupti.version is not None and cupti.version <= _LAST_RESTRICTED_VERSION:
        title = "CUPTI of CUDA 10 records kernels for administrators only."
        return Check(code=code, status="blocked", title=title, fix=_permission_steps(setting), not_seen=not_seen)
    title = "CUPTI loads and accepts a profiler."
    if _restricted(setting):
        title += " Hardware counters are for administrators only, which kernel traces do not need."
    return Check(code=code, status="ok", title=title, not_seen=not_seen)


def _restricted(setting: JobSetting) -> bool:
    surroundings = setting.surroundings
    return bool(surroundings.profiling_restricted) and not surroundings.may_profile


def _refused(setting: JobSetting, cupti: CuptiSeen, not_seen: str | None) -> Check:
    """Return the check for a CUPTI that refuses a profiler, with the steps for its error."""
    error = cupti.error or ""
    if "PRIVILEGES" in error:
        steps = _permission_steps(setting)
    elif "MULTIPLE_SUBSCRIBERS" in error:
        steps = ("unset CUDA_INJECTION64_PATH   # another profiler is in every CUDA process",)
    elif "WSL" in error or "VIRTUALIZED" in error:
        steps = ("Ask the provider for a machine type with profiling, or profile on a machine without virtualization.",)
    else:
        steps = (_install(setting), "nvidia-smi   # the driver must answer")
    title = f"CUPTI refuses a profiler ({error}), so that traces lack kernels."
    return Check(code="profiler-access", status="warning", title=title, fix=steps, not_seen=not_seen)


def _permission_steps(setting: JobSetting) -> tuple[str, ...]:
    return (_IN_CONTAINER, _ALLOW) if setting.in_container else (_ALLOW,)


def _install(setting: JobSetting) -> str:
    """Return the command that installs the CUPTI of the framework's CUDA."""
    python = setting.surroundings.python
    path = "python" if python is None else python.path
    major = ((python.cuda if python else None) or setting.host.cuda_driver or "").partition(".")[0]
    package = f"nvidia-cuda-cupti-cu{major}" if major in {"11", "12"} else "nvidia-cuda-cupti"
    return f"{path} -m pip install {package}"
