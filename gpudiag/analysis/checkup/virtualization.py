"""Check for containers, virtual machines and Windows Subsystem for Linux."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check


def check_container(setting: JobSetting) -> Check:
    """Report the container; its limits are judged by the other checks."""
    kind = setting.host.container
    if kind is None:
        return Check(code="container", status="ok", title="No sign of a container.")
    title = f"In a container ({kind}): the other checks show its limits, not the machine's."
    return Check(code="container", status="ok", title=title)


def check_virtual_machine(setting: JobSetting) -> Check:
    """Report the hypervisor; warn about limits of Windows Subsystem for Linux."""
    code, host = "virtual-machine", setting.host
    if setting.surroundings.wsl:
        return Check(
            code=code,
            status="warning",
            title="Windows Subsystem for Linux: little memory can be pinned, and GPUs have no peer access.",
            fix=("Train on Linux without Windows; until then use one GPU, and pin_memory=False if pinning fails.",),
        )
    if host.hypervisor is None:
        return Check(code=code, status="ok", title="No sign of a virtual machine.")
    title = f"In a virtual machine, {host.hypervisor}: distances over PCIe are the guest's, not the hardware's."
    return Check(code=code, status="ok", title=title)
