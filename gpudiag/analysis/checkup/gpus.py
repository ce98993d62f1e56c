"""Check that the driver shows GPUs, and that nothing slows them down now."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check

#: Codes of findings about paths between GPUs. Other checks judge such findings.
_OTHER_CHECKS = frozenset({"no-peer-access", "corrupt-transfer", "peer-slower-than-host"})
_SHOW = "gpudiag topology"


def check_driver(setting: JobSetting) -> Check:
    """Check that NVML lists GPUs, and that CUDA_VISIBLE_DEVICES hides none by mistake."""
    code, host, facts = "gpu-driver", setting.host, setting.facts
    if not facts.gpus:
        reason = host.reasons.get("gpus") or setting.surroundings.reasons.get("inventory", "none is listed")
        if reason.startswith("PCI shows"):  # the inventory's reason if the GPUs' driver does not work
            return Check(code=code, status="blocked", title=f"{reason}.", fix=_driver_steps(setting))
        if "inventory" in setting.surroundings.reasons:
            return Check(
                code=code,
                status="blocked",
                title="The NVIDIA driver does not answer.",
                fix=("dmesg | grep -i -e xid -e nvrm", "Restart the machine, or ask the administrator to."),
                not_seen=setting.surroundings.reasons["inventory"],
            )
        title = "No NVIDIA GPU: jobs run on CPU processes."
        return Check(code=code, status="not-needed", title=title, not_seen=reason)
    if not setting.gpus:
        note = host.reasons.get("visible", "CUDA_VISIBLE_DEVICES hides every GPU")
        return Check(code=code, status="blocked", title=f"{note}.", fix=("unset CUDA_VISIBLE_DEVICES",))
    names = ", ".join(sorted({gpu.name for gpu in setting.gpus}))
    seen = f"{len(setting.gpus)} of {len(facts.gpus)} GPUs visible ({names}), driver {host.driver or '?'}"
    if "visible" in host.reasons:
        steps = ("Correct it: nvidia-smi -L lists the GPUs.", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        return Check(code=code, status="warning", title=f"{seen}; {host.reasons['visible']}.", fix=steps)
    return Check(code=code, status="ok", title=f"{seen}.")


def _driver_steps(setting: JobSetting) -> tuple[str, ...]:
    if setting.in_container:
        return ("docker run --gpus all …", "nvidia-ctk --version   # on the host: the NVIDIA container toolkit")
    return ("sudo modprobe nvidia", "dmesg | grep -i nvrm", "Install the driver, or restart after its update.")


def check_state(setting: JobSetting) -> Check:
    """Report findings that no other check judges: throttling, degraded links, foreign processes, different clocks."""
    if not setting.facts.gpus:
        return Check(code="gpu-state", status="not-needed", title="There is no GPU.")
    findings = [
        finding
        for finding in setting.facts.findings
        if finding.code not in _OTHER_CHECKS and finding.severity != "info"
    ]
    if not findings:
        return Check(code="gpu-state", status="ok", title="No GPU is throttled, degraded, or used by another process.")
    titles = "; ".join(finding.title for finding in findings)
    fix = tuple(dict.fromkeys(advice for finding in findings for advice in finding.advice))
    return Check(code="gpu-state", status="warning", title=f"{titles}.", fix=(*fix, _SHOW))
