"""Check a machine for problems that would block or slow a job. Each `check_` function is pure and returns one check."""

from __future__ import annotations

from gpudiag.analysis.checkup.cpus import check_cores, check_numa
from gpudiag.analysis.checkup.gpus import check_driver, check_state
from gpudiag.analysis.checkup.host_limits import check_locked_memory, check_shared_memory
from gpudiag.analysis.checkup.nccl import check_environment, check_transport
from gpudiag.analysis.checkup.peer_paths import check_iommu, check_peers
from gpudiag.analysis.checkup.profiler_access import check_profiler
from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.analysis.checkup.training_python import check_framework, check_interpreter
from gpudiag.analysis.checkup.virtualization import check_container, check_virtual_machine
from gpudiag.model.checkup import Check

#: The checks in the order of `CHECK_CODES`.
_CHECKS = (
    check_interpreter,
    check_framework,
    check_driver,
    check_state,
    check_profiler,
    check_peers,
    check_iommu,
    check_transport,
    check_environment,
    check_shared_memory,
    check_locked_memory,
    check_cores,
    check_numa,
    check_container,
    check_virtual_machine,
)


def run_checks(setting: JobSetting) -> tuple[Check, ...]:
    """Return every check, in a fixed order."""
    return tuple(check(setting) for check in _CHECKS)


__all__ = ["JobSetting", "run_checks"]
