"""Check shared memory and locked memory."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check

#: Free shared memory per rank below which DataLoader workers may fail with "bus error", or NCCL with "no space left". A
#: batch of 256 images of 224 x 224 in fp32 has 147 MiB, and two workers hold four batches. Docker's default for the
#: whole container is 64 MiB.
_SHARED_BYTES_PER_RANK = 512 << 20
#: Network devices that register memory.
_RDMA = frozenset({"infiniband", "roce"})


def check_shared_memory(setting: JobSetting) -> Check:
    """Check that /dev/shm holds the batches of DataLoader workers and NCCL's buffers."""
    code, host = "shared-memory", setting.host
    if host.shm_bytes is None or host.shm_free_bytes is None:
        reason = host.reasons.get("shm_bytes", "it was not read")
        return Check(code=code, status="unknown", title="The size of /dev/shm is unknown.", not_seen=reason)
    seen = f"Shared memory (/dev/shm) has {_size(host.shm_bytes)}, {_size(host.shm_free_bytes)} free"
    needed = _SHARED_BYTES_PER_RANK * setting.ranks
    if host.shm_free_bytes >= needed:
        return Check(code=code, status="ok", title=f"{seen}.")
    fix = []
    size = max(16, -(-needed >> 30))  # GiB, rounded up
    if host.shm_bytes >= needed:
        fix.append("ls -l /dev/shm   # remove what ended jobs left")
    elif setting.in_container:
        fix += [
            f"docker run --shm-size={size}g …   # or --ipc=host",
            "Kubernetes: mount an emptyDir of medium Memory there",
        ]
    else:
        fix.append(f"sudo mount -o remount,size={size}G /dev/shm")
    wanted = f"DataLoader workers of {setting.ranks} ranks want {_size(needed)}"
    title = f"{seen}. {wanted}; with less they end in a bus error."
    return Check(code=code, status="warning", title=title, fix=tuple(fix))


def check_locked_memory(setting: JobSetting) -> Check:
    """Check the limit of locked memory, which RDMA needs. CUDA's pinned memory does not count."""
    code, host = "locked-memory", setting.host
    devices = [nic.name for nic in host.nics if nic.kind in _RDMA]
    if not devices:
        return Check(code=code, status="not-needed", title="No RDMA device is here that would register memory.")
    if host.memlock_bytes is None:
        reason = host.reasons.get("memlock_bytes", "it was not read")
        return Check(code=code, status="unknown", title="The limit is unknown.", not_seen=reason)
    if host.memlock_bytes == -1:
        return Check(code=code, status="ok", title=f"Unlimited, as RDMA over {', '.join(devices[:4])} needs.")
    fix = ["ulimit -l unlimited"]
    if setting.in_container:
        fix.insert(0, "docker run --ulimit memlock=-1 …")
    else:
        fix.append("echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf   # then log in again")
    title = (
        f"Only {_size(host.memlock_bytes)} may be locked, but NCCL registers its buffers with {', '.join(devices[:4])}."
    )
    return Check(code=code, status="warning", title=title, fix=tuple(fix))


def _size(size_bytes: int) -> str:
    """Return bytes with a binary unit: `64 MiB`, `1.5 GiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes / 1024:.3g} KiB"
