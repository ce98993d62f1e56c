"""Check direct copies between GPUs, and what redirects them: IOMMU and Access Control Services."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check
from gpudiag.model.facts import Host, number_list

_PEERS = "peer-access"
_ACS_OFF = "sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000   # for each bridge above; until the next start (NCCL manual)"
_PASSTHROUGH = "Add iommu=pt to the kernel's command line (/etc/default/grub, update-grub), and restart."
_WITHOUT_PEERS = "export NCCL_P2P_DISABLE=1   # slower; only until it is mended"


def check_peers(setting: JobSetting) -> Check:
    """Check that copies between GPUs end, and that their data is right."""
    if len(setting.gpus) < 2:
        return Check(code=_PEERS, status="not-needed", title="Fewer than two GPUs are visible.")
    problem = _problem(setting)
    if problem is not None:
        return problem
    peers = setting.surroundings.peers
    unknown = [link for link in setting.links if link.peer_access is None]
    if unknown and (peers is None or peers.status != "ok"):
        return Check(
            code=_PEERS,
            status="unknown",
            title=f"Peer access is unknown for {len(unknown)} of {len(setting.links)} pairs.",
            fix=("gpudiag bandwidth --quick",),
            not_seen=unknown[0].reason or "the driver does not say",
        )
    if peers is not None and peers.status == "late":
        title = "The GPUs were not ready for copies in time; other processes may use them."
        return Check(
            code=_PEERS, status="unknown", title=title, fix=("gpudiag doctor --timeout 60",), not_seen=peers.reason
        )
    if peers is None or peers.status != "ok":
        reason = peers.reason if peers is not None else setting.surroundings.reasons.get("peers", "not tried")
        title = "The driver reports peer access; copies were not tried."
        return Check(code=_PEERS, status="ok", title=title, not_seen=reason)
    return Check(
        code=_PEERS, status="ok", title=f"Copies between all {peers.pairs} pairs of GPUs end, with right data."
    )


def _problem(setting: JobSetting) -> Check | None:
    """Return the check for the worst problem that copies and findings show; None without a problem."""
    peers = setting.surroundings.peers
    findings = {finding.code: finding for finding in setting.facts.findings}
    if peers is not None and peers.status == "hung":
        return Check(
            code=_PEERS,
            status="blocked",
            title=f"Copies between GPUs hang ({peers.reason}); NCCL will hang too.",
            fix=(_ACS_OFF, _PASSTHROUGH, _WITHOUT_PEERS, "dmesg | grep -i -e xid -e iommu -e dmar"),
        )
    if "corrupt-transfer" in findings:
        finding = findings["corrupt-transfer"]
        return Check(code=_PEERS, status="blocked", title=f"{finding.title}.", fix=(*finding.advice, _WITHOUT_PEERS))
    if peers is not None and peers.status == "failed":
        return Check(
            code=_PEERS,
            status="warning",
            title=f"Copies between GPUs failed: {peers.reason}.",
            fix=("gpudiag bandwidth --quick", "nvidia-smi topo -p2p rw"),
        )
    for name in ("no-peer-access", "peer-slower-than-host"):
        if name in findings and findings[name].severity != "info":
            return Check(code=_PEERS, status="warning", title=f"{findings[name].title}.", fix=findings[name].advice)
    return None


def check_iommu(setting: JobSetting) -> Check:
    """Check whether IOMMU or ACS redirect copies over PCIe through the CPU. IOMMU and ACS do not affect NVLink."""
    code, host = "iommu-acs", setting.host
    if len(setting.gpus) < 2:
        return Check(code=code, status="not-needed", title="Fewer than two GPUs are visible.")
    if setting.links and all(link.lanes > 0 for link in setting.links):
        title = "All pairs of GPUs use NVLink, which neither IOMMU nor ACS redirects."
        return Check(code=code, status="ok", title=title)
    not_seen = "; ".join(
        f"{name}: {host.reasons[key]}" for key, name in (("iommu", "IOMMU"), ("acs", "ACS")) if key in host.reasons
    )
    if host.hypervisor is not None:
        return Check(
            code=code,
            status="unknown",
            title="In a virtual machine the host decides over IOMMU and ACS.",
            fix=("gpudiag bandwidth --quick   # its findings show the effect",),
            not_seen=not_seen or "the host's settings",
        )
    problems, fix = _redirections(host)
    if problems:
        gpus = number_list(gpu.index for gpu in setting.gpus)
        title = f"Copies over PCIe between GPUs {gpus} go through the CPU or hang: {' and '.join(problems)}."
        return Check(code=code, status="warning", title=title, fix=tuple(fix), not_seen=not_seen or None)
    if host.iommu is None or host.acs is None:
        return Check(
            code=code,
            status="unknown",
            title=f"IOMMU: {host.iommu or 'unknown'}; ACS: {host.acs or 'unknown'}.",
            fix=("sudo lspci -vvv | grep -i acsctl   # SrcValid+ means that copies are redirected",),
            not_seen=not_seen or "they were not read",
        )
    return Check(code=code, status="ok", title=f"IOMMU: {host.iommu}; ACS: {host.acs}.")


def _redirections(host: Host) -> tuple[list[str], list[str]]:
    """Return (reasons why copies over PCIe are redirected, steps that end the redirection)."""
    problems, steps = [], []
    if host.iommu is not None and "translating" in host.iommu:
        problems.append(f"the IOMMU is {host.iommu}")
        steps.append(_PASSTHROUGH)
    if host.acs is not None and host.acs.startswith("redirects"):
        problems.append(f"ACS {host.acs}")
        steps += [_ACS_OFF, "Or turn ACS off in the firmware's setup."]
    return problems, steps
