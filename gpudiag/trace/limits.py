"""How much a trace may take: the bounds that protect the machine from files made by others."""

from __future__ import annotations

from pathlib import Path

import msgspec

#: Bytes of memory that reading takes per byte of JSON: the text itself and the decoded events (2.6 measured on
#: traces of PyTorch 2.11; the rest is margin).
MEMORY_PER_JSON_BYTE = 4


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on reading.

    Attributes:
        max_bytes: a trace may unpack to this many bytes of JSON; also bounded by the memory that is free.
        max_ratio: past `ratio_free_bytes`, unpacked bytes per packed byte. Real traces have 10 to 40; a bomb has 1000.
        ratio_free_bytes: up to this many unpacked bytes the ratio is not looked at.
        workers: processes that read several files; None for as many as this process may use CPUs.
    """

    max_bytes: int = 4_000_000_000
    max_ratio: int = 200
    ratio_free_bytes: int = 64 << 20
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_ratio < 1 or self.ratio_free_bytes < 0:
            raise ValueError(f"limits must be positive: {self}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"at least one process must read, not {self.workers}")


def free_memory_bytes() -> int | None:
    """Memory that can be taken without swapping: the kernel's estimate or what the control group leaves, if less.

    None where neither is told (no Linux).
    """
    known = [value for value in (_meminfo_available(), _cgroup_left()) if value is not None]
    return min(known) if known else None


def _meminfo_available() -> int | None:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_left() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
