"""Predict NCCL's transport between the GPUs of one machine, and check variables that slow training down.

NCCL copies directly between two GPUs if the driver allows peer access and the GPUs are no farther apart than
NCCL_P2P_LEVEL. The default of this variable is PXB, or SYS on AMD processors with at most two GPUs (NCCL,
graph/paths.cc). Otherwise NCCL copies through shared memory or, if shared memory is disabled, through the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check
from gpudiag.model.facts import Link

_TRANSPORT = "nccl-transport"
#: Distances of two GPUs, as values of NCCL_P2P_LEVEL, the nearest first.
_ORDER = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
#: Values of NCCL_P2P_LEVEL before NCCL 2.5 → values today.
_OLD_LEVELS = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}
_SEE = (
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,P2P,SHM,NET python …   # NCCL's log names the transport: via P2P, SHM, NET"
)
#: (Environment variable, value that slows training down, effect).
_SLOWING = (
    ("CUDA_LAUNCH_BLOCKING", "1", "every kernel launch waits for the kernel"),
    ("NCCL_P2P_DISABLE", "1", "GPUs copy through host memory"),
    ("NCCL_SHM_DISABLE", "1", "GPUs without peer access copy through the network"),
    ("NCCL_IB_DISABLE", "1", "nodes communicate over TCP"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1", "the training thread waits for every collective"),
    ("NCCL_LAUNCH_MODE", "GROUP", "launches of all ranks wait for each other"),
)


def check_transport(setting: JobSetting) -> Check:
    """Predict the transport between each pair of GPUs; warn if a transport is slower than the hardware allows."""
    if len(setting.gpus) < 2:
        return Check(code=_TRANSPORT, status="not-needed", title="Fewer than two GPUs are visible.")
    environment = setting.host.environment
    counts = Counter(_transport(link, setting) for link in setting.links)
    text = ", ".join(f"{transport} for {count} of {len(setting.links)} pairs" for transport, count in counts.items())
    title = f"NCCL will likely use {text}."
    if "unknown" in counts:
        return Check(code=_TRANSPORT, status="unknown", title=title, fix=(_SEE,), not_seen="peer access of these pairs")
    fix = _faster(setting, counts, environment)
    if fix:
        return Check(code=_TRANSPORT, status="warning", title=title, fix=(*fix, _SEE))
    return Check(code=_TRANSPORT, status="ok", title=title)


def _transport(link: Link, setting: JobSetting) -> str:
    """Return the transport that NCCL will likely use between two GPUs, in words; "unknown" if peer access is unknown.

    If peer access over NVLink is unknown, it is assumed. A kind of link that `_ORDER` lacks counts as near enough.
    """
    environment = setting.host.environment
    if link.peer_access is None and link.lanes == 0:
        return "unknown"
    # NCCL_P2P_LEVEL has no value for `NODE` (two host bridges of one NUMA node): assume the next farther value.
    distance = "NVL" if link.lanes > 0 else {"NODE": "SYS"}.get(link.kind, link.kind)
    level = _level(environment, setting)
    near = distance not in _ORDER or _ORDER.index(distance) <= _ORDER.index(level)
    if environment.get("NCCL_P2P_DISABLE") != "1" and link.peer_access is not False and near:
        return "P2P over NVLink" if link.lanes > 0 else "P2P over PCIe"
    return "SHM (host memory)" if environment.get("NCCL_SHM_DISABLE") != "1" else "NET (network)"


def _level(environment: Mapping[str, str], setting: JobSetting) -> str:
    """Return the value of NCCL_P2P_LEVEL, or its default on this machine."""
    value = environment.get("NCCL_P2P_LEVEL", "").upper()
    value = _OLD_LEVELS.get(value, value)
    if value in _ORDER:
        return value
    return "SYS" if "AMD" in setting.host.cpu and len(setting.gpus) <= 2 else "PXB"


def _faster(setting: JobSetting, counts: Counter[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the steps to a faster transport; empty if the hardware allows none. `counts`: transport → GPU pairs."""
    steps = []
    slow = [link for link in setting.links if not _transport(link, setting).startswith("P2P")]
    if slow and environment.get("NCCL_P2P_DISABLE") == "1" and any(link.peer_access for link in slow):
        steps.append("unset NCCL_P2P_DISABLE")
    if any(link.peer_access for link in slow) and environment.get("NCCL_P2P_LEVEL"):
        steps.append("unset NCCL_P2P_LEVEL")
    # A hypervisor may hide the hardware's distances, so no level is recommended there.
    if slow and not steps and any(link.peer_access for link in slow) and not setting.host.hypervisor:
        steps.append("export NCCL_P2P_LEVEL=SYS   # keep it only if `gpudiag bandwidth` shows that it is faster")
    if "NET (network)" in counts:
        steps.append("unset NCCL_SHM_DISABLE")
    return tuple(steps)


def check_environment(setting: JobSetting) -> Check:
    """Report variables of this process that slow training down; the job may have other variables."""
    environment = setting.host.environment
    slowing = [(name, effect) for name, value, effect in _SLOWING if environment.get(name, "").strip() == value]
    if not slowing:
        return Check(code="environment", status="ok", title="No variable of this shell is known to slow training down.")
    title = "; ".join(f"{name}={environment[name]}: {effect}" for name, effect in slowing)
    fix = (f"unset {' '.join(name for name, _ in slowing)}",)
    return Check(code="environment", status="warning", title=f"{title}.", fix=fix)
